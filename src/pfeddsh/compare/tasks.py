"""A plan as tasks: the runs, and the local-only controls they all need, each known by what it shares with others."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.job import Job
from pfeddsh.compare.keys import Stop, code, stops
from pfeddsh.compare.plan import PlannedRun
from pfeddsh.data.store import cache_root
from pfeddsh.federation.workbench import open_data
from pfeddsh.plugins import python_path
from pfeddsh.schedule import Schedule
from pfeddsh.storage import controls


@dataclass
class Part:
    """Some of a task's rounds (or clients, for controls) and the work in each, in visits."""

    first: int
    last: int  # not included
    weight: float


@dataclass
class ProcessTask:
    """A piece of work for one process. Its progress is read from the files it leaves, wherever it runs."""

    job: Job
    stops: list[Stop] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)  # what it is expected to compute itself
    entries: list[Path] = field(default_factory=list)  # of the controls

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def out(self) -> Path:
        return self.job.out / self.job.name

    def seen(self) -> int:
        """Rounds done so far, or clients for controls."""
        if self.job.kind == "controls":
            return sum(_count(entry) for entry in self.entries)
        if (self.out / "results.json").exists():
            return self.stops[-1].rounds
        try:
            return (self.out / "events.jsonl").read_text().count('"event": "round"')
        except OSError:
            return 0

    def amount(self) -> float:
        """What there is to do, in visits."""
        return sum(part.weight * (part.last - part.first) for part in self.parts)

    def done(self) -> float:
        """What of it is done."""
        seen = self.seen()
        return sum(part.weight * max(0, min(seen, part.last) - part.first) for part in self.parts)


def fingerprints(runs: Sequence[PlannedRun]) -> dict[str, str]:
    """Of the data of each run; decodes datasets that never were, so that no two runs do it at once."""
    return {run.name: open_data(run.config).fingerprint for run in runs}


def tasks(
    runs: Sequence[PlannedRun], data: Mapping[str, str], out: Path, cache: StepCache, keep_states: bool
) -> list[ProcessTask]:
    """Everything left to do, in the order in which to start: seed by seed, controls first, then the longest runs."""
    environment = {"PFEDDSH_CACHE": str(cache_root()), "PYTHONPATH": python_path()}
    environment |= {name: os.environ[name] for name in ("PFEDDSH_DATA",) if name in os.environ}
    common: dict[str, Any] = {
        "out": out, "folder": Path.cwd(), "environment": environment, "code": code(), "limit": cache.limit
    }  # fmt: skip
    found = []
    for run in runs:
        if not (out / run.name / "results.json").exists():
            job = Job(
                kind="run", name=run.name, config=run.config.model_dump(mode="json"), keep_states=keep_states, **common
            )
            found.append((run, ProcessTask(job, stops(run.config, data[run.name]))))
    wanted = Counter(stop.key for _, task in found for stop in task.stops)
    seeds = list(dict.fromkeys(run.config.seed for run, _ in found))
    found.sort(key=lambda item: (seeds.index(item[0].config.seed), -_length(item[0].config.plan())))
    ordered: dict[int, list[ProcessTask]] = {seed: [] for seed in seeds}
    taken: set[str] = set()
    for run, task in found:
        plan = run.config.plan()
        task.job.keep = [stop.key for stop in task.stops if wanted[stop.key] > 1 or stop is task.stops[0]]
        task.parts = _parts(task, plan, cache, taken)
        ordered[run.config.seed].append(task)
        entries = {step: controls.path(run.config, data[run.name], step) for step in plan.steps}
        missing = [t for t, entry in entries.items() if entry.stem not in taken and _count(entry) < plan.sizes[t - 1]]
        if missing:
            taken |= {entries[step].stem for step in missing}
            job = Job(kind="controls", name=f"controls-{run.name}", config=task.job.config, steps=missing, **common)
            ordered[run.config.seed].insert(0, _controls(job, plan, entries))
    for group in ordered.values():
        group.sort(key=lambda task: task.job.kind)  # controls before runs; the order within stays
    return [task for group in ordered.values() for task in group]


def _controls(job: Job, plan: Schedule, entries: dict[int, Path]) -> ProcessTask:
    task, first = ProcessTask(job, entries=[entries[step] for step in job.steps]), 0
    for step in job.steps:
        visits = plan.rounds(step) * len(plan.cohort(step, 0))
        task.parts.append(Part(first, first + plan.sizes[step - 1], visits / plan.sizes[step - 1]))
        first += plan.sizes[step - 1]
    return task


def _parts(task: ProcessTask, plan: Schedule, cache: StepCache, taken: set[str]) -> list[Part]:
    """The steps that no task before this one computes and the cache does not have."""
    parts, first = [], 0
    for stop in task.stops:
        if not (stop.key in taken or cache.has(stop.key)) and stop.rounds > first:
            parts.append(Part(first, stop.rounds, sum(plan.cost(stop.step)) / (stop.rounds - first)))
        taken.add(stop.key)
        first = stop.rounds
    return parts


def _length(plan: Schedule) -> float:
    return sum(sum(plan.cost(step)) for step in plan.steps)


def _count(entry: Path) -> int:
    try:
        return len(json.loads(entry.read_text()))
    except (OSError, ValueError, TypeError):
        return 0
