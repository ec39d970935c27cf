"""The first batch's accuracy as the federation grows: what those who began it get from those who came."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.looks import ids, label, looks, seeds, title, where
from pfeddsh.report.measures import batch_accuracy
from pfeddsh.report.svg import Drawing, canvas, draw, styled
from pfeddsh.schedule import parse


def grows(schedule: str) -> bool:
    """Several later batches, or more clients in them than in the first.

    >>> [grows(schedule) for schedule in ("80+20", "80+4x5", "20+80", "100")]
    [False, True, True, False]
    """
    first, *later = parse(schedule)
    return len(later) > 1 or sum(later) > first


def curves(cell: Cell) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean accuracy of the first batch, a row a seed, a column a step; not a number where nobody of it was there."""
    steps = range(1, cell.runs[0].results.steps + 1)
    return np.array([[_number(batch_accuracy(run.results, step, 1)) for step in steps] for run in cell.runs])


def plot(
    axes: Any, group: Group, cells: Sequence[Cell], names: dict[str, str] | None = None, banded: Sequence[Cell] = ()
) -> None:
    """One line a method over the number of clients, with the band from the lowest to the highest seed.

    Where many lines lie close together, the bands of a few (`banded`) are enough.
    """
    clients = list(accumulate(parse(group.schedule)))
    styles = looks(group)
    for cell in cells:
        found, style = curves(cell), styles[cell.id]
        axes.plot(clients, found.mean(0), label=(names or {}).get(cell.id, label(cell, len(found))), **style)
        if len(found) > 1 and (not banded or cell in banded):
            axes.fill_between(clients, found.min(0), found.max(0), color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xticks(clients)
    axes.set_xlabel("clients in the federation")
    axes.set_ylabel("accuracy of the first batch, %")


def drawing(group: Group) -> Drawing | None:
    """For a schedule in which the federation grows."""
    cells = list(dict.fromkeys(group.contest + group.references))
    if not grows(group.schedule):
        return None
    with styled():
        figure = canvas(2.6 + 0.17 * ((len(cells) + 1) // 2))
        axes = figure.subplots()
        plot(axes, group, cells)
        low, high = axes.get_ylim()
        middle, half = (low + high) / 2, max(high - low, 2.0) / 2  # a tenth of a point should not look like a cliff
        axes.set_ylim(middle - half, middle + half)
        title(figure, "The first batch as the federation grows")
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, handlelength=2.8, columnspacing=1)
    caption = (
        f"{where(group)}: mean accuracy of the first {parse(group.schedule)[0]} clients as others join; {seeds(cells)} "
        "(in brackets), band: lowest to highest seed."
    )
    return draw(figure, f"growth-{group.cells[0].id}", "Accuracy of the first batch by clients", caption, ids(cells))


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
