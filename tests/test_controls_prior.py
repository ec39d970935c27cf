"""The label prior as an option of plain methods, and statistics taken anew."""

import pytest
import torch
from conftest import assert_same_bits, final_tensors

from pfeddsh.mechanisms.prior import RARE, log_prior, own_prior
from pfeddsh.messages import Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.task import Visit

PRIOR = ("fedavg", "fedper", "fedrep", "local")


class Images:
    """Random images with these labels; nothing else is told of a client."""

    def __init__(self, labels):
        stream = torch.Generator().manual_seed(1)
        images = torch.randn(len(labels), 3, 32, 32, generator=stream).contiguous(memory_format=torch.channels_last)
        self.train = self.test = self.held_out = (images, labels)


def method(name, task, **options):
    return registry.create(name, registry.find(name).options(options), task)


def visited(made, data):
    """What one visit uploads and leaves, and how many images are right then."""
    visit = Visit(seed=0, step=1, round=0, client=0, lr=0.05, batch_size=8)
    state = made.init()
    upload, memory = made.local(made.download(state, [0])[0], data, Memory(), visit)
    served = made.alone(made.download(state, [0])[0], upload)
    _, memory = made.settle(served, data, memory, visit)
    return upload, memory, made.score(served, data, memory, visit)[0].facts


@pytest.mark.parametrize("classes", [2, 10, 41, 49, 100, 200])
def test_equal_shares_say_nothing(classes):
    assert torch.equal(own_prior(torch.arange(3 * classes) % classes, classes), torch.zeros(classes))


def test_a_prior_is_the_logarithm_of_the_shares_and_absent_is_not_impossible():
    prior = own_prior(torch.tensor([0, 0, 0, 1]), 4)
    assert prior.tolist() == pytest.approx(torch.tensor([3.0, 1.0, 4 * RARE, 4 * RARE]).log().tolist())
    assert torch.equal(prior, log_prior(torch.tensor([0.75, 0.25, 0.0, 0.0])))


@pytest.mark.parametrize("name", PRIOR)
def test_with_equal_shares_a_prior_changes_no_bit(name, task):
    data = Images(torch.arange(40) % 10)
    plain, told = (visited(method(name, task, prior=prior), data) for prior in (False, True))
    assert_same_bits(plain[0].tensors, told[0].tensors)
    assert_same_bits(plain[1].tensors, told[1].tensors)
    assert (plain[0].facts, plain[2]) == (told[0].facts, told[2])


@pytest.mark.parametrize("name", PRIOR)
def test_a_skewed_client_trains_and_is_served_otherwise(name, task):
    data = Images(torch.arange(40) % 10 // 7)  # two classes, the first far more often
    plain, told = (visited(method(name, task, prior=prior), data) for prior in (False, True))
    assert plain[0].facts["loss"] != told[0].facts["loss"]
    untrained = method("local-prior", task)
    right = untrained.score(Message(), data, Memory(), Visit(0, 1, 0, 0))[0].facts["correct"]["acc"]
    assert right == int((data.train[1] == 0).sum()), "before any training the prior alone decides"


def test_nothing_of_the_prior_travels(task):
    plain, told = (method("fedavg", task, prior=prior) for prior in (False, True))
    assert plain.expected_card().tensors == told.expected_card().tensors == {}
    upload, _, _ = visited(told, Images(torch.zeros(16, dtype=torch.int64)))
    assert upload.tensors.keys() == {"theta"}


@pytest.mark.parametrize("name", ["fedavg", "fedper", "pfedhn"])
def test_fresh_statistics_touch_evaluation_alone(name, reference):
    small = {"hidden": 16} if name == "pfedhn" else {}
    own, fresh = (reference(name, options={**small, "statistics": kind}) for kind in ("own", "fresh"))
    assert_same_bits(final_tensors(own.out), final_tensors(fresh.out))
    assert own.results["acc"][0] == fresh.results["acc"][0], "at the end of its step a client has just taken them"
    assert own.results["acc"][2] != fresh.results["acc"][2]


def test_fresh_statistics_are_those_of_the_model_served_now(task):
    made, data = method("fedavg", task, statistics="fresh"), Images(torch.arange(40) % 10)
    served, old = Message({"theta": task.theta0}), Memory({"statistics": torch.ones(44)})
    fresh = Memory({"statistics": task.model.calibrate(task.theta0, data.train[0])})
    visit = Visit(0, 2, 0, 0)
    by_own = method("fedavg", task, statistics="own").score(served, data, fresh, visit)[0]
    assert made.score(served, data, old, visit)[0].facts == by_own.facts


def test_blended_statistics_are_the_mean_of_own_and_pooled_ones(task):
    made, data = method("fedavg", task, statistics="blended"), Images(torch.arange(40) % 10)
    own = task.model.calibrate(task.theta0, data.train[0])
    pooled = Message({"theta": task.theta0, "statistics": own + 1})
    assert torch.equal(made.followed(pooled, data, Memory()).statistics, (own + (own + 1)) / 2)
    alone = made.followed(Message({"theta": task.theta0}), data, Memory())
    assert torch.equal(alone.statistics, own), "before any step has ended there is nothing to blend with"


def test_local_only_with_a_prior_is_not_the_control_behind_pa(reference):
    plain, told = reference("local").results, reference("local-prior").results
    assert told["local"] == plain["local"]
    assert told["pa"] != [0.0, 0.0, 0.0]
