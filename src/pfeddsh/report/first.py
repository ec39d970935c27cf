"""The first picture of a group: newcomers' gain against what becomes of existing clients; of one run, its steps."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pfeddsh.report import measures
from pfeddsh.report.contract import Results, mean
from pfeddsh.report.grouping import Group
from pfeddsh.report.looks import ids, looks, seeds, title, where
from pfeddsh.report.measures import batch_accuracy, over_seeds
from pfeddsh.report.steps import single
from pfeddsh.report.svg import FAINT, INK, PALETTE, Drawing, canvas, draw, styled

FAR = 15.0  # points behind the best: such a method is drawn at the edge, or it would squeeze all others into a corner
HEIGHT = 3.0
# Of a label around its point: first beside it, then ever farther away.
PLACES = (
    (1, 0),
    (-1, 0),
    (1, 1),
    (1, -1),
    (-1, 1),
    (-1, -1),
    (0, 1.2),
    (0, -1.2),
    (1, 0.5),
    (1, -0.5),
    (-1, 0.5),
    (-1, -0.5),
)
RINGS = (1.0, 1.7, 2.5, 3.5, 5.0, 7.0)
AXES = (225.0, 160.0)  # the room of the axes in points, about
LETTER, LINE = 4.5, 9.5  # of a label, in points
Box = tuple[float, float, float, float]


def picture(group: Group) -> Drawing | None:
    """What a reader sees first."""
    if single(group) or group.steps < 2:
        return over_steps(group)
    return trade(group) or over_steps(group)


def trade(group: Group) -> Drawing | None:
    """A point a method: up is better for newcomers, right is better for the first batch."""
    found = {
        cell: (change.mean, pa.mean)
        for cell in dict.fromkeys(group.contest + group.references)
        if (change := over_seeds(cell, measures.ri_total)) and (pa := over_seeds(cell, measures.pa_mean))
    }
    if len(found) < 2:
        return None
    best = np.max(list(found.values()), axis=0)
    near = [point for point in found.values() if all(point >= best - FAR)] or list(found.values())
    low, high = np.min(near, axis=0), np.max(near, axis=0)
    room = 0.12 * np.maximum(high - low, 4.0)
    low, high = np.minimum(low, 0) - room, np.maximum(high, 0) + room
    styles = looks(group)
    with styled():
        figure = canvas(HEIGHT)
        axes = figure.subplots()
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.axvline(0, color=FAINT, linewidth=0.8)
        labels, behind = [], []
        for cell, point in sorted(found.items(), key=lambda item: -item[1][1]):
            style = styles[cell.id]
            x, y = np.clip(point, low + 0.25 * room, high)
            far = bool(any(point < low))
            face = "none" if far else style["color"]
            size = 8 if cell.variant.method == "pfeddsh" else 5.5
            axes.plot(x, y, style["marker"], color=style["color"], markerfacecolor=face, markersize=size)
            weight = "bold" if cell.variant.method == "pfeddsh" else "normal"
            name = cell.label.partition(",")[0]
            if far:
                values = f"({point[0]:+.0f}, {point[1]:+.0f})".replace("-", "\u2212")
                behind.append(f"{name} {values}")
            else:
                labels.append((float(x), float(y), name, weight))
        axes.set_xlim(low[0], high[0] + 0.6 * room[0])
        axes.set_ylim(low[1], high[1])
        _label(axes, sorted(labels, key=lambda label: label[3] != "bold"))  # ours has the first choice
        axes.set_xlabel("change of the first batch, points")
        axes.set_ylabel("PA: newcomers' gain, points")
        title(figure, "Gain of newcomers, change of the first batch")
    edge = f" Open markers at the edge are more than {FAR:g} points behind the best (change, PA): {', '.join(behind)}."
    caption = (
        f"{where(group)}; {seeds(list(found))} (means). Up: newcomers gain more over training alone. Right: the first "
        f"batch gains more when others join.{edge if behind else ''}"
    )
    name = f"trade-{group.cells[0].id}"
    return draw(figure, name, "Gain of newcomers against change of the first batch", caption, ids(found))


def _label(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> list[Box]:
    """Names beside their points, where they cover nothing; one that has to go farther away is tied to its point.

    Returns the boxes of the names, in points of the axes.
    """
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    points = [((x - x0) / (x1 - x0) * AXES[0], (y - y0) / (y1 - y0) * AXES[1]) for x, y, _, _ in labels]
    marks = [_around(point, 4) for point in points]
    boxes: list[Box] = []
    for (px, py), (x, y, text, weight) in zip(points, labels, strict=True):
        others = [_around(point, 8) for point in points if point != (px, py)]  # a name beside a point seems to be its
        wide = LETTER * len(text) * (1.1 if weight == "bold" else 1.0)
        places: list[tuple[float, int, float, float, Box]] = []
        for ring, (dx, dy) in product(RINGS, PLACES):
            away, up = 6 * ring * dx, 8 * ring * dy
            left = px + away - (0 if dx > 0 else wide if dx < 0 else wide / 2)
            box = (left, py + up - LINE / 2, left + wide, py + up + LINE / 2)
            outside = max(0, -box[0]) + max(0, box[2] - AXES[0]) + max(0, -box[1]) + max(0, box[3] - AXES[1])
            covered = sum(_overlap(box, mark) for mark in marks) + 100 * sum(_overlap(box, other) for other in boxes)
            covered += sum(_overlap(box, other) for other in others) / 2 if ring > 1 else 0
            tie = [_around((px + part * away, py + part * up), 2) for part in (0.3, 0.5, 0.7, 0.9)]
            covered += sum(_overlap(part, other) for part in tie for other in (*boxes, *others))
            places.append((covered + 10 * outside + 10 * (ring - 1), len(places), away, up, box))
        _, _, away, up, box = min(places)
        boxes.append(box)
        line: Any = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            text, (x, y), (away, up), textcoords="offset points", fontsize=7.5, fontweight=weight, va="center",
            ha="left" if away > 0 else "right" if away < 0 else "center",
            arrowprops=line if max(abs(away) / 6, abs(up) / 8) > 1.3 else None,
        )  # fmt: skip
    return boxes


def _around(point: tuple[float, float], half: float) -> Box:
    return point[0] - half, point[1] - half, point[0] + half, point[1] + half


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def over_steps(group: Group) -> Drawing | None:
    """Of one run, or of runs with one step: every batch from before its own step to the end."""
    cell = next(iter(group.contest), group.cells[0])
    run = cell.runs[0].results
    steps = range(1, run.steps + 1)
    with styled():
        figure = canvas(HEIGHT)
        axes = figure.subplots()
        for batch in reversed(steps):
            colour = PALETTE["blue" if batch == 1 else "vermilion"]
            line = [_number(batch_accuracy(run, step, batch)) for step in steps if step >= batch]
            axes.plot(
                [step for step in steps if step >= batch],
                line,
                "o-",
                color=colour,
                linewidth=2.4 if batch == 1 else 1.4,
            )
            start = _zero_shot(run, batch)
            if start is not None and batch > 1:
                axes.plot([batch - 0.25, batch], [start, line[0]], ":", color=colour, linewidth=1.2)
                axes.plot(batch - 0.25, start, "o", color=colour, markerfacecolor="none")
            axes.plot(batch, _number(_alone(run, batch)), "x", color=FAINT)
        axes.plot(steps, [_number(mean(row)) for row in run.acc], "--", color=INK, linewidth=1)
        axes.set_xticks(steps)
        axes.set_xlim(0.6, run.steps + 0.4)
        axes.set_xlabel("onboarding step")
        axes.set_ylabel("accuracy, %")
        title(figure, "Every batch, step by step")
    caption = (
        f"{where(group)}, {cell.label}, seed {run.seed} (n = 1). Thick line: the first batch; thin lines: later "
        "batches; open circle: before their first round; dashed: everyone; cross: training alone."
    )
    return draw(figure, f"steps-{group.cells[0].id}", "Accuracy of every batch over steps", caption, (cell.id,))


def _alone(run: Results, batch: int) -> float | None:
    return mean([run.local[k] for k, joined in enumerate(run.batch) if joined == batch])


def _zero_shot(run: Results, batch: int) -> float | None:
    gain, alone = (run.pa_zero_shot or [None] * run.steps)[batch - 1], _alone(run, batch)
    return None if gain is None or alone is None else gain + alone


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
