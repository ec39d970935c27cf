"""A site leaves: what is its alone is deleted at the coordinator and confirmed; everybody else keeps every bit."""

import json
import sys

import pytest
import torch
from conftest import assert_same_bits
from live_sites import FakeNetwork, federation, final_state, run_in_process, shards, simulate, tampered

from pfeddsh import cli
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator import forget
from pfeddsh.live.coordinator.engine import LiveBench
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.site import departure
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.live.transport import TransportError
from pfeddsh.mechanisms import projection
from pfeddsh.messages import Message
from pfeddsh.methods import registry
from pfeddsh.methods.hyperdsh import HyperDSH
from pfeddsh.methods.task import Task

PAPER = {"hidden": 32, "images": 20, "iterations": 2, "replay": "paper"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 5)


def crowd(tmp_path, paths, who):
    network = FakeNetwork()
    for k in who:
        network.add(100 + k, tmp_path / f"site-{k}", paths[k])
    return network


def departs(network, tmp_path, paths, k, job, at):
    """Site k leaves when somebody is called for this, and sites 3 and 4 join once it is gone."""
    home = tmp_path / f"site-{k}"

    def fault(header, name, body):
        if (header["job"], header["visit"]["step"], header["visit"]["round"]) == (
            job,
            *at,
        ) and 200 not in network.sites:
            network.remove(100 + k)
            departure.begin(home)
            network.add(200, home, paths[k])
        if header["job"] == "farewell" and 103 not in network.sites:
            for other in (3, 4):
                network.add(100 + other, tmp_path / f"site-{other}", paths[other])
        return body

    network.fault = fault


def everything(folder):
    """All that the coordinator has on disk, as bytes."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_site_that_leaves_is_deleted_and_the_others_keep_their_bits(tmp_path, paths):
    unasked = {"ask": False}  # how far to follow a step: one that has left would have had a say
    config = federation(tmp_path / "server", batch_min=2, batch_wait=3600, options=unasked)
    network = crowd(tmp_path, paths, range(3))
    departs(network, tmp_path, paths, 1, "keep", (1, 0))
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0, 1, 2), (3, 4)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    told = departure.receipt(tmp_path / "site-1")
    assert told["known"] and "card" in told["deleted"] and "cannot be undone" in told["stays"]
    assert "superlink.db" in told["stays"] and "nodes forget" in told["stays"]
    known = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert [client["name"] for client in known["clients"]] == ["site-0", "(left)", "site-2", "site-3", "site-4"]
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert all(row[1] is None for row in results["acc"]) and results["local"][1] is None
    assert all(value is not None for k, value in enumerate(results["acc"][1]) if k != 1)
    assert results["refused"]["clients"] == {"1": "left the federation"}
    assert b"key of site-1" not in everything(tmp_path / "server") and b"site-1" not in everything(tmp_path / "server")
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [client["state"] for client in status["clients"]] == ["served", "left", "served", "served", "served"]
    # once more, after the coordinator was started again: confirmed again, nothing changes
    before = final_state(tmp_path / "server" / "state")
    (tmp_path / "site-1" / departure.RECEIPT).unlink()
    again = crowd(tmp_path, paths, (0, 2, 3, 4))
    again.add(300, tmp_path / "site-1", paths[1])
    federation(tmp_path / "server", batch_min=2, batch_wait=3600, steps=3, options=unasked)
    again.fault = lambda header, name, body: (again.stop() if header["job"] == "farewell" else None, body)[1]
    with pytest.raises((TransportError, AssertionError)):
        run_in_process(tmp_path / "server", again, seconds=120)
    assert departure.receipt(tmp_path / "site-1") == told
    assert_same_bits(final_state(tmp_path / "server" / "state"), before)


def test_the_operator_has_a_site_forgotten_that_cannot_ask_itself(tmp_path, paths):
    """It is revoked, say. Notices and refusals that name it go as well; others keep theirs."""
    server = tmp_path / "server"
    federation(server, batch_min=2, batch_wait=3600, steps=1, rounds_first=2, quarantine_after=9)
    network = crowd(tmp_path, paths, range(2))

    def wrong(message):
        message["delta"] = message["delta"] * float("nan")

    network.fault = lambda header, name, body: tampered(body, wrong) if header["job"] == "local" else body
    run_in_process(server, network)
    assert b"site-1" in everything(server)
    with pytest.raises(UserError, match="no site 'site-9'"):
        forget.ask(server, "site-9")
    assert forget.ask(server, "site-1") == ["key of site-1"]
    federation(server, batch_min=2, batch_wait=3600, steps=2, rounds_first=2, rounds_later=1)
    network = crowd(tmp_path, paths, (0, 3, 4))
    run_in_process(server, network)
    assert b"site-1" not in everything(server) and forget.asked(server) == []
    known = json.loads((server / "clients.json").read_text())
    assert [client["name"] for client in known["clients"]] == ["site-0", "(left)", "site-3", "site-4"]


def test_what_is_said_of_a_site_that_leaves_is_not_told_any_more(tmp_path):
    status = StatusFile(tmp_path / "status.json", None, None, None)
    for text in ("north is passed over", "north-west is passed over", "step 2; north left before it had trained"):
        status.notice(text)
    status.refuse("north", "norm 7"), status.refuse("south", "norm 8")
    status.forget("north")
    assert [notice["text"] for notice in status.notices] == ["north-west is passed over"]
    assert [entry["client"] for entry in status.refused] == ["south"]


def test_a_coordinator_killed_while_it_deletes_goes_on_deleting(tmp_path, paths, monkeypatch):
    """In mid-step, with the hypernetwork: card, embedding, key direction, statistics."""
    from pfeddsh.federation.loop import Federation

    federation(
        tmp_path / "server", method="pfeddsh-hyper", options=PAPER, rounds_first=4, steps=1, batch_min=4,
        batch_wait=3600, round_timeout=5, offline_after=0.2,
    )  # fmt: skip
    network = crowd(tmp_path, paths, range(3))
    departs(network, tmp_path, paths, 1, "local", (1, 0))
    network.add(103, tmp_path / "site-3", paths[3])
    plain, slow = network.fault, iter([True] * 20)

    def fault(header, name, body):
        body = plain(header, name, body)
        waits = header["job"] == "local" and name == "site-0" and header["visit"]["round"] == 1
        return None if waits and "gone" not in network.__dict__ and next(slow, False) else body

    network.fault = fault
    real = Federation.rewrite

    def killed(self, moment):
        network.gone = True
        raise ConnectionResetError("killed")

    monkeypatch.setattr(Federation, "rewrite", killed)
    with pytest.raises((TransportError, ConnectionResetError)):
        run_in_process(tmp_path / "server", network)
    known = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert [left["erased"] for left in known["left"].values()] == [False]
    assert departure.receipt(tmp_path / "site-1") is None, "nothing is confirmed that is not done"
    monkeypatch.setattr(Federation, "rewrite", real)
    network.remove(200)
    network.add(201, tmp_path / "site-1", paths[1])
    run_in_process(tmp_path / "server", network)
    assert departure.receipt(tmp_path / "site-1")["known"]
    state = final_state(tmp_path / "server" / "state")
    assert not [
        name for name in state if name.endswith("/1") and not name.startswith(("state:common", "state:trained"))
    ]
    assert {"state:e/0", "state:e/2", "state:statistics/0"} <= state.keys()
    assert state["state:basis"].shape[1] == 3


def test_a_key_direction_that_is_given_back_is_free_and_those_of_others_stay_taken():
    task = Task.create(10, 0)
    options = registry.find("pfeddsh-hyper").options({"hidden": 32})
    method = registry.create("pfeddsh-hyper", options, task)
    assert isinstance(method, HyperDSH)
    state = method.init()
    draw = torch.Generator().manual_seed(0)

    def card():
        return Message({"signature": torch.randn(32, generator=draw), "image": torch.rand(32, generator=draw),
                        "histogram": torch.rand(10, generator=draw).softmax(0)})  # fmt: skip

    method.open_step(state, 1, 1, {k: card() for k in range(4)})
    method.close_step(state, {})
    keys, served = method.keys(state, range(4)), method.personal(state, [0, 2, 3])
    method.forget(state, 1)
    method.forget(state, 1)  # nothing more to do
    assert state["basis"].shape[1] == 3 and "e/1" not in state and "1" not in state.facts["joined"]
    left = projection.energy(state["basis"], keys)
    assert float(left[1]) > 0.01 and float(left[[0, 2, 3]].max()) < 1e-10
    for client, message in method.personal(state, [0, 2, 3]).items():
        assert_same_bits(message.tensors, served[client].tensors)


def test_who_has_left_cannot_join_and_leaving_again_shows_the_confirmation(tmp_path, monkeypatch, capsys):
    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfeddsh", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return end.value.code, " ".join((told.out + told.err).split())

    home = tmp_path / "site"
    home.mkdir()
    SiteConfig(name="site", data=str(tmp_path), insecure=True).save(home)
    departure.begin(home)
    assert "is leaving" in command("join", home)[1]
    departure.confirm(home, {"since": "yesterday", "known": True, "deleted": ["card"], "stays": "the common model"})
    assert "has left" in command("join", home)[1]
    for _ in range(2):
        code, told = command("leave", home)
        assert not code and "deleted at the coordinator: card" in told and "not deleted: the common model" in told
    assert "no site.toml" in command("leave", tmp_path / "elsewhere")[1]


def test_methods_without_parts_of_one_client_have_nothing_to_forget(tmp_path):
    bench = LiveBench(federation(tmp_path / "server", method="fedavg", options={}), [(0,)])
    state = bench.method.init()
    before = dict(state.tensors)
    bench.method.forget(state, 0)
    assert_same_bits(state.tensors, before)
