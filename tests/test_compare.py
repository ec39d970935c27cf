"""`pfeddsh compare` as a user meets it: processes side by side, killed, failing, refused, on Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest
from commands import Command, TooLate, in_time
from conftest import TINY, comparable, tiny
from filelock import FileLock
from typer.testing import CliRunner

from pfeddsh.cli import app
from pfeddsh.compare import scheduler
from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.job import Job
from pfeddsh.compare.keys import stops
from pfeddsh.compare.scheduler import execute
from pfeddsh.compare.sharing import read_times
from pfeddsh.compare.tasks import ProcessTask
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import open_data
from pfeddsh.storage.checkpoint import Checkpoints

PLAN = f"""
methods = ["fedavg"]
schedules = ["6+2x2", "6+4"]
[set]
rounds_first = 3
rounds_later = 2
sample_fraction = {TINY["sample_fraction"]}
"""
NAMES = ("digits-fedavg-6+2x2-seed0", "digits-fedavg-6+4-seed0")
LONG = 600  # seconds after which something must be wrong


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", os.environ["PFEDDSH_CACHE"])  # --cache changes it


def command(folder: Path, *more: str) -> list[str]:
    (folder / "plan.toml").write_text(PLAN)
    plan, out, cache = str(folder / "plan.toml"), str(folder / "out"), str(folder / "cache")
    return ["compare", plan, "--out", out, "--cache", cache, "--jobs", "2", *more]


def expect_what_single_runs_give(out: Path, reference) -> None:
    for name, schedule in zip(NAMES, ("6+2x2", "6+4"), strict=True):
        alone = reference("fedavg", schedule=schedule)
        assert comparable(json.loads((out / name / "results.json").read_text())) == comparable(alone.results)
    assert "digits, 6+2x2" in (out / "report.html").read_text()


def rounds_on_disk(out: Path) -> int:
    """Rounds of a run that need not be computed again: those of the last snapshot and the journal after it."""
    checkpoints = Checkpoints(out / "state")
    found = checkpoints.latest()
    step, done = found[0] if found else (1, 0)
    while checkpoints.recorded((step, done + 1)):
        done += 1
    return sum(3 if t == 1 else 2 for t in range(1, step)) + done


@in_time
def test_killed_at_several_moments_it_goes_on_to_the_same_bits(tmp_path, reference):
    out = tmp_path / "out"
    moments = [
        (signal.SIGKILL, lambda: (out / NAMES[0] / "events.jsonl").exists()),  # the first rounds
        (signal.SIGINT, lambda: any((tmp_path / "cache" / "steps").glob("*.safetensors"))),  # a state is shared
        (signal.SIGKILL, lambda: read_times(out / NAMES[1])["adopted"] == 2),  # both runs side by side
    ]
    for blow, moment in moments:
        process = Command(tmp_path / "log", *command(tmp_path))
        deadline = time.monotonic() + LONG
        while not moment() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() == 0:
            raise TooLate
        assert process.poll() is None, process.log.read_text()
        process.send(blow)
        status = process.wait(LONG)
        if status == 0:
            raise TooLate
        if blow == signal.SIGINT:
            go_on = f"pfeddsh compare --out {out} --cache {tmp_path / 'cache'}"
            assert status == 130 and f"`{go_on}` continues" in process.log.read_text()
        for name in NAMES:
            if (out / name / "state").exists() and not (out / name / "results.json").exists():
                with FileLock(out / name / ".lock", timeout=LONG):  # its task, which outlives the command, is gone
                    told = (out / name / "events.jsonl").read_text() if (out / name / "events.jsonl").exists() else ""
                    assert rounds_on_disk(out / name) >= told.count('"event": "round"') - 1, "at most the last is lost"
    shown = commands.told(tmp_path / "log", *command(tmp_path))
    expect_what_single_runs_give(out, reference)
    assert "+2x2" in shown and "wall time" in shown and "% saved" in shown
    assert [read_times(out / name)["adopted"] for name in NAMES] == [0, 2]
    assert not (out / NAMES[0] / "state").exists(), "finished runs keep their results, not their states"


def test_on_ray_it_gives_the_same_bits_also_for_a_method_of_ones_own(tmp_path, reference, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from pfeddsh.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    line = command(tmp_path, "--engine", "ray")
    (tmp_path / "plan.toml").write_text(PLAN.replace('["fedavg"]', '["fedavg", "mine:Mine"]'))
    commands.told(tmp_path / "log", *line)
    expect_what_single_runs_give(tmp_path / "out", reference)
    assert [read_times(tmp_path / "out" / name)["adopted"] for name in NAMES] == [0, 2]
    for name in NAMES:
        theirs, ours = (tmp_path / "out" / n / "results.json" for n in (name.replace("fedavg", "mine.Mine"), name))
        assert json.loads(theirs.read_text())["acc"] == json.loads(ours.read_text())["acc"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_failed_run_is_told_with_its_log_and_stops_nobody(tmp_path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(
        'methods = ["local"]\nschedules = ["4"]\n[set]\nrounds_first = 1\n[variants]\nbad = {}\ngood = {}\n'
    )
    out.mkdir()
    (out / "digits-local-4-seed0-bad").write_text("a file in the way of the run's folder")
    done = invoke("compare", str(plan), "--out", str(out), "--jobs", "2")
    assert done.exit_code == 1
    assert "digits-local-4-seed0-bad: failed" in done.output and "FileExistsError" in done.output
    assert (out / "digits-local-4-seed0-good" / "results.json").exists()
    assert "1 failed" in done.output and "tries again" in done.output
    again = invoke("compare", "--out", str(out), "--dry-run")
    assert again.exit_code == 0
    assert "2 runs, 1 of them finished" in again.output


def test_another_plan_in_the_same_folder_is_refused(tmp_path):
    (tmp_path / "compare.toml").write_text('methods = ["fedavg"]\n')
    done = invoke("compare", "--methods", "fedper", "--out", str(tmp_path))
    assert isinstance(done.exception, UserError)
    assert "holds another plan" in str(done.exception) and f"compare --out {tmp_path}" in str(done.exception)
    assert (tmp_path / "compare.toml").read_text() == 'methods = ["fedavg"]\n'


def test_a_run_that_was_begun_with_other_defaults_is_not_mixed_in(tmp_path):
    run = tmp_path / "digits-local-30+2x5-seed0"
    run.mkdir()
    (run / "config.toml").write_text(tiny("local").toml())
    done = invoke("compare", "--methods", "local", "--out", str(tmp_path))
    assert f"{run} was begun with other settings" in str(done.exception)


def test_two_comparisons_cannot_work_in_one_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(); input()",
         str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout and holder.stdout.readline()
        done = invoke("compare", "--methods", "local", "--out", str(tmp_path))
        assert "in use by another process" in str(done.exception)
    finally:
        holder.communicate(b"\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "fedprox"], "did you mean"),
        (["--dataset", "cifar11"], "did you mean cifar10"),
        (["--seeds", "one"], "write numbers with commas"),
        (["--methods", "fedavg", "--cache-limit", "lots"], "size 'lots'"),
        (["--set", "alhpa=1"], "did you mean alpha"),
        (["nowhere.toml"], "no such file"),
    ],
)
def test_wrong_input_is_explained_and_leaves_no_trace(tmp_path, arguments, says):
    done = invoke("compare", *arguments, "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, UserError) and says in str(done.exception)
    assert not (tmp_path / "out" / "compare.toml").exists()


def test_a_dry_run_tells_what_is_shared_and_what_is_not_known(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    arguments = ("--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--dry-run")
    done = invoke("compare", str(tmp_path / "plan.toml"), *arguments)
    assert "2 runs, 0 of them finished; 5 steps to go, 1 of them shared" in done.output
    assert "4 batches to compute" in done.output
    assert "unknown for 5 of 5 parts" in done.output
    assert not (tmp_path / "out").exists()
    cache = StepCache(tmp_path / "cache" / "steps", 0)
    for schedule in ("6+2x2", "6+4"):
        config = tiny("fedavg", schedule=schedule, rounds_first=3, rounds_later=2, seed=7)
        for number, stop in enumerate(stops(config, open_data(config).fingerprint)):
            cache.note(stop, "another seed", [100.0] * (number + 1), 2 * 10**9)
    done = invoke("compare", str(tmp_path / "plan.toml"), *arguments, "--jobs", "1")
    assert "time: 0:08:20 on 1 core" in done.output, "five parts of 100 s, known from another seed"
    assert "disk for shared states: 4.0 GB" in done.output


def test_the_cache_is_listed_and_cleaned(tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    for number, key in enumerate(("old", "new")):
        for kind, content in (("safetensors", "x" * 1000), ("jsonl", ""), ("json", "")):
            (steps / f"{key}.{kind}").write_text(content)
            os.utime(steps / f"{key}.{kind}", (number, number))
    assert invoke("cache", "--cache", str(tmp_path)).output.count("unknown") == 2
    assert "removed 1 states" in invoke("cache", "--cache", str(tmp_path), "clean", "--to", "1kB").output
    assert [path.stem for path in steps.glob("*.safetensors")] == ["new"]
    assert "removed 1 states" in invoke("cache", "--cache", str(tmp_path), "clean").output


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke("compare", "--methods", "local", "--engine", "ray", "--out", str(tmp_path))
    assert "pip install 'pfeddsh[ray]'" in str(done.exception)


# The scheduler, with tasks that are only played


class Played:
    """An engine whose tasks reach their first stop at the second look and end at the third."""

    pool = True

    def __init__(self, slots: int, cache: StepCache, fails: str = "") -> None:
        self.slots, self.cache, self.fails, self.started, self.alive, self.most = slots, cache, fails, [], 0, 0

    def start(self, job: Job):
        self.started.append(job.name)
        self.alive += 1
        self.most = max(self.most, self.alive)
        engine, looks = self, iter([None, "reach", None])

        class Handle:
            def poll(self):
                look = next(looks, "end")
                if look == "reach" and job.name != engine.fails:
                    for kind in ("safetensors", "jsonl"):
                        (engine.cache.folder / f"{job.keep[0]}.{kind}").touch()
                engine.alive -= look == "end"
                return (2 if job.name == engine.fails else 0) if look == "end" else None

            def stop(self):
                pass

        return Handle()

    def close(self) -> None:
        pass


def played(tmp_path, methods, slots, fails=""):
    found = []
    for method in methods:
        for schedule in ("6+2x2", "6+4"):
            name, there = f"{method} {schedule}", stops(tiny(method, schedule=schedule), "data")
            job = Job(kind="run", name=name, out=tmp_path, folder=tmp_path, environment={}, config={}, code="")
            job.keep = [stop.key for stop in there[:2]]
            found.append(ProcessTask(job, there[:1]))
    cache = StepCache(tmp_path / "steps", 0)
    cache.folder.mkdir()
    engine, codes = Played(slots, cache, fails), {}
    execute(found, engine, cache, lambda task, status: codes.update({task.name: status}), lambda running: None)
    return engine, codes, {task.name: task.job.workers for task in found}


def test_runs_that_share_a_step_do_not_start_together(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "INTERVAL", 0)
    engine, codes, _ = played(tmp_path, ["fedavg", "fedper"], slots=4)
    assert engine.started == ["fedavg 6+2x2", "fedper 6+2x2", "fedavg 6+4", "fedper 6+4"]
    assert engine.most == 4, "they do as soon as the state is there"
    assert set(codes.values()) == {0}


def test_when_tasks_are_fewer_than_slots_each_gets_several(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "INTERVAL", 0)
    _, _, workers = played(tmp_path, ["fedavg"], slots=2)
    assert workers == {"fedavg 6+2x2": 2, "fedavg 6+4": 1}


def test_whoever_waited_for_a_run_that_failed_goes_on_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "INTERVAL", 0)
    engine, codes, _ = played(tmp_path, ["fedavg"], slots=2, fails="fedavg 6+2x2")
    assert engine.most == 1
    assert codes == {"fedavg 6+2x2": 2, "fedavg 6+4": 0}
