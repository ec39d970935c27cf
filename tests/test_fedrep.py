"""FedRep: two phases that touch one part each, on FedPer's split."""

import pytest
import torch
from conftest import final_tensors, tiny
from test_methods_basic import Images, last_two_snapshots, memories

from pfeddsh.messages import Memory
from pfeddsh.methods import fedrep
from pfeddsh.methods.fedrep import FedRep, Settings, two_passes
from pfeddsh.methods.task import Visit
from pfeddsh.models.lenet import STATISTICS
from pfeddsh.models.training import sgd_epoch

PLAN = tiny().plan()
VISIT = Visit(seed=0, step=1, round=0, client=0, lr=0.1, batch_size=16)


@pytest.mark.parametrize("split", [False, True])
def test_one_visit_changes_head_and_body(split, task):
    """Head epochs counted as local epochs minus body epochs would leave the head as it was."""
    method = FedRep(task, Settings(split_epoch=split))
    upload, memory = method.local(method.download(method.init(), [0])[0], Images(), Memory(), VISIT)
    assert not torch.equal(memory["head"], task.theta0[task.model.head])
    assert not torch.equal(upload["body"], task.theta0[task.model.body])


@pytest.mark.parametrize("split", [False, True])
def test_each_phase_touches_its_own_part_only(split, task, monkeypatch):
    before_and_after = []

    def watched(trainer, theta, *args, **kwargs):
        start = theta.clone()
        loss = original(trainer, theta, *args, **kwargs)
        before_and_after.append((start, theta.clone()))
        return loss

    original = sgd_epoch
    monkeypatch.setattr(fedrep, "sgd_epoch", watched)
    method = FedRep(task, Settings(split_epoch=split))
    method.local(method.download(method.init(), [0])[0], Images(), Memory(), VISIT)
    (start, first), (between, second) = before_and_after
    head, body = task.model.head, task.model.body
    assert torch.equal(first[body], start[body]) and not torch.equal(first[head], start[head])
    assert torch.equal(first, between)
    assert torch.equal(second[head], between[head]) and not torch.equal(second[body], between[body])


@pytest.mark.parametrize("count", [32, 40, 100, 1000])
def test_a_split_epoch_sees_every_image_once_and_leaves_work_for_both(count):
    visit = Visit(seed=0, step=1, round=0, client=0)
    first, second = two_passes(visit, count, split=True)
    assert len(first) > 0 and len(second) > 0
    assert torch.equal(torch.cat(first + second).sort().values, torch.arange(count))


def test_two_passes_see_every_image_as_often_as_asked():
    first, second = two_passes(VISIT, 40, split=False, epochs=(3, 1))
    assert torch.cat(first).bincount().tolist() == [3] * 40
    assert torch.cat(second).bincount().tolist() == [1] * 40
    assert not torch.equal(torch.cat(first)[:40], torch.cat(second))
    assert all(torch.equal(a, b) for a, b in zip(second, VISIT.batches(40), strict=True))


def test_heads_of_existing_clients_stay_while_the_body_learns(reference):
    finished = reference("fedrep")
    before, after = last_two_snapshots(finished.out)
    existing = memories(before, PLAN.onboarded(2))
    assert sum(name.endswith(":head") for name in existing) >= 6
    assert all(torch.equal(tensor, after[name]) for name, tensor in existing.items())
    assert not torch.equal(before["state:body"], after["state:body"])
    ordinary = {"down": 238.890625, "up": 238.890625}
    assert finished.results["payload_kib"] == {**ordinary, "once_down": 0, "once_up": STATISTICS / 256}


def test_frozen_gives_no_retroactive_change(reference):
    frozen = reference("fedrep", later="frozen")
    assert frozen.results["ri"] == [None, 0.0, 0.0]
    newcomers = memories(final_tensors(frozen.out), PLAN.batch(2))
    assert any(name.endswith(":head") for name in newcomers)
