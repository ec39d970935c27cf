"""FedCLASS: without distillation it is FedAvg or FedPer; with it, the teacher comes once and goes with the step."""

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same_bits, final_tensors, tiny
from test_methods_basic import Images, last_two_snapshots, memories

from pfeddsh.messages import Memory, Message
from pfeddsh.methods.fedclass import FedCLASS, Settings, divergence
from pfeddsh.methods.task import Visit

PLAN = tiny().plan()
PAIRS = [("fedclass", "fedavg", "theta"), ("fedclass-local-head", "fedper", "body")]


def without_teacher(tensors):
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(":teacher")}


@pytest.mark.parametrize(("method", "plain", "part"), PAIRS)
def test_with_weight_zero_it_is_fedavg_bit_for_bit(method, plain, part, reference):
    zero, other = reference(method, options={"beta": 0.0}), reference(plain)
    assert_same_bits(without_teacher(final_tensors(zero.out)), final_tensors(other.out))
    assert zero.results["acc"] == other.results["acc"]


@pytest.mark.parametrize(("method", "plain", "part"), PAIRS)
def test_distillation_begins_with_the_second_step(method, plain, part, reference):
    taught, other = reference(method), reference(plain)
    assert taught.results["acc"][0] == other.results["acc"][0]
    assert not torch.equal(final_tensors(taught.out)[f"state:{part}"], final_tensors(other.out)[f"state:{part}"])


def test_the_gradient_of_the_divergence_is_that_of_autograd():
    stream = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 10, generator=stream, dtype=torch.float64, requires_grad=True)
    target = F.log_softmax(torch.randn(7, 10, generator=stream, dtype=torch.float64) / 5, 1)
    p = F.softmax(logits / 3, 1)
    expected = (p * (p.log() - target)).sum() / 7
    (gradient,) = torch.autograd.grad(expected, logits)
    loss, d = divergence(logits.detach(), target, 3.0)
    assert torch.allclose(loss, expected) and torch.allclose(d, gradient)


def test_a_strong_teacher_keeps_the_student_near_its_own_answers(task):
    """At equal temperatures the teacher's own weights are where the divergence is least."""
    visit = Visit(seed=0, step=2, round=0, client=0, lr=0.01, epochs=3)
    moved = []
    for beta in (0.0, 20.0):
        method = FedCLASS(task, Settings(beta=beta, tau_old=1.0, tau_new=1.0))
        message = Message({"theta": task.theta0, "teacher": task.theta0})
        upload, _ = method.local(message, Images(), Memory(), visit)
        answers = [F.log_softmax(task.model.forward(w, Images().train[0]), 1) for w in (upload["theta"], task.theta0)]
        moved.append(float(F.kl_div(answers[1], answers[0], log_target=True, reduction="batchmean")))
    assert 0 < moved[1] < moved[0] / 2


@pytest.mark.parametrize(("method", "plain", "part"), PAIRS)
def test_the_teacher_comes_once_in_a_step_and_is_not_kept(method, plain, part, reference):
    finished = reference(method)
    size = reference(plain).events("round")[0]["down"] // len(reference(plain).events("round")[0]["clients"])
    known = {step: set() for step in PLAN.steps}
    for event in finished.events("round"):
        new = set(event["clients"]) - known[event["step"]] if event["step"] > 1 else set()
        assert event["down"] == size * (len(event["clients"]) + len(new))
        assert event["up"] == size * len(event["clients"])
        known[event["step"]] |= new
    assert known[2] and known[3]
    before, after = last_two_snapshots(finished.out)
    assert not [name for name in after if name.startswith("memory/") and name.endswith(":teacher")]
    assert torch.equal(after["state:teacher"], before[f"state:{part}"])


@pytest.mark.parametrize(("method", "plain", "part"), PAIRS)
def test_frozen_gives_no_retroactive_change(method, plain, part, reference):
    frozen = reference(method, later="frozen")
    assert frozen.results["ri"] == [None, 0.0, 0.0]
    before, after = last_two_snapshots(frozen.out)
    assert torch.equal(before[f"state:{part}"], after[f"state:{part}"])
    assert any(name.startswith("private/") for name in after)
    assert not [name for name in after if name.startswith("private/") and name.endswith(":teacher")]


def test_what_existing_clients_keep_is_not_touched_by_later_steps(reference):
    before, after = last_two_snapshots(reference("fedclass-local-head").out)
    existing = memories(before, PLAN.onboarded(2))
    assert sum(name.endswith(":head") for name in existing) >= 6
    assert_same_bits(existing, memories(after, PLAN.onboarded(2)))
