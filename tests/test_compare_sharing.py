"""Runs that share steps give the bits they would have given alone, whatever happens to the cache."""

import json
import os
import shutil

import pytest
from conftest import TINY, assert_same_bits, comparable, events, tiny

from pfeddsh.compare import cache, process
from pfeddsh.compare.cache import StepCache, open_cache, parse_size
from pfeddsh.compare.keys import stops
from pfeddsh.compare.plan import PlannedRun, make
from pfeddsh.compare.sharing import SharedCheckpoints, read_times
from pfeddsh.compare.summary import savings
from pfeddsh.compare.tasks import fingerprints, tasks
from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Workbench
from pfeddsh.methods.registry import METHODS
from pfeddsh.storage import controls
from pfeddsh.storage.records import read_record

PLENTY = 10**9
SET = {key: value for key, value in TINY.items() if key != "schedule"}
ONE_ROUND = SET | {"rounds_first": 1, "rounds_later": 1}  # where states matter, and not what is in them
SMALL = {"hidden": 8}


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))


def conduct(out, methods, schedules, limit=PLENTY, settings=SET, **options):
    """All tasks of a plan, one after the other in this process; the runs' names and results."""
    values = {"methods": methods, "schedules": schedules, "set": {**settings, "options": options}}
    runs = make(values).runs()
    for task in tasks(runs, fingerprints(runs), out, open_cache(limit), keep_states=False):
        process.run(task.job)
    return {run.name: json.loads((out / run.name / "results.json").read_text()) for run in runs}


def test_shared_runs_are_those_that_were_made_alone(tmp_path, reference):
    """Controls of both schedules are known from the start: none of one may slip into the other with a state."""
    found = conduct(tmp_path / "out", ["fedper"], ["6+2x2", "6+4"])
    for schedule in ("6+2x2", "6+4"):
        alone = reference("fedper", schedule=schedule)
        name = f"digits-fedper-{schedule}-seed0"
        assert comparable(found[name]) == comparable(alone.results)
        assert events(tmp_path / "out" / name) == events(alone.out)
    adopted = [read_times(tmp_path / "out" / name)["adopted"] for name in found]
    assert adopted == [0, 2], "the second took step 1 over"


def test_an_ablation_that_takes_over_step_1_ends_as_if_it_had_not(tmp_path, reference):
    methods = ["pfeddsh-hyper", "pfeddsh-hyper-snapshot", "pfeddsh-hyper-unprotected"]
    found = conduct(tmp_path / "out", methods, ["4+2"], **SMALL)
    for method in methods:
        alone = reference(method, schedule="4+2", options=SMALL)
        assert comparable(found[f"digits-{method}-4+2-seed0"]) == comparable(alone.results), method
    assert [read_times(tmp_path / "out" / name)["adopted"] for name in found] == [0, 1, 1]


class Enough(Exception):
    pass


class OnlyRounds(Federation):
    """The end of the step, with its evaluation and replay, is no part of the state after its rounds."""

    def _close(self, step: int) -> None:
        raise Enough


def trained(config: Config, folder):
    """The state at the end of the rounds of step 1, computed without anyone's help."""
    bench = Workbench(config)
    folder.mkdir()
    found = stops(config, bench.dataset.fingerprint)
    cache = StepCache(folder / "steps", PLENTY)
    checkpoints = SharedCheckpoints(folder, "run", found, {found[0].key}, cache)
    with one_thread(), pytest.raises(Enough):
        OnlyRounds(bench, Serial(bench), checkpoints, []).train()
    return found[0].key, read_record(cache.folder / f"{found[0].key}.safetensors")


def test_methods_with_the_same_key_have_the_same_state_after_the_rounds_of_step_1(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: target.touch())  # there are no events here
    groups = {}
    for name, entry in METHODS.items():
        hidden = {"hidden": 8} if "hidden" in entry.method.Settings.model_fields else {}
        config = tiny(name, schedule="10", rounds_first=2, sample_fraction=0.2, options=hidden)
        key = stops(config, Workbench(config).dataset.fingerprint)[0].key
        groups.setdefault(key, []).append((name, config))
    together = [[name for name, _ in group] for group in groups.values() if len(group) > 1]
    # FedAvg without and with prior, pFedDSH, its hypernetwork, the paper's with masks and without, pFedHN
    families = [2, 2, 5, 3, 2, 3, 2]
    assert sorted(map(len, together)) == sorted(families), together
    for key, group in groups.items():
        records = [trained(config, tmp_path / name) for name, config in group if len(group) > 1]
        for own, record in records:
            assert own == key
            assert_same_bits(record.tensors, records[0][1].tensors)
            for facts in (record.facts, records[0][1].facts):
                facts["ledger"]["totals"] |= {"seconds": 0, "server": 0}
            assert record.facts == records[0][1].facts


# The cache


def states(tmp_path):
    return sorted((tmp_path / "cache" / "steps").glob("*.safetensors"))


def test_a_damaged_state_is_said_removed_and_computed_again(tmp_path, reference):
    conduct(tmp_path / "one", ["fedavg"], ["6+2x2", "6+4"])
    for path in states(tmp_path):
        path.write_bytes(path.read_bytes()[:-50])
    with pytest.warns(UserWarning, match=r"cached step state: .* computing it again"):
        found = conduct(tmp_path / "two", ["fedavg"], ["6+4"])
    alone = reference("fedavg", schedule="6+4")
    assert comparable(found["digits-fedavg-6+4-seed0"]) == comparable(alone.results)
    assert states(tmp_path), "and kept again"
    for path in states(tmp_path):
        read_record(path)


def test_a_cache_that_cannot_be_written_is_a_missed_saving_and_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "link", full)
    with pytest.warns(UserWarning, match="state not shared.*No space left"):
        found = conduct(tmp_path / "out", ["fedavg"], ["4+2", "4+1+1"], settings=ONE_ROUND)
    assert len(found) == 2
    assert not states(tmp_path)
    assert [read_times(tmp_path / "out" / name)["adopted"] for name in found] == [0, 0]


def test_the_least_recently_used_states_go_first(tmp_path):
    conduct(tmp_path / "out", ["fedavg", "fedper"], ["4+2", "4+1+1"], settings=ONE_ROUND)
    cache = open_cache(PLENTY)
    entries = cache.entries()
    assert len(entries) == 4  # the rounds and the end of step 1, twice
    os.utime(cache.folder / f"{entries[0].key}.json")  # used right now
    gone = cache.shrink(sum(entry.bytes for entry in entries) - 1)
    assert [entry.key for entry in gone] == [entries[1].key]
    assert cache.has(entries[0].key) and not cache.has(entries[1].key)
    assert len(cache.about()) == 10, "what is known of every stop stays"
    conduct(tmp_path / "more", ["local"], ["4"], limit=1, settings=ONE_ROUND)
    assert not cache.entries(), "a run that adds a state makes room for it"


def test_the_cache_never_changes_what_runs_hold(tmp_path):
    """States are hard links: taking one away, or writing the next snapshot, must not touch the other side."""
    conduct(tmp_path / "out", ["fedavg"], ["4+2"], settings=ONE_ROUND)
    before = {path: path.read_bytes() for path in states(tmp_path)}
    conduct(tmp_path / "more", ["fedavg"], ["4+2", "4+1+1"], settings=ONE_ROUND)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_another_version_of_the_code_is_refused(tmp_path):
    runs = make({"methods": ["fedavg"], "schedules": ["4"], "set": SET}).runs()
    task, *_ = tasks(runs, fingerprints(runs), tmp_path, open_cache(0), keep_states=False)
    with pytest.raises(UserError, match="another version than the one that made the plan"):
        process.run(task.job.model_copy(update={"code": "old"}))


def test_sizes_are_read_as_people_write_them():
    assert [parse_size(text) for text in ("0", "5GB", "1.5 mb", "20k")] == [0, 5 * 10**9, 1_500_000, 20_000]
    with pytest.raises(UserError, match="size 'much'"):
        parse_size("much")


def test_the_time_without_sharing_counts_every_step_and_control_as_often_as_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    runs = [PlannedRun(name, tiny(name)) for name in ("fedavg", "fedper")]
    controls.complete(runs[0].config, "data", [1], float)
    for seconds in (4.0, 6.0):
        controls.book(runs[0].config, "data", 1, seconds)  # both methods need them: 10 once, 20 alone
    for run, adopted in zip(runs, (0, 1), strict=True):  # 100 seconds, of which the second took over 60
        (tmp_path / run.name).mkdir()
        (tmp_path / run.name / "times.json").write_text(json.dumps({"seconds": [60, 40], "adopted": adopted}))
    text = savings(runs, dict.fromkeys(("fedavg", "fedper"), "data"), tmp_path, 75.0, 2)
    assert "wall time 0:01:15 with 2 tasks" in text
    assert "computed 0:02:30, without sharing 0:03:40: 32 % saved" in text
