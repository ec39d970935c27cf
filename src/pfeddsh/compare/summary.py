"""What a comparison says at its end, and what `--dry-run` says before it begins."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pfeddsh.compare.board import clock
from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.plan import Run
from pfeddsh.compare.sharing import read_times
from pfeddsh.compare.tasks import Task
from pfeddsh.results import controls


def results(folder: Path) -> dict[str, Any] | None:
    """The results of a run, if it is finished."""
    path = folder / "results.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def line(found: dict[str, Any]) -> str:
    """PA and RI of the last batch, for one run."""
    return f"PA {_signed(found['pa'][-1])}  RI {_signed(found['ri_last'])}"


def table(runs: Sequence[Run], out: Path) -> Table:
    """PA and RI of the last batch (the paper's Table 1) per method and schedule, means over seeds."""
    schedules = list(dict.fromkeys(run.config.schedule for run in runs))
    seeds = sorted({run.config.seed for run in runs})
    view = Table(
        title="PA of the last batch, RI of existing clients when it joined", box=SIMPLE_HEAD,
        caption=f"points, means over seeds {', '.join(map(str, seeds))}; (n) where only n of them are finished",
    )  # fmt: skip
    rows: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        row = rows.setdefault((Path(run.config.dataset).stem, run.config.method, run.variant), {})
        if found := results(out / run.name):
            row.setdefault(run.config.schedule, []).append(found)
    said = [i for i in range(3) if i == 1 or len({names[i] for names in rows}) > 1]  # the width of a terminal is dear
    for i in said:
        view.add_column(("dataset", "method", "variant")[i], no_wrap=True)
    for schedule in schedules:
        view.add_column(f"{schedule}\nPA", justify="right", min_width=6)
        view.add_column("\nRI", justify="right", min_width=6)
    for names, row in rows.items():
        cells = [cell for schedule in schedules for cell in _cells(row.get(schedule, []), len(seeds))]
        view.add_row(*(names[i] for i in said), *cells)
    return view


def _cells(found: list[dict[str, Any]], seeds: int) -> tuple[str, str]:
    few = f" ({len(found)})" if found and len(found) < seeds else ""
    columns = [[one["pa"][-1] for one in found], [one["ri_last"] for one in found]]
    pa, ri = (_signed(fmean(values) if values and None not in values else None) for values in columns)
    return pa + few, ri + few


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def savings(runs: Sequence[Run], data: Mapping[str, str], out: Path, wall: float, slots: int) -> str:
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


def forecast(tasks: Sequence[Task], runs: Sequence[Run], out: Path, cache: StepCache, slots: int) -> tuple[Table, str]:
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
