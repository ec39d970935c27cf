"""How often clients are sampled, counted from the rounds themselves."""

import pytest
from fabricate import results

from pfeddsh.configure import build
from pfeddsh.results.visits import MOST, repeated, visits


def plan(**changes):
    return build({"dataset": "digits", "method": "fedavg", "schedule": "6+2x3", "seed": 4, **changes}).plan()


def test_every_place_in_a_cohort_is_a_visit_of_one_client():
    drawn = plan(sample_fraction=0.5, rounds_first=7, rounds_later=5)
    found = visits(drawn)
    assert [sum(found[k] for k in drawn.batch(step)) for step in drawn.steps] == [7 * 3, 5 * 2, 5 * 2]
    for step in drawn.steps:
        assert [found[k] for k in drawn.batch(step)] == [len(drawn.visits(step, k)) for k in drawn.batch(step)]


def test_only_visits_in_a_clients_own_step_count():
    found = visits(plan(method="joint", sample_fraction=1.0, rounds_first=3, rounds_later=2))
    assert sorted(found) == [2] * 6 + [3] * 6, "existing clients train on under this oracle, but not as newcomers"


def test_an_old_run_tells_its_visits_by_its_protocol():
    old = results("fedper", "8+2x3", 5)
    facts = old["schedule"], old["seed"], old["batch"]
    expected = visits(build({"dataset": "cifar10", "method": "fedper", "schedule": "8+2x3", "seed": 5}).plan())
    assert repeated(*facts, old["protocol"]) == expected
    assert repeated(*facts, None) is None
    assert repeated(old["schedule"], old["seed"], old["batch"][::-1], old["protocol"]) is None, "other clients"


@pytest.mark.parametrize(
    "wrong",
    [{"rounds_first": MOST + 1}, {"rounds_later": 0}, {"sample_fraction": 2.0}, {"rounds_first": "many"},
     {"sample_fraction": None}, {"rounds_later": float("inf")}],
    ids=str,
)  # fmt: skip
def test_a_protocol_nobody_can_have_run_is_not_drawn_again(wrong):
    old = results("fedper", "8+2x3", 5)
    assert repeated(old["schedule"], old["seed"], old["batch"], old["protocol"] | wrong) is None
