"""Existing clients of any method: they follow what is served, keep what they have, or keep the better of both."""

import pytest
import torch
from conftest import assert_same_bits, comparable, final_tensors, tiny

from pfeddsh.errors import UserError
from pfeddsh.federation.run import resume, run
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms import guard
from pfeddsh.messages import Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.task import Visit

SMALL = {"hidden": 16}
METHODS = {"fedavg": {}, "fedper": {}, "hr": {"codes": 20}, "pefll": SMALL, "fedweit": {}, "fedclass": {}}
PLAN = tiny().plan()


class Images:
    """Forty random images; in each class one colour is brighter, so a model can learn them."""

    def __init__(self, shift=0.0):
        stream = torch.Generator().manual_seed(1)
        labels = torch.arange(40) % 3
        images = torch.randn(40, 3, 32, 32, generator=stream) + 2 * torch.eye(3)[labels][:, :, None, None] + shift
        self.train = self.test = self.held_out = (images.contiguous(memory_format=torch.channels_last), labels)


class Interrupted(Exception):
    pass


class Stop:
    """Ends a run within the rounds of its second step."""

    def event(self, kind, facts):
        if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
            raise Interrupted


# Whole runs


@pytest.mark.parametrize("method", METHODS)
def test_who_keeps_its_model_stays_as_it_was_and_newcomers_notice_nothing(method, reference):
    follow, keep = (reference(method, existing=e, options=METHODS[method]).results for e in ("follow", "keep"))
    assert keep["acc_unguarded"] == follow["acc"], "what they would have if they followed"
    assert keep["ri"] == [None, 0.0, 0.0]
    assert keep["worst_drop"] == 0.0
    assert keep["pa"] == follow["pa"]
    assert keep["accepted"] == [None, None, None]
    assert keep["acc"] != follow["acc"]


@pytest.mark.parametrize("method", ["fedavg", "fedper", "hr"])
def test_a_guarded_client_has_what_it_kept_or_what_it_was_offered(method, reference):
    options = METHODS[method] | {"statistics": "pooled" if method == "hr" else "fresh"}
    guarded, follow, keep = (reference(method, existing=e, options=options) for e in ("guard", "follow", "keep"))
    results = guarded.results
    assert results["acc_unguarded"] == follow.results["acc"]
    assert results["acc"][0] == keep.results["acc"][0]
    for k in PLAN.batch(1):
        assert results["acc"][1][k] in (keep.results["acc"][1][k], follow.results["acc"][1][k])
    assert results["accepted"][0] is None
    assert all(0 <= share <= 1 for share in results["accepted"][1:])
    if method == "fedavg":
        assert any(share > 0 for share in results["accepted"][1:])
    assert results["payload_kib"]["once_down"] > follow.results["payload_kib"]["once_down"], "offers cost bytes"


def test_frozen_makes_no_offers(reference):
    results = reference("fedper", existing="guard", later="frozen").results
    assert results["accepted"] == [None, None, None]
    assert results["ri"] == [None, 0.0, 0.0]


@pytest.mark.parametrize("method", ["fedavg", "hr"])
def test_a_pool_interrupted_and_resumed_guards_the_same_bits(method, reference, tmp_path):
    changes = {"existing": "guard", "hold_out": 0.2, "evidence": "held-out", "options": METHODS[method]}
    whole = reference(method, **changes)
    with pytest.raises(Interrupted):
        run(tiny(method, engine="pool", **changes), tmp_path / "run", [Stop()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole.results)
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(whole.out))


# One client


def trained(task, data, rounds):
    """FedAvg's model after so many visits of one client."""
    made = registry.create("local", {}, task)
    memory = Memory()
    for r in range(rounds):
        _, memory = made.local(Message(), data, memory, Visit(0, 1, r, 0, lr=0.05, batch_size=8))
    return memory["theta"]


@pytest.mark.parametrize("evidence", ["loss", "shifted", "held-out"])
def test_a_better_offer_is_taken_and_a_worse_one_is_not(evidence, task):
    data, visit = Images(), Visit(0, 2, 0, 0, evidence=evidence)
    made = registry.create("fedavg", registry.find("fedavg").options({"statistics": "own"}), task)
    poor, good = (Message({"theta": theta}) for theta in (task.theta0, trained(task, data, 5)))
    for first, second, wanted in ((poor, good, True), (good, poor, False), (good, good, False)):
        _, memory = made.settle(first, data, Memory(), visit)
        _, memory = made.keep(first, data, memory, visit)
        answer, after = made.receive(second, data, memory, visit)
        assert answer.facts["accepted"] is wanted
        assert torch.equal(after["kept"], (second if wanted else first)["theta"])
        fresh = task.model.calibrate(after["kept"], data.train[0])
        assert torch.equal(after["kept_statistics"], fresh), "statistics fit the model that is kept"


def test_an_offer_is_judged_by_what_the_evidence_names():
    """Three images: two that were trained on, one that was set aside; models that know one or the other."""
    trained_on, aside = torch.zeros(2, 3, 8, 8), torch.ones(1, 3, 8, 8)
    examples, held_out = (trained_on, torch.tensor([0, 0])), (aside, torch.tensor([1]))

    def knows_the_trained(images):
        return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)

    def knows_the_other(images):
        return torch.tensor([[0.0, 1.0]]).repeat(len(images), 1)

    for evidence, offer_wins in (("shifted", False), ("loss", True), ("held-out", True)):
        assert guard.prefers(knows_the_trained, knows_the_other, examples, held_out, evidence) is offer_wins


def test_held_out_counts_first_and_weighs_the_loss_among_equals():
    held_out = (torch.zeros(3, 3, 8, 8), torch.tensor([0, 0, 0]))
    two_right_but_sure_of_the_third = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 50.0]])
    one_right = torch.tensor([[1.0, 0.0], [0.0, 0.1], [0.0, 0.1]])

    def taken(current, offered, evidence):
        return guard.prefers(lambda _: current, lambda _: offered, held_out, held_out, evidence)

    assert taken(one_right, two_right_but_sure_of_the_third, "held-out")
    assert not taken(one_right, two_right_but_sure_of_the_third, "loss")
    assert taken(one_right, one_right * torch.tensor([[2.0], [1.0], [1.0]]), "held-out")


def test_shifted_images_move_two_pixels_each_way():
    images = torch.zeros(6, 3, 8, 8)
    images[:, :, 3, 2] = 1.0
    pictures, labels = guard.shifted((images, torch.arange(6)))
    places = {
        label: tuple(picture[0].nonzero()[0].tolist()) for label, picture in zip(labels.tolist(), pictures, strict=True)
    }
    assert places == {0: (5, 2), 1: (1, 2), 2: (3, 4), 3: (3, 0), 4: (5, 2), 5: (1, 2)}


@pytest.mark.parametrize("axis, recognised", [(1, True), (2, False)])
def test_flipped_images_are_evidence_where_the_model_still_recognises_them(axis, recognised):
    """The class is the brighter half, top or bottom or else left or right: flipped, the latter is the other class."""
    labels = torch.arange(8) % 2
    pictures = torch.rand(8, 8, 8, generator=torch.Generator().manual_seed(0))
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        picture.narrow(axis - 1, 4 * label, 4).add_(5)

    def sees_the_half(images):
        return torch.stack([half.sum((1, 2)) for half in images[:, 0].chunk(2, axis)], 1)

    images = pictures[:, None]
    (judged, _), said = guard.judged_by(sees_the_half, (images, labels), (images, labels), "shifted")
    expected, _ = guard.shifted((images.flip(-1) if recognised else images, labels))
    assert torch.equal(judged, expected) and torch.equal(said, sees_the_half(expected))


def test_vectors_of_features_are_judged_as_they_are():
    examples = (torch.arange(8.0).view(2, 4, 1, 1), torch.tensor([0, 1]))
    features, labels = guard.shifted(examples)
    assert torch.equal(features, examples[0]) and torch.equal(labels, examples[1])


def test_a_client_without_a_model_of_its_own_takes_what_comes(task):
    made, data = registry.create("fedavg", {}, task), Images()
    answer, memory = made.receive(Message({"theta": task.theta0}), data, Memory(), Visit(0, 2, 0, 0))
    assert answer.facts["accepted"]
    assert torch.equal(memory["kept"], task.theta0)


# Images that are set aside


def test_every_method_sets_the_same_images_aside():
    whole = Workbench(tiny())
    parts = [Workbench(tiny(method, hold_out=0.25)) for method in ("fedavg", "local")]
    for k in range(PLAN.clients):
        own = whole.shard(k)
        one, other = (bench.shard(k) for bench in parts)
        assert torch.equal(one.held_out[0], other.held_out[0])
        assert torch.equal(one.test[0], own.test[0])
        count = len(own.train[1])
        assert len(one.held_out[1]) == pytest.approx(0.25 * count, abs=1)
        seen = torch.cat([one.train[0], one.held_out[0]]).flatten(1)
        assert len(torch.unique(seen, dim=0)) == len(torch.unique(own.train[0].flatten(1), dim=0))
        assert len(seen) == count
    assert torch.equal(whole.shard(0).held_out[0], whole.shard(0).train[0])


def test_the_control_trains_on_what_is_left(reference):
    assert reference("local", hold_out=0.25).results["pa"] == [0.0, 0.0, 0.0]
    assert reference("local", hold_out=0.25).results["local"] != reference("local").results["local"]


def test_evidence_that_was_not_set_aside_is_a_mistake():
    with pytest.raises(UserError, match=r"evidence = held-out: no images are set aside.*hold_out"):
        tiny(existing="guard", evidence="held-out")
