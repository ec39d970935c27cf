"""Whole runs: what they leave behind, what they refuse, and the same bits after any interruption."""

import json
import os
import random
import shutil
import signal
import time

import pytest
import torch
from commands import KILLED, Command, TooLate, in_time
from conftest import BASIC, assert_same_bits, comparable, events, final_tensors, tiny

import pfeddsh
from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.federation.run import resume, run
from pfeddsh.federation.workbench import Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.base import Method
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.results.remarks import remarks
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import locked
from pfeddsh.values import read

# What a run leaves behind


def test_results_follow_the_contract(reference):
    finished = reference("fedper")
    results = json.loads((finished.out / "results.json").read_text())
    assert results == finished.results
    assert (results["schema"], results["method"], results["dataset"]) == (1, "fedper", "digits")
    assert (results["schedule"], results["seed"], results["clients"], results["steps"]) == ("6+2x2", 0, 10, 3)
    assert sorted(results["batch"]) == [1] * 6 + [2] * 2 + [3] * 2
    for t, row in enumerate(results["acc"]):
        assert [accuracy is not None for accuracy in row] == [joined <= t + 1 for joined in results["batch"]]
    assert results["acc_before_replay"] == results["acc"]
    assert len(results["pa"]) == len(results["ri"]) == 3
    assert results["ri"][0] is results["lost_share"][0] is None
    assert results["acc_end_mean"] == pytest.approx(sum(results["acc"][-1]) / 10)
    assert len(results["visits"]) == 10 and len(results["pa_sampled"]) == 3
    assert all(0 <= accuracy <= 100 for accuracy in results["local"])
    assert results["refused"] == {"uploads": 0, "clients": {}}
    assert results["seconds"].keys() == {"round_mean", "server_round_mean", "replay_per_step", "total"}
    assert {"torch", "revision", "data", "threads"} <= results["environment"].keys()


def test_the_written_configuration_is_the_one_that_ran(reference):
    out = reference("fedper").out
    assert build(read(out / "config.toml")) == tiny("fedper", device="cpu")  # what `auto` was


def test_there_is_an_event_for_every_round_and_step(reference):
    finished = reference("fedper")
    rounds = [(event["step"], event["round"]) for event in finished.events("round")]
    assert rounds == [(1, r) for r in range(3)] + [(t, r) for t in (2, 3) for r in range(2)]
    assert [event["ri"] for event in finished.events("step")] == finished.results["ri"]


def test_all_methods_see_the_same_clients_in_the_same_rounds(reference):
    seen = [[event["clients"] for event in reference(method).events("round")] for method in BASIC]
    plan = tiny().plan()
    assert seen[0] == [list(plan.cohort(t, r)) for t in plan.steps for r in range(plan.rounds(t))]
    assert seen[0] == seen[1] == seen[2]


def test_all_methods_are_measured_against_the_same_control(reference):
    assert reference("fedavg").results["local"] == reference("fedper").results["local"]


def test_local_only_training_is_its_own_control(reference, tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Workbench, "_control", None)  # nothing is trained twice
    assert comparable(run(tiny("local"), tmp_path / "run")) == comparable(reference("local").results)
    assert reference("local").results["local"] == reference("fedavg").results["local"]
    assert reference("local").results["pa"] == [0, 0, 0]


def test_three_lines_of_python_do_the_same(reference, tmp_path):
    results = pfeddsh.run(tiny("fedavg"), str(tmp_path / "run"))
    assert comparable(results) == comparable(reference("fedavg").results)
    assert pfeddsh.resume(str(tmp_path / "run")) == results
    assert "fedavg is the only method here" in (tmp_path / "run" / "report.html").read_text()
    assert [path.name for path in (tmp_path / "run" / "state").glob("*.safetensors")] == [
        "snapshot-004-00000.safetensors"
    ]
    (tmp_path / "run" / "results.json").unlink()
    assert comparable(pfeddsh.resume(str(tmp_path / "run"))) == comparable(results), "the last state is all it takes"


# What a run refuses


def test_a_run_into_the_folder_of_another_is_refused(reference, tmp_path):
    out = shutil.copytree(reference("fedavg").out, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("[!.]*")}
    with pytest.raises(UserError, match="already holds a run; continue it with `pfeddsh resume"):
        run(tiny("fedavg"), out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("[!.]*")} == before


def test_resuming_a_finished_run_returns_its_results(reference):
    finished = reference("fedavg")
    assert resume(finished.out) == finished.results


def test_resuming_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_cannot_work_in_one_folder(tmp_path):
    (tmp_path / "config.toml").write_text(tiny().toml())
    with locked(tmp_path), pytest.raises(UserError, match="in use by another process"):
        resume(tmp_path)
    with locked(tmp_path):  # the refused one has not kept it
        pass


def test_a_second_run_does_not_touch_the_configuration_of_the_first(tmp_path):
    with locked(tmp_path):
        with pytest.raises(UserError, match="in use by another process"):
            run(tiny(), tmp_path)
        assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("dataset", "digitz"), ("partition", "clases=2"), ("schedule", "4000+1000")]
)
def test_a_mistake_found_late_leaves_no_trace(tmp_path, key, value):
    with pytest.raises(UserError, match=r"digits|partition|classes|clients"):
        run(Config(**{**tiny().model_dump(), key: value}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_snapshot_that_cannot_be_written_stops_the_run_and_loses_nothing(reference, tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    # The round before may still be on its way to the disk when that fills.
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "due", lambda *_: patch.setattr(os, "replace", full_disk))
        with pytest.raises(UserError, match=r"cannot write .*round-001-0000[12].*No space left"):
            run(tiny(), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert comparable(resume(tmp_path / "run")) == comparable(reference().results)


# Bad messages

BAD = {
    "missing tensor": lambda upload: Message({}, upload.facts),
    "renamed tensor": lambda upload: Message({"weights": upload["theta"]}, upload.facts),
    "surplus tensor": lambda upload: Message({**upload.tensors, "more": torch.ones(1)}, upload.facts),
    "wrong shape": lambda upload: Message({"theta": upload["theta"][:-1]}, upload.facts),
    "wrong type": lambda upload: Message({"theta": upload["theta"].double()}, upload.facts),
    "nan": lambda upload: Message({"theta": upload["theta"] * float("nan")}, upload.facts),
    "inf": lambda upload: Message({"theta": upload["theta"] / 0}, upload.facts),
    "negative count": lambda upload: Message(upload.tensors, {**upload.facts, "samples": -3}),
    "missing count": lambda upload: Message(upload.tensors, {"loss": 0.1}),
}
SHORT = {"schedule": "6+2", "rounds_first": 2, "rounds_later": 1}
VICTIM = tiny(**SHORT).plan().cohort(1, 1)[0]  # its upload of the second round is the bad one


def spoil(patch, spoiled):
    """Let one upload of FedAvg arrive as `spoiled(upload)`."""
    good = FedAvg.local

    def local(self, message, data, memory, visit):
        upload, memory = good(self, message, data, memory, visit)
        if (visit.step, visit.round, visit.client) == (1, 1, VICTIM):
            return spoiled(upload), Memory({"own": torch.ones(1)})
        return upload, memory

    patch.setattr(FedAvg, "local", local)


@pytest.fixture(scope="module")
def without_victim(tmp_path_factory):
    """The final tensors of a run in which that upload is simply not there."""
    good = FedAvg.aggregate
    rounds = []

    def aggregate(self, state, uploads):
        rounds.append(uploads)
        if len(rounds) == 2:
            del uploads[VICTIM]
        good(self, state, uploads)

    out = tmp_path_factory.mktemp("without") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "aggregate", aggregate)
        run(tiny(**SHORT), out)
    return final_tensors(out)


@pytest.mark.parametrize("spoiled", BAD.values(), ids=BAD)
def test_a_bad_upload_is_refused_counted_and_as_good_as_absent(tmp_path, monkeypatch, without_victim, spoiled):
    spoil(monkeypatch, spoiled)
    results = run(tiny(**SHORT), tmp_path / "run")
    assert results["refused"] == {"uploads": 1, "clients": {}}
    told = [event for event in events(tmp_path / "run") if event["event"] == "refused"]
    assert [(event["step"], event["round"], event["client"]) for event in told] == [(1, 1, VICTIM)]
    assert told[0]["reason"]
    found = final_tensors(tmp_path / "run")
    assert found.pop(f"memory/{VICTIM}:own") == 1, "what the client keeps is its own, whatever it sent"
    assert_same_bits(found, without_victim)


def test_a_loss_that_is_no_number_does_not_stop_the_run(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda upload: Message(upload.tensors, {**upload.facts, "loss": "low"}))
    run(tiny(**SHORT), tmp_path / "run")
    assert all(torch.isfinite(tensor).all() for tensor in final_tensors(tmp_path / "run").values())


def test_a_round_with_bad_uploads_only_leaves_the_state_as_it_was(tmp_path, monkeypatch):
    good = FedAvg.local

    def bad_at_first(self, message, data, memory, visit):
        return (Message(), memory) if (visit.step, visit.round) == (1, 0) else good(self, message, data, memory, visit)

    monkeypatch.setattr(FedAvg, "local", bad_at_first)
    results = run(tiny(**SHORT), tmp_path / "run")
    assert results["refused"]["uploads"] == 2
    assert results["uploads"] == {"sent": 5, "refused_for": {"missing tensor theta": 2}}
    assert remarks(results) == ["2 of 5 uploads were refused (missing tensor theta)"]


def test_a_run_in_which_every_upload_is_bad_ends_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "local", lambda self, message, data, memory, visit: (Message(), memory))
    with pytest.raises(UserError, match=r"all 4 uploads of the first 2 rounds were refused \(missing tensor theta\)"):
        run(tiny(**SHORT), tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()


class Interruption:
    """Ctrl-C in the second round of the first step."""

    def event(self, kind, facts):
        if (kind, facts.get("step"), facts.get("round")) == ("round", 1, 1):
            raise KeyboardInterrupt


def test_refusals_are_told_again_after_an_interruption(tmp_path, monkeypatch):
    """The log of a resumed run is that of an uninterrupted one, also for rounds that come from the journal."""
    with monkeypatch.context() as patch:
        spoil(patch, BAD["nan"])
        whole = run(tiny(**SHORT), tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            run(tiny(**SHORT), tmp_path / "run", [Interruption()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole)
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def turn_away(patch, client):
    """Let the card of one client be malformed."""

    def card(self, message, data, memory, visit):
        return Message({"size": torch.ones(2 if visit.client == client else 1)}), memory

    patch.setattr(Method, "card", card)
    patch.setattr(Method, "expected_card", lambda self: Message({"size": torch.zeros(1)}))


def test_a_newcomer_with_a_bad_card_is_turned_away_and_the_step_goes_on(tmp_path, monkeypatch):
    config = tiny(**SHORT, sample_fraction=1.0)
    refused, welcome = config.plan().batch(2)
    turn_away(monkeypatch, refused)
    results = run(config, tmp_path / "run")
    assert [row[refused] for row in results["acc"]] == [None, None]
    assert results["acc"][1][welcome] is not None
    assert results["pa"][1] == results["acc"][1][welcome] - results["local"][welcome]
    assert "size has shape [2]" in results["refused"]["clients"][str(refused)]
    told = events(tmp_path / "run")
    assert [event["client"] for event in told if event["event"] == "refused"] == [refused]
    assert [event["clients"] for event in told if event["event"] == "round"][-1] == [welcome]


def test_who_was_turned_away_stays_away_and_in_the_log_after_an_interruption(tmp_path, monkeypatch):
    """Continued from a snapshot within the step, so that the cards are not asked for again."""
    turn_away(monkeypatch, VICTIM)
    whole = run(tiny(**SHORT), tmp_path / "whole")
    monkeypatch.setattr(Checkpoints, "due", lambda *_: True)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(**SHORT), tmp_path / "run", [Interruption()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole)
    assert whole["acc"][0][VICTIM] is None
    assert events(tmp_path / "run") == events(tmp_path / "whole")


# Interruptions

LONG = {"rounds_first": 8, "rounds_later": 6, "local_epochs": 2}


def lines(out):
    path = out / "events.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(condition, seconds=600.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def kill(process, out, line, delay):
    """Kill a process a moment after its run has written that many lines of its log."""
    wait_for(lambda: process.poll() is not None or ((out / "config.toml").exists() and lines(out) >= line))
    time.sleep(delay)
    if process.poll() is None:
        process.send(signal.SIGKILL)
    if (code := process.wait()) == 0:
        raise TooLate
    return code == KILLED


@in_time
def test_a_run_killed_again_and_again_gives_the_same_bits(tmp_path, reference):
    """Killed while starting, within rounds and where a step ends and a snapshot is written."""
    draw = random.Random(0)
    whole = reference("fedper", **LONG)
    (tmp_path / "tiny.toml").write_text(tiny("fedper", **LONG).toml())
    out, log = tmp_path / "run", tmp_path / "log"
    assert kill(Command(log, "run", tmp_path / "tiny.toml", "--out", out), out, 0, draw.uniform(0, 0.5)), (
        log.read_text()
    )
    boundaries = [9, 16]
    for line in sorted([*boundaries, *draw.sample(range(2, 15), 2)]):
        delay = 0 if line in boundaries else draw.uniform(0, 0.1)
        assert kill(Command(log, "resume", out), out, line, delay), log.read_text()
    assert Command(log, "resume", out).wait() == 0, log.read_text()
    results = json.loads((out / "results.json").read_text())
    assert comparable(results) == comparable(whole.results)
    assert_same_bits(final_tensors(out), final_tensors(whole.out))
    assert events(out) == events(whole.out)


@in_time
def test_workers_that_lost_their_parent_leave_and_the_run_can_go_on(tmp_path, reference):
    (tmp_path / "tiny.toml").write_text(tiny("fedper", engine="pool", **LONG).toml())
    out, log = tmp_path / "run", tmp_path / "log"
    process = Command(log, "run", tmp_path / "tiny.toml", "--out", out)
    assert kill(process, out, 5, 0.03), log.read_text()
    wait_for(lambda: not group_exists(process.pid))
    assert comparable(resume(out)) == comparable(reference("fedper", **LONG).results)


def group_exists(group):
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
