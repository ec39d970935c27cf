"""What existing sites are asked before a step is closed: what may leave, what gets in, and who does not answer."""

import json

import pytest
import torch
from conftest import assert_same_bits
from live_sites import FakeNetwork, federation, final_state, run_in_process, shards, simulate, tampered

from pfeddsh.live.coordinator.departures import Departures
from pfeddsh.live.coordinator.door import Door
from pfeddsh.live.coordinator.roster import Member
from pfeddsh.live.site import departure
from pfeddsh.live.site.policy import Policy
from pfeddsh.live.site.release import release
from pfeddsh.live.transport import TransportError
from pfeddsh.live.wire import FAREWELL
from pfeddsh.mechanisms import common
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
    assert release(Policy(measures=measures), "judge", Message(), reply, 10).facts == facts


QUICK = {"rounds_first": 1, "rounds_later": 1, "batch_min": 4, "round_timeout": 3}
LEAST = 0.25  # a newcomer beside four


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 5)


def town(folder, paths, asked=lambda name, body: body):
    """Four sites, and a fifth once they train; `asked` sees what each of the four says of the fifth's step."""
    network = FakeNetwork()
    known = [k for k in range(5) if k < 4 or (folder / "site-4").exists()]
    for k in known:
        network.add(100 + k, folder / f"site-{k}", paths[k])

    def fault(header, name, body):
        if header["job"] == "local" and 104 not in network.sites:
            network.add(104, folder / "site-4", paths[4])
        return asked(name, body) if header["job"] == "judge" else body

    network.fault = fault
    return network


def says(share):
    return lambda message: message.facts.update(share=share)


def followed(server):
    """How far the version followed the step, by the coordinator's own events."""
    events = [json.loads(line) for line in (server / "events.jsonl").read_text().splitlines()]
    return [event["share"] for event in events if event["event"] == "version"]


def test_a_liar_does_not_decide_and_nobody_tells_a_model_instead_of_a_number(tmp_path, paths):
    federation(tmp_path / "server", **QUICK)
    told = {"site-0": says(1.0), "site-1": lambda message: message.tensors.update(more=torch.zeros(1 << 18))}
    network = town(tmp_path, paths, lambda name, body: tampered(body, told.get(name, says(0.5))))
    run_in_process(tmp_path / "server", network)
    assert followed(tmp_path / "server") == [0.5]
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [(one["client"], "bytes" in one["reason"]) for one in status["refused"]] == [("site-1", True)]


def test_who_leaves_or_is_silent_when_asked_stops_nothing_and_a_liar_does_not_decide_for_them(
    tmp_path, paths, monkeypatch
):
    monkeypatch.setattr(common, "VOTERS", 1)
    federation(tmp_path / "server", **QUICK)

    def asked(name, body):
        if name == "site-1" and 200 not in network.sites:
            network.remove(101)
            departure.begin(tmp_path / name)
            network.add(200, tmp_path / name, paths[1])
        return tampered(body, says(1.0)) if name == "site-0" else None

    network = town(tmp_path, paths, asked)
    looks = []
    pull = network.pull

    def hesitating(messages):  # the last confirmation takes a few looks, and the coordinator has nothing else to do
        farewells = [message for message in messages if FAREWELL.encode() in network._sent[message][1]]
        looks.extend(farewells)
        return pull([message for message in messages if message not in farewells or len(looks) > 3])

    monkeypatch.setattr(network, "pull", hesitating)
    monkeypatch.setattr(  # however long the last confirmation takes
        "pfeddsh.live.coordinator.federation.Departures", lambda one, two, three, _: Departures(one, two, three, 60.0)
    )
    run_in_process(tmp_path / "server", network)
    assert followed(tmp_path / "server") == [LEAST]
    assert departure.receipt(tmp_path / "site-1")["known"]
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [client["state"] for client in status["clients"]] == ["served", "left", "served", "served", "served"]


def test_a_coordinator_killed_while_it_asks_continues_to_the_same_bits(tmp_path, paths):
    config = federation(tmp_path / "server", **QUICK | {"round_timeout": 60})

    def killed(name, body):
        if name != "site-2":
            return body
        return network.stop()

    network = town(tmp_path, paths, killed)
    with pytest.raises((TransportError, AssertionError)):
        run_in_process(tmp_path / "server", network)
    assert not followed(tmp_path / "server")
    run_in_process(tmp_path / "server", town(tmp_path, paths))
    simulate(config, [(0, 1, 2, 3), (4,)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
