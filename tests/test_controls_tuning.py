"""Controls that train less, or once more: frozen steps with the head alone, and FedAvg with fine-tuning."""

import pytest
import torch
from conftest import final_tensors, tiny

from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message

LATER = (*tiny().plan().batch(2), *tiny().plan().batch(3))


def at(tensors, client, task):
    """The weights of a newcomer of frozen FedAvg, FedPer or FedRep."""
    own = {name.split(":")[1]: part for name, part in tensors.items() if name.startswith(f"private/{client}:")}
    return own["theta"] if "theta" in own else torch.cat([own["body"], tensors[f"memory/{client}:head"]])


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrep"])
def test_newcomers_of_a_frozen_head_run_train_their_last_layer_and_nothing_else(method, reference, task):
    whole, head = (reference(method, later=later) for later in ("frozen", "frozen-head"))
    assert whole.results["acc"][0] == head.results["acc"][0]
    assert head.results["ri"] == [None, 0.0, 0.0]
    tensors, others = final_tensors(head.out), final_tensors(whole.out)
    body = tensors["state:theta"][task.model.body] if method == "fedavg" else tensors["state:body"]
    visited = [k for k in LATER if any(name.startswith(f"private/{k}:") for name in tensors)]
    assert visited
    start = tensors["state:theta"] if method == "fedavg" else task.theta0
    for k in visited:
        assert torch.equal(at(tensors, k, task)[task.model.body], body)
        assert not torch.equal(at(others, k, task)[task.model.body], body)
        assert not torch.equal(at(tensors, k, task)[task.model.head], start[task.model.head])


@pytest.mark.parametrize("method", ["fedselect", "fedweit", "fedclass", "hr"])
def test_a_method_that_cannot_train_its_head_alone_says_so(method):
    with pytest.raises(UserError, match=f"later = frozen-head: {method} has a training of its own"):
        tiny(method, later="frozen-head")


def test_fine_tuning_changes_what_a_client_keeps_and_nothing_that_is_shared(reference):
    plain, tuned = reference("fedavg", existing="keep"), reference("fedavg-finetune")
    before, after = final_tensors(plain.out), final_tensors(tuned.out)
    shared = [name for name in before if ":kept" not in name]
    assert all(torch.equal(before[name], after[name]) for name in shared)
    assert not torch.equal(before["memory/0:kept"], after["memory/0:kept"])
    assert tuned.results["acc_unguarded"] == reference("fedavg").results["acc"]
    assert tuned.results["ri"] == [None, 0.0, 0.0]
    assert sum(tuned.results["acc"][0][k] for k in tiny().plan().batch(1)) > sum(
        plain.results["acc"][0][k] for k in tiny().plan().batch(1)
    )


def test_fine_tuning_is_as_many_gentle_epochs_as_the_settings_say(task):
    moved = []
    for options in ({"finetune": 1}, {"finetune": 3}, {"finetune": 3, "finetune_rate": 0.0}):
        bench = Workbench(tiny("fedavg-finetune", options=options))
        _, memory = bench.run(Call("keep", bench.visit(1, 0, 0), Message({"theta": task.theta0}), Memory()))
        moved.append(float((memory["kept"] - task.theta0).norm()))
        statistics = task.model.calibrate(memory["kept"], bench.shard(0).train[0])
        assert torch.allclose(memory["kept_statistics"], statistics, atol=1e-6)
    assert moved[1] > moved[0] > moved[2] == 0.0


def test_fine_tuning_needs_clients_that_keep_the_result():
    with pytest.raises(UserError, match=r"options\.finetune: .* existing = keep"):
        tiny("fedavg", options={"finetune": 2})
    assert tiny("fedavg", existing="guard", options={"finetune": 2}).options["finetune"] == 2
