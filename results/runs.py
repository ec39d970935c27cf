"""The runs in this folder, asked for by method and schedule: what the documents' tables and sentences are made of."""

import csv
import io
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import keeping

from pfeddsh.report import measures
from pfeddsh.report.grouping import Cell, Group, group_runs
from pfeddsh.report.read import Run, gather
from pfeddsh.storage.files import write_text

HERE = Path(__file__).parent
MEASURES: dict[str, tuple[measures.Measure, str]] = {
    "end": (measures.everyone_at_the_end, ".1f"),
    "kept": (keeping.at_the_end, ".1f"),
    "lost": (measures.lost, ".0f"),
    "end_unguarded": (measures.everyone_unguarded, ".1f"),
    "lost_unguarded": (measures.lost_unguarded, ".0f"),
    "first": (measures.first_step, ".1f"),
    "change": (measures.ri_total, "+.1f"),
    "pa": (measures.pa_mean, "+.1f"),
    "pa3": (measures.pa_sampled_mean, "+.1f"),
    "zero": (measures.zero_shot_mean, "+.1f"),
    "first_end": (measures.first_batch_at_the_end, ".1f"),
}
TUNING = 100
Protocol = tuple[tuple[str, object], ...]


class Runs:
    """All runs of a folder, and each also as if existing clients had kept their models (keeping.py).

    `protocol` names what departs from the default one, such as alpha=0.5.
    Seeds from 100 on are those that settings were chosen on: they stand apart, and no table mixes them with others.
    """

    def __init__(self, folder: Path = HERE, tuning: bool = False) -> None:
        runs, unread = _read(folder)
        chosen = [run for run in runs if (run.results.seed >= TUNING) == tuning]
        self.all, self.count = chosen, len(chosen)
        self.seconds = sum(run.results.seconds.total for run in chosen)  # of one core
        self.made, problems = _grouped(chosen)  # what was run
        self.groups, _ = _grouped(chosen + keeping.derived(chosen))
        self.problems = unread + problems  # what a reader must be warned of
        self.cells: dict[tuple[str, str, str, Protocol], Cell] = {
            (group.setting.dataset, group.schedule, cell.label, _departs(group)): cell
            for group in self.groups
            for cell in group.cells
        }

    def cell(self, method: str, schedule: str, dataset: str = "cifar10", **protocol: object) -> Cell | None:
        return self.cells.get((dataset, schedule, method, tuple(sorted(protocol.items()))))

    def group(self, schedule: str, dataset: str = "cifar10", **protocol: object) -> Group | None:
        place = dataset, schedule, tuple(sorted(protocol.items()))
        return next((g for g in self.groups if (g.setting.dataset, g.schedule, _departs(g)) == place), None)

    def values(self, measure: str, method: str, schedule: str, **where: object) -> dict[int, float]:
        """By seed; empty without runs."""
        cell = self.cell(method, schedule, **where)  # type: ignore[arg-type]
        found = {run.results.seed: MEASURES[measure][0](run.results) for run in cell.runs} if cell else {}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, measure: str, method: str, schedule: str, seeds: Sequence[int] = (), **where: object) -> float:
        """Over all its seeds, or those named; asking for a run that is not here is a mistake."""
        values = self.values(measure, method, schedule, **where)
        chosen = [values[seed] for seed in seeds or values]
        if not chosen:
            raise LookupError(f"no run of {method} on {where.get('dataset', 'cifar10')} with {schedule} in {HERE}")
        return sum(chosen) / len(chosen)

    def lead(self, method: str, others: Iterable[str], schedule: str, **where: object) -> dict[int, float]:
        """By seed: everyone at the end, over the best of the others that were run on that seed."""
        own = self.values("end", method, schedule, **where)
        rivals = [self.values("end", other, schedule, **where) for other in others]
        best = {seed: max((rival[seed] for rival in rivals if seed in rival), default=None) for seed in own}
        return {seed: own[seed] - value for seed, value in sorted(best.items()) if value is not None}


def _grouped(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """The usual protocol first."""
    groups, problems = group_runs(runs)
    return sorted(groups, key=lambda group: bool(_departs(group))), problems


@cache
def _read(folder: Path) -> tuple[list[Run], list[str]]:
    """Both kinds of seeds are asked for, and by several documents."""
    return gather([folder])


def rows(name: str, **equal: str) -> list[dict[str, str]]:
    """Of a table of this folder, such as guard.csv: the rows with these values."""
    with (HERE / name).open() as file:
        return [row for row in csv.DictReader(file) if all(row[k] == v for k, v in equal.items())]


def keep(name: str, found: Sequence[dict[str, str]], by: Sequence[str]) -> None:
    """Into a table of this folder, in place of rows with the same values in these columns."""
    new = {tuple(row[column] for column in by) for row in found}
    before = rows(name) if (HERE / name).exists() else []
    kept = [row for row in before if tuple(row[column] for column in by) not in new]
    written = io.StringIO()
    writer = csv.DictWriter(written, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows([*kept, *found])
    write_text(HERE / name, written.getvalue())


def _departs(group: Group) -> Protocol:
    return tuple(sorted(group.setting.differs().items()))
