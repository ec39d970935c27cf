"""What a comparison says at its end, and what `--dry-run` says before it begins."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pfeddsh.compare.board import clock
from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.plan import PlannedRun
from pfeddsh.compare.sharing import read_times
from pfeddsh.compare.tasks import ProcessTask
from pfeddsh.results.metrics import LOST, completed
from pfeddsh.storage import controls


def results(folder: Path) -> dict[str, Any] | None:
    """The results of a run, if it is finished; with derived fields that an older version did not write."""
    path = folder / "results.json"
    return completed(json.loads(path.read_text())) if path.exists() else None


def line(found: dict[str, Any]) -> str:
    """Everyone at the end, and PA and RI of the last batch, for one run."""
    end = _mean([found["acc_end_mean"]])
    return f"everyone {end} %  PA {_mean([found['pa'][-1]], '+.2f')}  RI {_mean([found['ri_last']], '+.2f')}"


ZERO_SHOT = "zero-shot\nPA"  # few methods have it
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], float | None]]] = {
    "everyone\nat the end": (".2f", lambda one: one["acc_end_mean"]),
    f"lost > {LOST:g}\npoints": (".0f", lambda one: fmean(there) if (there := _there(one["lost_share"])) else None),
    "\nPA": ("+.2f", lambda one: one["pa"][-1]),
    ZERO_SHOT: ("+.2f", lambda one: (one.get("pa_zero_shot") or [None])[-1]),
    "\nRI": ("+.2f", lambda one: one["ri_last"]),
}


def table(runs: Sequence[PlannedRun], out: Path) -> Table:
    """For every schedule, methods in the order of what decides: everyone's accuracy at the end, mean over seeds."""
    seeds = sorted({run.config.seed for run in runs})
    view = Table(
        title="everyone at the end, PA of the last batch, RI when it joined", box=SIMPLE_HEAD,
        caption="everyone and lost (existing clients, mean over later steps) in %, PA and RI in points; "
        f"means over seeds {', '.join(map(str, seeds))}; (n) where only n of them are finished",
    )  # fmt: skip
    found: dict[tuple[str, str], dict[tuple[str, str], list[dict[str, Any]]]] = {}
    for run in runs:
        section = found.setdefault((Path(run.config.dataset).stem, run.config.schedule), {})
        section.setdefault((run.config.method, run.variant), []).extend(filter(None, [results(out / run.name)]))
    rows = [(*where, *who) for where, section in found.items() for who in section]
    said = [i for i in range(4) if i in (1, 2) or len({names[i] for names in rows}) > 1]  # a terminal's width is dear
    for i in said:
        view.add_column(("\ndataset", "\nschedule", "\nmethod", "\nvariant")[i], overflow="fold")
    every = [one for section in found.values() for several in section.values() for one in several]
    shown = {
        name: (form, get)
        for name, (form, get) in COLUMNS.items()
        if name != ZERO_SHOT or any(get(one) is not None for one in every)
    }
    for name in shown:
        view.add_column(name, justify="right", no_wrap=True)  # where the terminal is narrow, names give way
    for where, section in found.items():
        view.add_section()
        for who, several in sorted(section.items(), key=lambda each: -_end(each[1])):
            names = (*where, *who)
            few = f" ({len(several)})" if 0 < len(several) < len(seeds) else ""
            cells = [_mean([get(one) for one in several], form) for form, get in shown.values()]
            view.add_row(*(names[i] for i in said), cells[0] + few, *cells[1:])
    return view


def _end(several: Sequence[dict[str, Any]]) -> float:
    there = _there([one["acc_end_mean"] for one in several])
    return fmean(there) if there else float("-inf")


def _there(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None], form: str = ".2f") -> str:
    there = _there(values)
    return f"{fmean(there):{form}}" if there and len(there) == len(values) else "-"


def savings(runs: Sequence[PlannedRun], data: Mapping[str, str], out: Path, wall: float, slots: int) -> str:
    """Time taken, and what the same runs would take each on its own, from the seconds recorded between stops.

    Every run needs the local-only controls of its clients; together they are computed once.
    """
    computed = alone = 0.0
    shared: dict[Path, float] = {}
    for run in runs:
        times = read_times(out / run.name)
        steps = run.config.plan().steps
        entries = [controls.path(run.config, data[run.name], step) for step in steps]
        shared |= {entry: controls.cost(entry) for entry in entries}
        alone += sum(times["seconds"]) + sum(shared[entry] for entry in entries)
        computed += sum(times["seconds"][times["adopted"] :])
    computed += sum(shared.values())
    saved = 100 * (1 - computed / alone) if alone else 0.0
    return (
        f"wall time {clock(wall)} with {slots} task{'s' * (slots > 1)} side by side\n"
        f"steps and local-only controls computed {clock(computed)}, without sharing {clock(alone)}: {saved:.0f} % saved"
    )


def forecast(
    tasks: Sequence[ProcessTask], runs: Sequence[PlannedRun], out: Path, cache: StepCache, slots: int
) -> tuple[Table, str]:
    """The plan: every run, what it shares, and what is known of time and disk from earlier runs."""
    known = {about["like"]: about for about in cache.about().values()}
    waiting = {task.name: task for task in tasks if task.job.kind == "run"}
    view = Table(title="the plan")
    view.add_column("run", overflow="fold")
    for name in ("steps", "shared", "seconds of its own"):
        view.add_column(name, justify="right")
    first: dict[str, str] = {}
    total, size, parts, unknown, shared = 0.0, 0, 0, 0, 0
    for name, task in waiting.items():
        own, open_, common = 0.0, 0, set()
        for stop in task.stops:
            if cache.has(stop.key) or stop.key in first:
                common.add(stop.step)
                continue
            first[stop.key] = name
            parts += 1
            about = known.get(stop.like)
            open_ += about is None
            own += about["seconds"][-1] if about else 0.0
            size += about["bytes"] if about and stop.key in task.job.keep else 0
        total, unknown, shared = total + own, unknown + open_, shared + len(common)
        view.add_row(name, str(task.stops[-1].step), str(len(common) or ""), "unknown" if open_ else f"{own:.0f}")
    for run in runs:
        if run.name not in waiting:
            view.add_row(run.name, "finished", "", "")
    batches = sum(len(task.job.steps) for task in tasks if task.job.kind == "controls")
    steps = sum(task.stops[-1].step for task in waiting.values())
    time = f"{clock(total / slots)} on {slots} core{'s' * (slots > 1)}"
    disk = f"{size / 1e9:.1f} GB"
    if unknown:
        time = f"unknown for {unknown} of {parts} parts that no earlier run has been through; {time} for the others"
        disk = f"unknown for these; {disk} for the others"
    return view, (
        f"{len(runs)} runs, {len(runs) - len(waiting)} of them finished; {steps} steps to go, {shared} of them shared\n"
        f"local-only controls: {batches} batches to compute, once for all methods\n"
        f"time: {time}\n"
        f"disk for shared states: {disk} (limit {cache.limit / 1e9:g} GB)"
    )
