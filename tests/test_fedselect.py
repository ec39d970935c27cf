"""FedSelect: which entries are personal, who averages what, and what stays as it was."""

import pytest
import torch
from conftest import assert_same_bits, final_tensors, tiny
from test_methods_basic import Images, last_two_snapshots, memories

from pfeddsh.federation.run import run
from pfeddsh.messages import BadMessage, Memory, Message
from pfeddsh.methods.fedselect import FedSelect, Settings
from pfeddsh.methods.partial import Partial
from pfeddsh.methods.task import Visit

PLAN = tiny().plan()


@pytest.fixture(scope="module")
def method(task):
    return FedSelect(task, Settings())


@pytest.fixture(scope="module")
def visits(method):
    """Eight visits of one client that nobody else disturbs: downloads, uploads and memories."""
    message, memory, seen = method.download(method.init(), [0])[0], Memory(), []
    for round in range(8):
        upload, memory = method.local(message, Images(), memory, Visit(0, 1, round, 0, lr=0.02))
        seen.append((message, upload, memory))
        message = method.alone(message, upload)
    return seen


# The mean of partial uploads


def partial_upload(partial, vector, sent, **facts):
    return Message(partial.pack(torch.tensor(vector), torch.tensor(sent)), {"samples": 1, **facts})


def test_the_server_averages_an_entry_over_those_who_share_it_and_else_keeps_its_value():
    partial = Partial(torch.arange(4))
    uploads = [
        partial_upload(partial, [1.0, 2.0, 3.0, 4.0], [True, True, False, False], samples=90),
        partial_upload(partial, [5.0, 6.0, 7.0, 8.0], [True, False, True, False]),
    ]
    assert partial.mean(torch.tensor([9.0, 9.0, 9.0, 9.0]), uploads).tolist() == [3.0, 2.0, 7.0, 9.0]


def test_the_mean_of_equal_entries_is_that_entry_to_the_bit(task):
    partial = Partial(torch.arange(len(task.theta0)))
    everything = torch.ones(len(task.theta0), dtype=torch.bool)
    uploads = [Message(partial.pack(task.theta0, everything))] * 3
    assert torch.equal(partial.mean(torch.zeros_like(task.theta0), uploads), task.theta0)


def test_groups_travel_together():
    partial = Partial(torch.tensor([0, 0, 1, 2, 2]))
    upload = partial_upload(partial, [1.0, 2.0, 3.0, 4.0, 5.0], [False, True, True])
    assert upload["values"].tolist() == [3.0, 4.0, 5.0]
    assert partial.entries(upload).tolist() == [False, False, True, True, True]
    partial.check(upload)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.pop("sent"),
        lambda t: t.pop("values"),
        lambda t: t.update(sent=t["sent"][:-1]),
        lambda t: t.update(sent=t["sent"].float()),
        lambda t: t.update(sent=torch.zeros_like(t["sent"])),
        lambda t: t.update(values=t["values"][:-1]),
        lambda t: t.update(values=t["values"].double()),
        lambda t: t.update(values=t["values"] * float("nan")),
        lambda t: t.update(more=t["values"]),
    ],
)
def test_a_malformed_upload_is_refused(spoil, method, visits):
    download, upload, _ = visits[0]
    method.check_upload(download, upload)
    spoiled = Message(dict(upload.tensors), upload.facts)
    spoil(spoiled.tensors)
    with pytest.raises(BadMessage):
        method.check_upload(download, spoiled)


# Masks


def test_masks_grow_at_every_third_visit_only(visits):
    shares = [int(memory["personal"].sum()) for _, _, memory in visits]
    assert shares[:2] == [0, 0]
    assert 0 < shares[2] == shares[3] == shares[4] < shares[5] == shares[6] == shares[7]
    assert (visits[2][2]["personal"] <= visits[5][2]["personal"]).all()


def test_masks_stay_under_the_bound_and_biases_are_always_shared(task):
    method = FedSelect(task, Settings(growth=0.25, bound=0.4))
    personal = torch.zeros(task.model.size, dtype=torch.bool)
    for seed in range(5):
        change = torch.randn(task.model.size, generator=torch.Generator().manual_seed(seed))
        personal = method.grown(personal, change)
    counts = {name: int(personal[place].sum()) for name, place in task.model.slices.items()}
    sizes = {name: place.stop - place.start for name, place in task.model.slices.items()}
    assert all(count == 0 for name, count in counts.items() if name.endswith("bias"))
    assert all(counts[name] == int(0.4 * size) for name, size in sizes.items() if name.endswith("weight"))


def test_the_entries_that_changed_most_become_personal(task):
    method = FedSelect(task, Settings(growth=0.1))
    place = task.model.slices["fc1.weight"]
    change = torch.zeros(task.model.size)
    most = place.start + torch.arange(4800) * 10
    change[most] = -1.0
    assert torch.equal(method.grown(change > 0, change)[place].nonzero().flatten() + place.start, most)


def test_an_upload_carries_what_is_shared_and_a_bit_for_every_entry(task, visits):
    for (_, upload, _), (_, _, before) in zip(visits[1:], visits, strict=False):
        shared = task.model.size - int(before["personal"].sum())
        assert upload.nbytes == 4 * shared + (task.model.size + 7) // 8
    assert visits[3][1].nbytes < visits[0][1].nbytes


def test_personal_and_shared_entries_both_train_and_personal_ones_are_not_overwritten(method, visits):
    download, _, memory = visits[2]
    personal = memory["personal"]
    _, after = method.local(download, Images(), memory, Visit(0, 1, 3, 0, lr=0.02))
    for entries in (personal, ~personal):
        assert not torch.equal(after["own"][entries], method.weights(download, memory)[entries])
    other = Message({"theta": torch.zeros_like(download["theta"])})
    assert torch.equal(method.weights(other, memory), memory["own"] * personal)


@pytest.mark.parametrize("split", [False, True])
def test_either_setting_of_split_epoch_trains_both_kinds(split, task, visits):
    method = FedSelect(task, Settings(split_epoch=split))
    download, _, memory = visits[2]
    _, after = method.local(download, Images(), memory, Visit(0, 1, 3, 0, lr=0.02, batch_size=16))
    moved = after["own"] != method.weights(download, memory)
    assert moved[memory["personal"]].any() and moved[~memory["personal"]].any()


# Whole runs


def test_what_existing_clients_keep_never_changes_while_the_shared_entries_learn(reference):
    before, after = last_two_snapshots(reference("fedselect", rounds_first=10).out)
    existing = memories(before, PLAN.onboarded(2))
    assert any(tensor.any() for name, tensor in existing.items() if name.endswith(":personal"))
    assert_same_bits(existing, memories(after, PLAN.onboarded(2)))
    assert not torch.equal(before["state:theta"], after["state:theta"])


def test_frozen_gives_no_retroactive_change(reference):
    frozen = reference("fedselect", later="frozen")
    assert frozen.results["ri"] == [None, 0.0, 0.0]
    before, after = last_two_snapshots(frozen.out)
    assert torch.equal(before["state:theta"], after["state:theta"])
    own = [tensor for name, tensor in after.items() if name.startswith("private/")]
    assert own and all(not torch.equal(tensor, after["state:theta"]) for tensor in own)


def test_a_learning_rate_of_zero_leaves_the_state_unchanged(task, tmp_path):
    results = run(tiny("fedselect", lr=0.0, schedule="6+2"), tmp_path / "run")
    assert torch.equal(final_tensors(tmp_path / "run")["state:theta"], task.theta0)
    assert results["ri"] == [None, 0.0]
