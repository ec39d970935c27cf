"""The coordinator's logic over a network within this process: no Flower, real sites."""

import json

import pytest
import torch
from conftest import assert_same_bits
from live_sites import FakeNetwork, federation, final_state, run_in_process, shards, simulate, tampered

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.config import check_unchanged, fix
from pfeddsh.live.transport import TransportError
from pfeddsh.storage.records import read_record


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 5)


def crowd(tmp_path, paths, who=range(5)):
    network = FakeNetwork()
    for k in who:
        network.add(100 + k, tmp_path / f"site-{k}", paths[k])
    return network


def two_batches(network, tmp_path, paths):
    """Sites 3 and 4 connect when the first round of step 1 is under way; who of them has a model before its own."""
    plain = network.fault
    served = []

    def fault(header, name, body):
        first = header["job"] == "local" and (header["visit"]["step"], header["visit"]["round"]) == (2, 0)
        if first and (tmp_path / name / "model.safetensors").exists():
            served.append(name)
        if header["job"] == "local" and 103 not in network.sites:
            for k in (3, 4):
                network.add(100 + k, tmp_path / f"site-{k}", paths[k])
        return plain(header, name, body)

    network.fault = fault
    return served


@pytest.mark.parametrize("method", ["pfeddsh", "fedper"])
def test_a_live_federation_gives_the_bits_of_a_simulated_one(tmp_path, paths, method):
    config = federation(tmp_path / "server", method=method, **({} if method == "pfeddsh" else {"options": {}}))
    network = crowd(tmp_path, paths, range(3))
    served = two_batches(network, tmp_path, paths)
    run_in_process(tmp_path / "server", network)
    assert sorted(served) == (["site-3", "site-4"] if method == "pfeddsh" else [])
    simulated = simulate(config, [(0, 1, 2), (3, 4)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert results["acc"] == simulated.ledger.acc
    assert results["local"] == simulated.ledger.local and results["zero_shot"] == simulated.ledger.zero_shot
    for k in range(5):
        kept = read_record(tmp_path / f"site-{k}" / "memory.safetensors").tensors
        memory = {f"memory:{name}": tensor for name, tensor in simulated.serving.memories[k].tensors.items()}
        assert_same_bits({n: t for n, t in kept.items() if n.startswith("memory:")}, memory)


def corrupt(who, rounds, change):
    """A fault: this site's uploads of these rounds of step 1 are tampered with."""

    def fault(header, name, body):
        visit = header["visit"]
        if header["job"] == "local" and name == who and visit["step"] == 1 and visit["round"] in rounds:
            return tampered(body, change)
        return body

    return fault


def stretch(factor):
    def change(message):
        message["delta"] = message["delta"] * factor

    return change


def wrong_shape(message):
    message["delta"] = message["delta"][:-1].clone()


BAD = {
    "not finite": stretch(float("nan")),
    "shape": wrong_shape,
    "times the cohort's median": stretch(1000.0),
    "bytes": lambda message: message.tensors.update(more=torch.zeros(2_000_000)),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_upload_counts_as_absent_and_says_why(tmp_path, paths, reason):
    config = federation(tmp_path / "server", steps=1)
    network = crowd(tmp_path, paths, range(3))
    network.fault = corrupt("site-1", {1}, BAD[reason])
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0, 1, 2)], paths, tmp_path / "simulated", absent={(1, 1, 1)})
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [(entry["client"], reason in entry["reason"]) for entry in status["refused"]] == [("site-1", True)]
    assert [client["refused"] for client in status["clients"]] == [0, 1, 0]


def test_a_lone_upload_is_compared_with_the_last_ones_of_the_step(tmp_path, paths):
    config = federation(tmp_path / "server", steps=1, batch_min=1, rounds_first=5)
    network = crowd(tmp_path, paths, range(1))
    network.fault = corrupt("site-0", {3}, stretch(1000.0))
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0,)], paths, tmp_path / "simulated", absent={(1, 3, 0)})
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))


def test_a_first_batch_of_malformed_cards_is_dismissed_and_the_next_one_is_the_first(tmp_path, paths):
    config = federation(tmp_path / "server", steps=1, batch_min=1)
    network = crowd(tmp_path, paths, range(1))

    def fault(header, name, body):
        if header["job"] == "card" and name == "site-0":
            if 101 not in network.sites:
                network.add(101, tmp_path / "site-1", paths[1])
            return tampered(body, lambda card: card.tensors.update(more=torch.zeros(3)))
        return body

    network.fault = fault
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0,)], [paths[1]], tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    known = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert [client["name"] for client in known["clients"]] == ["site-1"] and len(known["dismissed"]) == 1
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [(entry["client"], "card" in entry["reason"]) for entry in status["refused"]] == [("site-0", True)]


def test_who_keeps_sending_bad_uploads_is_quarantined(tmp_path, paths):
    federation(tmp_path / "server", steps=1, rounds_first=4, quarantine_after=2)
    network = crowd(tmp_path, paths, range(3))
    network.fault = corrupt("site-1", range(4), wrong_shape)
    run_in_process(tmp_path / "server", network)
    rounds = [visit[3] for visit in network.calls if visit[:2] == ("local", "site-1")]
    assert rounds == [0, 1]
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [client["state"] for client in status["clients"]] == ["served", "quarantined", "served"]


def test_a_client_that_does_not_answer_is_absent_from_the_round_only(tmp_path, paths):
    config = federation(tmp_path / "server", steps=1, round_timeout=2.5, batch_wait=3600)
    network = crowd(tmp_path, paths, range(3))
    network.fault = lambda header, name, body: (
        None if (header["job"], name, header["visit"]["round"]) == ("local", "site-2", 1) else body
    )
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0, 1, 2)], paths, tmp_path / "simulated", absent={(1, 1, 2)})
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    lines = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    absent = {line["round"]: line["absent"] for line in lines if line["event"] == "round"}
    assert list(absent) == [0, 1, 2] and not absent[0] and not absent[2] and "no answer" in absent[1]["2"]


def test_a_round_with_too_few_answers_is_repeated_and_costs_no_second_training(tmp_path, paths):
    config = federation(tmp_path / "server", steps=1, round_timeout=2.0, min_cohort=3, batch_wait=3600)
    network = crowd(tmp_path, paths, range(3))
    lost = iter([True, True])  # the first reply and the one to the message sent again

    def fault(header, name, body):
        silent = (header["job"], name, header["visit"]["round"]) == ("local", "site-2", 1) and next(lost, False)
        return None if silent else body

    network.fault = fault
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0, 1, 2)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    memory = read_record(tmp_path / "site-2" / "memory.safetensors")
    assert [visit["round"] for visit in memory.facts["site"]["visits"]] == [0, 1, 2]


def test_a_killed_coordinator_continues_to_the_same_bits(tmp_path, paths):
    config = federation(tmp_path / "server")
    network = crowd(tmp_path, paths, range(3))
    two_batches(network, tmp_path, paths)
    plain = network.fault
    deaths = {
        ("card", 1, 0),
        ("local", 1, 1),
        ("settle", 1, 0),
        ("local", 2, 0),
        ("judge", 2, 0),
        ("receive", 2, 0),
        ("score", 2, 0),
    }

    def fault(header, name, body):
        moment = (header["job"], header["visit"]["step"], header["visit"]["round"])
        if moment in deaths:
            deaths.discard(moment)
            raise ConnectionResetError("killed")  # the coordinator loses its network, and its life
        return plain(header, name, body)

    network.fault = fault
    for _ in range(10):
        try:
            run_in_process(tmp_path / "server", network)
            break
        except TransportError:
            continue
    assert not deaths
    simulated = simulate(config, [(0, 1, 2), (3, 4)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert results["acc"] == simulated.ledger.acc
    assert (
        results["offers"]["made"] == results["offers"]["accepted"] + results["offers"]["declined"] == 3
    )  # existing clients


def test_an_offer_waits_for_a_client_that_is_away(tmp_path, paths):
    federation(tmp_path / "server", steps=3, batch_min=2, round_timeout=6)
    network = crowd(tmp_path, paths, range(2))
    before = 0

    def fault(header, name, body):
        nonlocal before
        job, step = header["job"], header["visit"]["step"]
        if (job, step) == ("local", 1) and 102 not in network.sites:
            for k in (2, 3):
                network.add(100 + k, tmp_path / f"site-{k}", paths[k])
        if (job, step) == ("local", 2):
            network.remove(100)  # site-0 is away when offers are made
            before = len(network.calls)
        if (job, step) == ("score", 2) and 104 not in network.sites:
            network.add(104, tmp_path / "site-4", paths[4])
        if (job, step) == ("local", 3) and 200 not in network.sites:
            network.add(200, tmp_path / "site-0", paths[0])  # back, under another node id
        if (job, step) == ("local", 3) and ("score", "site-0", 2, 0) not in network.calls[before:]:
            return None  # the round goes on until the offer was handed over meanwhile
        return body

    network.fault = fault
    run_in_process(tmp_path / "server", network)
    received = [call for call in network.calls if call[:2] == ("receive", "site-0")]
    assert [call[2] for call in received] == [2, 3]
    results = json.loads((tmp_path / "server" / "results.json").read_text())
    assert results["acc"][1][0] is not None  # measured once it was back
    assert results["offers"]["pending"] == 0


def test_newcomers_wait_until_enough_have_come_or_long_enough(tmp_path, paths):
    federation(tmp_path / "server", steps=1, batch_min=4, batch_wait=1.0)
    network = crowd(tmp_path, paths, range(2))
    run_in_process(tmp_path / "server", network)
    clients = json.loads((tmp_path / "server" / "clients.json").read_text())["clients"]
    assert [(client["name"], client["batch"]) for client in clients] == [("site-0", 1), ("site-1", 1)]


def test_a_newcomer_without_a_card_waits_for_the_next_batch(tmp_path, paths):
    federation(tmp_path / "server", batch_min=3, round_timeout=3.0)
    network = crowd(tmp_path, paths, range(3))
    network.fault = lambda header, name, body: (
        None if (header["job"], name, header["visit"]["step"]) == ("card", "site-1", 1) else body
    )
    run_in_process(tmp_path / "server", network)
    clients = json.loads((tmp_path / "server" / "clients.json").read_text())["clients"]
    assert [(c["name"], c["batch"]) for c in clients if not c["released"]] == [
        ("site-0", 1), ("site-2", 1), ("site-1", 2)
    ]  # fmt: skip


@pytest.mark.parametrize("killed", [False, True])
def test_a_client_that_is_away_at_the_end_of_its_step_gets_its_model_later(tmp_path, paths, killed):
    paper = {"images": 40, "iterations": 4, "hidden": 32}  # its replay needs the reports of all clients
    federation(tmp_path / "server", batch_min=2, round_timeout=6, method="pfeddsh-paper", options=paper)
    network = crowd(tmp_path, paths, range(2))

    def fault(header, name, body):
        nonlocal killed
        job, step = header["job"], header["visit"]["step"]
        if (job, step, header["visit"]["round"], name) == ("local", 1, 2, "site-1"):
            network.remove(101)  # after its last upload, before it is told that the step is over
        if (job, step) == ("score", 1):
            for k in (2, 3):
                network.add(100 + k, tmp_path / f"site-{k}", paths[k])
        if (job, step) == ("local", 2):
            if 201 not in network.sites:
                network.add(201, tmp_path / "site-1", paths[1])
            if ("settle", "site-1", 1, 0) not in network.calls:
                return None  # the round lasts until then
        if (job, step) == ("settle", 2) and killed:
            killed = False
            raise ConnectionResetError("killed")  # its report came, and was not yet written down
        return body

    network.fault = fault
    if killed:
        with pytest.raises(TransportError):
            run_in_process(tmp_path / "server", network)
        federation(  # now the late report is waited for, however long it takes
            tmp_path / "server", batch_min=2, round_timeout=60, method="pfeddsh-paper", options=paper
        )  # fmt: skip
    run_in_process(tmp_path / "server", network)
    assert read_record(tmp_path / "site-1" / "model.safetensors").facts["step"] >= 1
    assert "state:statistics/1" in final_state(tmp_path / "server" / "state")
    assert ("receive", "site-1", 2, 0) in network.calls  # and step 2 improves it like the others


def test_settings_of_a_begun_federation_cannot_change(tmp_path, paths):
    federation(tmp_path / "server", steps=1)
    run_in_process(tmp_path / "server", crowd(tmp_path, paths, range(3)))
    federation(tmp_path / "server", steps=1, seed=1)
    with pytest.raises(UserError, match="seed cannot change"):
        run_in_process(tmp_path / "server", FakeNetwork())


def test_a_federation_that_another_version_began_is_continued_with_that_version(tmp_path):
    config = federation(tmp_path / "server", steps=1)
    begun = tmp_path / "server" / "state" / "federation.json"
    begun.parent.mkdir()
    fix(tmp_path / "server", config)
    before = json.loads(begun.read_text())
    before["options"]["histogram"] = True
    begun.write_text(json.dumps(before))
    with pytest.raises(UserError, match=r"another version of pfeddsh, whose pfeddsh had other settings \(histogram\)"):
        check_unchanged(tmp_path / "server", config)
