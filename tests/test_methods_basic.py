"""FedAvg, FedPer and local-only: what each shares, keeps and leaves alone."""

import pytest
import torch
from conftest import assert_same_bits, events, final_tensors, snapshot_tensors, tiny

from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.base import pooled
from pfeddsh.methods.fedavg import FedAvg, weighted_mean
from pfeddsh.methods.fedper import FedPer
from pfeddsh.methods.local import Local
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task, Visit
from pfeddsh.models import base as models

PLAN = tiny().plan()


class Images:
    """Forty random images of ten classes."""

    def __init__(self):
        stream = torch.Generator().manual_seed(1)
        images = torch.randn(40, 3, 32, 32, generator=stream).contiguous(memory_format=torch.channels_last)
        self.train = self.test = (images, torch.arange(40) % 10)


def last_two_snapshots(out):
    """The tensors at the end of the second and of the third step."""
    return [snapshot_tensors(path) for path in sorted((out / "state").glob("snapshot-*.safetensors"))]


def memories(tensors, clients):
    """What these clients keep."""
    return {name: tensor for name, tensor in tensors.items() if name.split(":")[0] in {f"memory/{k}" for k in clients}}


# What is sent


@pytest.mark.parametrize(("method", "kib"), [("fedavg", 242.21), ("fedper", 238.89), ("local", 0.0)])
def test_the_payload_is_that_of_the_tensors_both_ways(method, kib, reference):
    payload = reference(method).results["payload_kib"]
    assert payload["down"] == payload["up"]
    assert payload["down"] == pytest.approx(kib, abs=0.005)


def test_uploads_are_averaged_by_sample_count():
    uploads = {
        3: Message({"w": torch.tensor([1.0, 0.0])}, {"samples": 30}),
        5: Message({"w": torch.tensor([5.0, 4.0])}, {"samples": 10}),
    }
    assert weighted_mean(uploads, "w").tolist() == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize("counts", [(30, 10), (1, 2), (123, 457, 89), (7,) * 6])
def test_the_mean_of_equal_uploads_is_that_upload_to_the_bit(counts, task):
    uploads = {k: Message({"w": task.theta0}, {"samples": count}) for k, count in enumerate(counts)}
    assert torch.equal(weighted_mean(uploads, "w"), task.theta0)


def test_a_visit_changes_neither_the_download_nor_the_memory_it_was_given(task):
    visit = Visit(seed=0, step=1, round=0, client=0, lr=0.1)
    for method in (FedAvg(task, Options()), FedPer(task, Options()), Local(task, Options())):
        download = method.download(method.init(), [0])[0]
        memory = Memory({"head": task.theta0[task.model.head].clone(), "theta": task.theta0.clone()})
        sent, kept = download.encode(), memory.encode()
        upload, after = method.local(download, Images(), memory, visit)
        assert (download.encode(), memory.encode()) == (sent, kept)
        assert (upload.encode(), after.encode()) != (sent, kept)
        assert upload.facts["samples"] == 40


def test_no_weight_of_the_head_leaves_the_client(task):
    method = FedPer(task, Options())
    download = method.download(method.init(), [0])[0]
    upload, memory = method.local(download, Images(), Memory(), Visit(seed=0, step=1, round=0, client=0, lr=0.1))
    body, head = task.theta0[task.model.body], task.theta0[task.model.head]
    assert upload["body"].shape == body.shape
    assert memory["head"].shape == head.shape
    assert len(body) + len(head) == len(task.theta0)
    assert not torch.equal(memory["head"], head)


# What stays as it was


@pytest.mark.parametrize(("method", "part"), [("fedavg", "theta"), ("fedper", "body")])
def test_a_learning_rate_of_zero_leaves_the_state_unchanged(method, part, task, tmp_path):
    results = run(tiny(method, lr=0.0, schedule="6+2"), tmp_path / "run")
    start = task.theta0 if part == "theta" else task.theta0[task.model.body]
    assert torch.equal(final_tensors(tmp_path / "run")[f"state:{part}"], start)
    if method == "fedper":  # FedAvg's shared statistics follow the data of the newest batch even so
        assert results["ri"] == [None, 0.0]


def test_pa_and_ri_of_local_only_are_zero(reference):
    results = reference("local").results
    assert results["pa"] == [0.0, 0.0, 0.0]
    assert results["ri"] == [None, 0.0, 0.0]
    assert (results["pa_mean"], results["ri_cumulative"], results["worst_drop"]) == (0.0, 0.0, 0.0)
    assert len(set(results["local"])) > 1  # it is not zero for want of training


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_what_existing_clients_keep_is_not_touched_by_later_steps(method, reference):
    """Heads, statistics, and models of their own."""
    before, after = last_two_snapshots(reference(method).out)
    existing = memories(before, PLAN.onboarded(2))
    assert len(existing) >= 8
    assert_same_bits(existing, memories(after, PLAN.onboarded(2)))
    assert len(memories(after, PLAN.batch(3))) > len(memories(before, PLAN.batch(3))) == 0


def test_existing_clients_of_fedper_have_heads_of_their_own(reference):
    kept = memories(final_tensors(reference("fedper").out), PLAN.batch(1))
    heads = [tensor for name, tensor in kept.items() if name.endswith(":head")]
    assert len(heads) >= 4
    assert all(not torch.equal(heads[0], head) for head in heads[1:])


def test_the_shared_part_goes_on_learning_from_newcomers(reference):
    for method, part in (("fedavg", "state:theta"), ("fedper", "state:body")):
        before, after = last_two_snapshots(reference(method).out)
        assert not torch.equal(before[part], after[part])


# Who trains later


@pytest.mark.parametrize(("method", "part"), [("fedavg", "theta"), ("fedper", "body")])
def test_frozen_leaves_existing_clients_as_they_are_while_newcomers_train_alone(method, part, reference):
    frozen = reference(method, later="frozen")
    assert frozen.results["ri"] == [None, 0.0, 0.0]
    assert frozen.results["worst_drop"] == 0.0
    assert frozen.results["acc"][0] == reference(method).results["acc"][0]  # the first step knows nothing of it
    before, after = last_two_snapshots(frozen.out)
    assert torch.equal(before[f"state:{part}"], after[f"state:{part}"])
    visited = {k for event in frozen.events("round") if event["step"] > 1 for k in event["clients"]}
    own = {k: after[f"private/{k}:{part}"] for k in visited}
    assert visited <= {*PLAN.batch(2), *PLAN.batch(3)}
    assert all(not torch.equal(model, after[f"state:{part}"]) for model in own.values())


def test_a_newcomer_of_frozen_fedavg_goes_on_from_its_own_model(reference):
    """Served the frozen model again in each visit, it would end where its last visit alone leads."""
    frozen = reference("fedavg", later="frozen")
    visits = [event["clients"] for event in frozen.events("round") if event["step"] == 2]
    often = max(PLAN.batch(2), key=lambda k: sum(k in clients for clients in visits))
    last = max(r for r, clients in enumerate(visits) if often in clients)
    assert sum(often in clients for clients in visits) > 1
    bench = Workbench(tiny("fedavg", later="frozen"))
    tensors = final_tensors(frozen.out)
    call = Call("local", bench.visit(2, last, often), Message({"theta": tensors["state:theta"]}))
    alone, _ = bench.run(call)
    assert not torch.allclose(alone["theta"], tensors[f"private/{often}:theta"])


def test_everyone_means_existing_clients_train_in_later_steps(tmp_path, all_states):
    out = tmp_path / "run"
    config = tiny("fedper", schedule="6+2", rounds_first=2, rounds_later=3, sample_fraction=0.5, later="everyone")
    run(config, out)
    later = [event["clients"] for event in events(out) if event["event"] == "round" and event["step"] == 2]
    assert [len(clients) for clients in later] == [4, 4, 4]
    assert {k for clients in later for k in clients} & set(config.plan().batch(1))
    before, after = last_two_snapshots(out)
    for client in {k for clients in later for k in clients} & set(config.plan().batch(1)):
        statistics = f"memory/{client}:statistics"
        assert not torch.equal(before[statistics], after[statistics])


def test_fedavg_pools_statistics_as_if_all_features_lay_together():
    """Equal shares of one data set: in the first layer, the pooled statistics are those of the whole."""
    task = Task.create(10, 0)
    images = torch.randn(60, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    parts = [task.model.calibrate(task.theta0, part) for part in images.split(20)]
    together = pooled(task.model, parts)
    whole = task.model.calibrate(task.theta0, images)
    assert torch.allclose(together[:12], whole[:12], atol=1e-5)
    assert torch.allclose(together[12:], whole[12:], rtol=0.2, atol=0.1)  # here each share was normalised by itself


def test_pooled_statistics_never_have_a_negative_variance(task):
    """Of equal reports with large means, rounding left less than nothing."""
    told = 1000 * torch.rand(models.statistics_size(task.model), generator=torch.Generator().manual_seed(0))
    for _, variance in models.split_statistics(task.model, told):
        variance.zero_()
    for _, variance in models.split_statistics(task.model, pooled(task.model, [told] * 3)):
        assert (variance >= 0).all()
