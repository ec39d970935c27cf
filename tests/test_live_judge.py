"""The question that existing sites are asked before a step is closed: what may leave a site, and what gets in."""

import pytest

from pfeddsh.live.coordinator.door import Door
from pfeddsh.live.coordinator.roster import Member
from pfeddsh.live.site.policy import Policy
from pfeddsh.messages import BadMessage, Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.task import Task


@pytest.fixture(scope="module")
def door():
    return Door(registry.create("pfeddsh", {}, Task.create(3, 0)), norm_limit=10.0)


def told(door, facts):
    return door.admit("judge", Member(0, "key", "site", 1), Message(), Message(facts=facts)).facts


def test_a_share_gets_in_and_nothing_else(door):
    assert told(door, {"share": 0.25, "loss": 3.0}) == {"share": 0.25}
    assert told(door, {}) == {}, "its policy may withhold it"


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), 10**400, "0.5", True, None, [0.5]])
def test_anything_but_a_share_is_its_senders_refusal(door, share):
    with pytest.raises(BadMessage, match="share"):
        told(door, {"share": share})


@pytest.mark.parametrize("least", [-0.1, 1.5, float("nan"), "0.5", None])
def test_a_site_refuses_a_question_that_makes_no_sense(least):
    method = registry.create("pfeddsh", {}, Task.create(3, 0))
    with pytest.raises(BadMessage, match="least share"):
        method.judge(Message(facts={"least": least}), None, Memory(), None)


@pytest.mark.parametrize(("measures", "facts"), [(True, {"share": 0.5}), (False, {})])
def test_a_site_that_lets_no_measurements_leave_does_not_answer(measures, facts):
    reply = Message(facts={"share": 0.5})
    assert Policy(measures=measures).release("judge", Message(), reply, 10).facts == facts
