"""Nothing a site does, or fails to do, stops the federation: faults seen in reviews, each as a test."""

import json
import shutil

import pytest
import torch
from conftest import assert_same_bits
from live_sites import FakeNetwork, federation, final_state, run_in_process, shards, simulate, tampered

from pfeddsh.errors import UserError
from pfeddsh.federation import serving
from pfeddsh.live.coordinator import admission
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.site.policy import OPEN, Policy
from pfeddsh.live.transport import TransportError
from pfeddsh.live.wire import decode, encode
from pfeddsh.messages import Message, by_client
from pfeddsh.models.lenet import LeNet
from pfeddsh.storage.checkpoint import Checkpoints

QUICK = {"rounds_first": 2, "rounds_later": 2, "batch_min": 1, "offline_after": 0.2, "abandon_after": 0.6}
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 3)


def without_reports(state):
    """All but the pooled statistics: whoever was gone when the step ended has not told its own."""
    return {name: tensor for name, tensor in state.items() if name != "state:statistics"}


class Town:
    """Sites that come and go as `happen` says, which hears of every call: job, step, round, name."""

    def __init__(self, folder, paths):
        self.folder, self.paths, self.network = folder, paths, FakeNetwork()
        self.network.fault = self._fault

    def come(self, k):
        if 100 + k not in self.network.sites:
            self.network.add(100 + k, self.folder / f"site-{k}", self.paths[k])

    def go(self, k):
        self.network.remove(100 + k)

    def happen(self, job, step, round, name):
        """Whether the reply arrives."""
        return True

    def _fault(self, header, name, body):
        return body if self.happen(header["job"], header["visit"]["step"], header["visit"]["round"], name) else None

    def run(self):
        run_in_process(self.folder / "server", self.network)
        read = [json.loads((self.folder / "server" / f"{name}.json").read_text()) for name in ("results", "status")]
        return *read, json.loads((self.folder / "server" / "clients.json").read_text())


@pytest.mark.parametrize("job", ["card", "local"])
def test_a_lone_newcomer_that_leaves_is_let_go_and_the_next_batch_goes_on(tmp_path, paths, job):
    """At its card nothing has begun; in mid-step the step is closed without it. Back again, it is a newcomer."""
    federation(tmp_path / "server", steps=3 if job == "local" else 2, **QUICK)
    town = Town(tmp_path, paths)
    left = []

    def happen(what, step, round, name):
        if what == "score" and step == 1:
            town.come(1)
        if (what, step, name) == (job, 2, "site-1") and not left:
            left.append(name)
            town.go(1)
            town.come(2) if job == "card" else None
            return False
        if job == "local" and left and what == "receive" and step == 2:
            town.come(1)  # its step is closed; it comes back
        return True

    town.happen = happen
    town.come(0)
    results, status, known = town.run()
    batches = [(c["name"], c["batch"]) for c in known["clients"] if not c["released"]]
    if job == "card":
        assert batches == [("site-0", 1), ("site-2", 2)]
        assert [waiting["name"] for waiting in known["queue"]] == ["site-1"]
    else:
        assert batches == [("site-0", 1), ("site-1", 3)]
        assert "step 2 was abandoned in round 1" in status["notices"][0]["text"]
        assert "site-1 left before it had trained" in status["notices"][0]["text"]
    assert results["steps"] == len(results["acc"]) and status["phase"] == "done"


def test_a_step_that_is_abandoned_keeps_what_it_had_through_a_restart(tmp_path, paths, monkeypatch):
    config = federation(tmp_path / "server", steps=1, **QUICK | {"rounds_first": 4})
    town = Town(tmp_path, paths)

    def happen(what, step, round, name):
        if (what, round) == ("local", 2):
            town.go(0)
            return False
        return True

    town.happen = happen
    town.come(0)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Checkpoints, "snapshot", lambda self, moment, parts: 1 / 0)  # killed before the step is on disk
        town.run()
    _, status, known = town.run()  # the journal leads to the same end
    assert "abandoned in round 3" in status["notices"][-1]["text"] and known["clients"][0]["released"] is False
    simulate(config, [(0,)], paths, tmp_path / "simulated", absent={(1, 2, 0), (1, 3, 0)})
    state, wanted = (final_state(path) for path in (tmp_path / "server" / "state", tmp_path / "simulated"))
    assert_same_bits(without_reports(state), without_reports(wanted))


def test_a_key_revoked_in_mid_step_takes_no_further_part(tmp_path, paths, monkeypatch):
    config = federation(tmp_path / "server", steps=1, **QUICK | {"batch_min": 2, "rounds_first": 3})
    town, gone = Town(tmp_path, paths), set()
    monkeypatch.setattr(StatusFile, "revoked", lambda self: gone)

    def happen(what, step, round, name):
        if (what, round, name) == ("local", 1, "site-1"):
            gone.add("key of site-1")
            town.go(1)
            return False
        return True

    town.happen = happen
    town.come(0), town.come(1)
    _, status, _ = town.run()
    assert [client["state"] for client in status["clients"]] == ["served", "revoked"]
    simulate(config, [(0, 1)], paths, tmp_path / "simulated", absent={(1, 1, 1), (1, 2, 1)})
    live, simulated_state = (final_state(path) for path in (tmp_path / "server" / "state", tmp_path / "simulated"))
    assert_same_bits(without_reports(live), without_reports(simulated_state))


def lying(change):
    return lambda body: tampered(body, change)


def facts(**told):
    return lying(lambda message: message.facts.update(told))


def tensor(name, value):
    return lying(lambda message: message.tensors.update({name: value(message[name])}))


def deep_header(body):
    return len(DEEP).to_bytes(4, "big") + DEEP + body


def deep_facts(body):
    header, message = decode(body)
    plain = encode(header, Message(message.tensors, {"deep": 0}))
    return plain.replace(b'{\\"deep\\": 0}', b"[" * len(b'{\\"deep\\": 0}'))


LIES = {  # what a client sends instead, by job and round, and what is said of it
    ("local", 0): (deep_header, "nested too deep"),
    ("local", 1): (tensor("delta", lambda delta: delta * 1e12), "norm"),
    ("local", 2): (facts(samples=10**9), "samples is 1000000000"),
    ("local", 3): (deep_facts, "not a readable record"),
    ("local", 4): (facts(samples=10**400), "samples is int"),
    ("settle", 0): (tensor("statistics", lambda told: told - 1e3), "negative variance"),
    ("score", 0): (facts(count=10**400), "count is int"),
}


def test_whatever_a_client_sends_the_others_go_on_as_if_it_were_absent(tmp_path, paths):
    """Statistics are each client's own here: of those that are pooled, one that lies to the end has no part."""
    changes = QUICK | {"batch_min": 3, "rounds_first": 5, "options": {"statistics": "fresh"}}
    config = federation(tmp_path / "server", steps=1, **changes, quarantine_after=9)
    town = Town(tmp_path, paths)
    for k in range(3):
        town.come(k)

    def fault(header, name, body):
        lie = LIES.get((header["job"], header["visit"]["round"])) if name == "site-1" else None
        return lie[0](body) if lie else body

    town.network.fault = fault
    results, status, _ = town.run()
    absent = {(1, round, 1) for job, round in LIES if job == "local"}
    simulated = simulate(config, [(0, 1, 2)], paths, tmp_path / "simulated", absent=absent)
    live, simulated_state = (final_state(path) for path in (tmp_path / "server" / "state", tmp_path / "simulated"))
    assert_same_bits(without_reports(live), without_reports(simulated_state))
    assert results["acc"][0] == [simulated.ledger.acc[0][0], None, simulated.ledger.acc[0][2]]
    said = [entry["reason"] for entry in status["refused"]]
    for _, reason in LIES.values():
        assert any(reason in one for one in said), (reason, said)


HUGE = tensor("statistics", lambda told: torch.full_like(told, 9e5))
WORST = tensor("statistics", lambda told: torch.full_like(told, 100.0))  # that the door lets in


@pytest.mark.parametrize("lie, policy", [(HUGE, OPEN), (WORST, OPEN), (WORST, Policy())])
def test_one_false_report_does_not_set_the_statistics_that_all_are_served(tmp_path, paths, lie, policy):
    """Two others tell theirs: the median is theirs. They withhold them, as is the default: nothing is pooled."""
    federation(tmp_path / "server", steps=1, **QUICK | {"batch_min": 3, "rounds_first": 1})
    town = Town(tmp_path, paths)
    for k in range(3):
        town.come(k)
        town.network.sites[100 + k].policy = OPEN if k == 1 else policy
    told = {}

    def fault(header, name, body):
        if header["job"] != "settle":
            return body
        told[name] = decode(body)[1].tensors.get("statistics")
        return lie(body) if name == "site-1" else body

    town.network.fault = fault
    _, status, _ = town.run()
    state = final_state(tmp_path / "server" / "state")
    refused = [entry["reason"] for entry in status["refused"]]
    if lie is HUGE:
        assert len(refused) == 1 and "beyond 100" in refused[0] and "state:statistics" not in state
    elif policy is OPEN:
        honest = torch.stack([told["site-0"], told["site-2"]])
        means = slice(LeNet(10).norms[0])
        assert (state["state:statistics"][means] >= honest.min(0).values[means]).all()
        assert (state["state:statistics"][means] <= honest.max(0).values[means]).all()
        assert state["state:statistics"].max() < 100
    else:
        assert "state:statistics" not in state


CARDS = {
    "negative share": lambda h: torch.cat([h[:1] - 1, h[1:2] + 1, h[2:]]),
    "sum to one": lambda h: h * 0,
    "not finite": lambda h: h * float("nan"),
}


@pytest.mark.parametrize("reason", CARDS)
def test_a_card_that_means_nothing_is_refused(tmp_path, paths, reason):
    few = QUICK | {"batch_min": 2, "rounds_first": 1, "options": {"hidden": 16}}
    federation(tmp_path / "server", steps=1, method="pfeddsh-hyper", **few)
    town = Town(tmp_path, paths)
    town.come(0), town.come(1)
    liar = tensor("histogram", CARDS[reason])
    town.network.fault = lambda header, name, body: liar(body) if (header["job"], name) == ("card", "site-1") else body
    _, status, _ = town.run()
    assert reason in status["refused"][0]["reason"] and status["clients"][1]["state"] == "quarantined"


HELLOS = {
    "deep": deep_header,
    "large": lambda body: body + bytes(1 << 17),
    "count": facts(train=-1),
    "huge": facts(train=10**400),
    "truth": facts(train=True),
    "nameless": facts(name=None),
    "key": facts(key=["a"]),
    "nothing": lambda body: b"",
}


def test_an_introduction_that_means_nothing_is_refused_and_stops_nobody(tmp_path, paths, monkeypatch):
    monkeypatch.setattr(admission, "AGAIN", 3600.0)  # each is heard once
    federation(tmp_path / "server", steps=1, **QUICK | {"rounds_first": 1, "batch_wait": 1.0, "batch_min": 9})
    network = FakeNetwork()
    for node, name in enumerate([*HELLOS, "site-0"]):
        network.add(node, tmp_path / name, paths[0])
    network.fault = lambda header, name, body: (
        HELLOS[name](body) if header["job"] == "hello" and name in HELLOS else body
    )
    run_in_process(tmp_path / "server", network)
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [client["name"] for client in status["clients"]] == ["site-0"]
    refused = [entry for entry in status["refused"] if "introduction refused" in entry["reason"]]
    assert len(refused) == len(HELLOS)


def test_how_newcomers_are_served_first_is_recorded_of_all_windows(tmp_path, paths, monkeypatch):
    monkeypatch.setattr(serving, "WINDOW", 1)
    federation(tmp_path / "server", steps=1, **QUICK | {"batch_min": 3})
    town = Town(tmp_path, paths)
    for k in range(3):
        town.come(k)

    def happen(job, step, round, name):
        if job == "local":
            raise ConnectionResetError("killed")
        return True

    town.happen = happen
    with pytest.raises(TransportError):
        town.run()
    kept = Checkpoints(tmp_path / "server" / "state", strict=True).recorded((1, 0))
    assert sorted(by_client(kept, "score")) == [0, 1, 2]


def test_a_state_that_is_gone_is_not_begun_anew(tmp_path, paths):
    federation(tmp_path / "server", steps=1, **QUICK)
    town = Town(tmp_path, paths)
    town.come(0)
    town.run()
    shutil.rmtree(tmp_path / "server" / "state")
    with pytest.raises(UserError, match="restore both from a backup"):
        town.run()


def test_two_sites_with_one_key_are_one_client(tmp_path, paths):
    """A copied folder, started twice. With TLS Flower turns the second away; without, whoever spoke last counts."""
    federation(tmp_path / "server", steps=2, **QUICK)
    town = Town(tmp_path, paths)
    town.come(0)
    twin = town.network.add(200, tmp_path / "twin", paths[0], name="site-0")
    town.happen = lambda job, step, round, name: (job, step) != ("score", 1) or town.come(1) is None
    results, status, known = town.run()
    assert twin.key == "key of site-0"
    assert [client["name"] for client in known["clients"]] == ["site-0", "site-1"]
    assert results["clients"] == 2 and status["phase"] == "done"
