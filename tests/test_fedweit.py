"""FedWeIT: the decomposition and its gradient, what travels, and the degenerate case that is FedPer."""

import pytest
import torch
from conftest import assert_same_bits, final_tensors, tiny
from test_methods_basic import Images, last_two_snapshots, memories

from pfeddsh.messages import BadMessage, Memory, Message
from pfeddsh.methods.fedper import FedPer
from pfeddsh.methods.fedweit import FedWeIT, Settings
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task, Visit
from pfeddsh.models.fast import CHANNELS, GATES
from pfeddsh.models.training import cross_entropy

PLAN = tiny().plan()


class FrozenParts(FedWeIT):
    """Own part and mask do not train."""

    def gradients(self, *args):
        return {n: torch.zeros_like(g) if n in ("adaptive", "mask") else g for n, g in super().gradients(*args).items()}


def shared_weights(method, theta):
    return torch.cat([theta[method.model.slices[f"{layer}.weight"]] for layer in method.model.channels.layers])


def test_open_masks_and_no_own_part_make_it_body_averaging(task):
    """One client over three visits to the bit, then two clients whose base is the mean of FedPer's bodies."""
    weit = FrozenParts(task, Settings(decay=0.0, withheld=0.0, optimiser="sgd"))
    per = FedPer(task, Options())
    a, b = weit.init(), per.init()
    start = Memory({"mask": torch.full((GATES,), float("inf")), "adaptive": torch.zeros_like(a["base"])})
    mine, theirs = start, Memory()
    for round in range(3):
        visit = Visit(0, 1, round, 0, lr=0.05)
        upload, mine = weit.local(weit.download(a, [0])[0], Images(), mine, visit)
        weit.aggregate(a, {0: upload})
        upload, theirs = per.local(per.download(b, [0])[0], Images(), theirs, visit)
        per.aggregate(b, {0: upload})
        assert torch.equal(a["base"], shared_weights(weit, b["body"]))
        assert torch.equal(weit.weights(weit.personal(a, [0])[0], mine), per.weights(per.personal(b, [0])[0], theirs))
    assert not torch.equal(a["base"], weit.init()["base"])
    a, b = weit.init(), per.init()
    for method, state, memory in ((weit, a, start), (per, b, Memory())):
        sent = method.download(state, [0, 1])
        uploads = {k: method.local(sent[k], Images(), memory, Visit(0, 1, 0, k, lr=0.05))[0] for k in sent}
        method.aggregate(state, uploads)
    assert torch.allclose(a["base"], shared_weights(weit, b["body"]), atol=1e-7)


def test_the_gradients_of_all_parts_are_those_of_autograd(task):
    task = Task(task.model, task.theta0.double(), 0)
    method = FedWeIT(task, Settings(sparsity=1e-2, decay=1e-2))
    stream = torch.Generator().manual_seed(0)
    size = len(method.channel)
    knowledge = 0.02 * torch.randn(3, size, generator=stream, dtype=torch.float64)
    parts = {
        "base": shared_weights(method, task.theta0),
        "mask": torch.randn(GATES, generator=stream, dtype=torch.float64),
        "adaptive": 0.02 * torch.randn(size, generator=stream, dtype=torch.float64),
        "alpha": torch.randn(3, len(CHANNELS), generator=stream, dtype=torch.float64),
        "own": method.parts(Message({"base": shared_weights(method, task.theta0)}), Memory())[0]["own"],
    }
    images, labels = Images().train
    images = images.double()
    leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
    loss = torch.nn.functional.cross_entropy(task.model.forward(method.compose(leaves, knowledge), images), labels)
    squares = sum(leaves[name].square().sum() for name in ("base", "mask", "adaptive"))
    (loss + 1e-2 * leaves["adaptive"].abs().sum() + 1e-2 / 2 * squares).backward()
    logits = method.trainer.forward(method.compose(parts, knowledge), images)
    gradient = method.trainer.backward(cross_entropy(logits, labels)[1])
    for name, value in method.gradients(parts, knowledge, gradient, 1).items():
        assert torch.allclose(value, leaves[name].grad, atol=1e-9), name
    later = method.gradients(parts, knowledge, gradient, 2)
    assert torch.allclose(later["base"] + 1e-2 * parts["base"], leaves["base"].grad, atol=1e-9)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_visits_lower_the_loss(optimiser, task):
    method = FedWeIT(task, Settings(optimiser=optimiser))
    state, memory, losses = method.init(), Memory(), []
    for round in range(10):
        visit = Visit(0, 1, round, 0, lr=0.1, batch_size=20)
        upload, memory = method.local(method.download(state, [0])[0], Images(), memory, visit)
        method.aggregate(state, {0: upload})
        losses.append(upload.facts["loss"])
    assert losses[-1] < 0.8 * losses[0]


# What travels


def test_the_channels_whose_masks_are_lowest_stay_at_home(task):
    """By the mask itself, not by the size of its logit: a channel that is nearly closed is not worth sending."""
    method = FedWeIT(task, Settings())
    mask = torch.zeros(GATES)
    mask[0], mask[1], mask[6:10] = -5.0, 5.0, -1.0
    sent = method.sent(mask).split(CHANNELS)
    assert [int(layer.sum()) for layer in sent] == [5, 12, 84, 59]
    assert sent[0].tolist() == [False, True, True, True, True, True]
    assert not sent[1][:4].any()


def test_the_server_keeps_its_value_where_nobody_sent_one(task):
    method = FedWeIT(task, Settings())
    state = method.init()
    upload, memory = method.local(method.download(state, [0])[0], Images(), Memory(), Visit(0, 1, 0, 0, lr=0.1))
    method.check_upload(method.download(state, [0])[0], upload)
    sent = method.sent(memory["mask"])[method.channel]
    start = state["base"].clone()
    method.aggregate(state, {0: upload})
    assert 0 < sent.sum() < len(sent)
    assert torch.equal(state["base"][~sent], start[~sent])
    assert torch.equal(state["base"][sent], upload["values"])
    assert (state["base"][sent] != start[sent]).float().mean() > 0.9
    with pytest.raises(BadMessage):
        method.check_upload(Message(), Message({**upload.tensors, "values": start}, upload.facts))


def test_the_knowledge_comes_once_and_newcomers_keep_it(reference):
    finished = reference("fedweit")
    kept, visited = {}, set()
    base = 4 * len(FedWeIT(Task.create(10, 0), Settings()).channel)
    for event in finished.events("round"):
        new = set(event["clients"]) - visited
        kept.setdefault(event["step"], set()).update(new)
        borrowed = min(5, len(kept.get(event["step"] - 1, ())))
        assert event["down"] == base * (len(event["clients"]) + borrowed * len(new))
        visited |= new
    assert min(len(clients) for clients in kept.values()) > 0
    tensors = final_tensors(finished.out)
    owners = {int(name.split(":")[0][7:]) for name in tensors if name.startswith("memory/") and "knowledge" in name}
    assert owners == kept[2] | kept[3]
    for k in owners:
        assert tensors[f"memory/{k}:alpha"].abs().min() > 0


def test_the_knowledge_is_own_parts_of_the_step_before_without_what_is_nearly_zero(reference):
    tensors = final_tensors(reference("fedweit", schedule="6").out)
    own = [tensor for name, tensor in tensors.items() if name.endswith(":adaptive")]
    sparse = [tensor * (tensor.abs() > 1e-3) for tensor in own]
    assert len(tensors["state:knowledge"]) == min(5, len(own))
    assert all(any(torch.equal(row, part) for part in sparse) for row in tensors["state:knowledge"])
    assert any(not torch.equal(a, b) for a, b in zip(own, sparse, strict=True))


# Whole runs


def test_what_existing_clients_keep_is_not_touched_by_later_steps(reference):
    before, after = last_two_snapshots(reference("fedweit").out)
    existing = memories(before, PLAN.onboarded(2))
    assert sum(name.endswith(":adaptive") for name in existing) >= 6
    assert_same_bits(existing, memories(after, PLAN.onboarded(2)))
    assert not torch.equal(before["state:base"], after["state:base"])


def test_frozen_gives_no_retroactive_change(reference):
    frozen = reference("fedweit", later="frozen")
    assert frozen.results["ri"] == [None, 0.0, 0.0]
    before, after = last_two_snapshots(frozen.out)
    assert torch.equal(before["state:base"], after["state:base"])
    own = [tensor for name, tensor in after.items() if name.startswith("private/")]
    assert own and all(tensor.shape == after["state:base"].shape for tensor in own)
