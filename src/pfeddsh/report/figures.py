"""The figures of the report. Each is as wide as a phone; the page sets them side by side where there is room."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np

from pfeddsh.report import measures
from pfeddsh.report.arrange import Cell, Group
from pfeddsh.report.measures import Measure, batch_accuracy, over_seeds, since_joining
from pfeddsh.report.read import Results
from pfeddsh.report.svg import FAINT, INK, PALETTE, STYLE, Drawing, canvas, inline
from pfeddsh.report.tables import printed

FAMILIES = {  # as the paper groups them: a colour a family, a marker and a dash within it
    "vermilion": ("fedavg",),
    "green": ("fedper", "fedrep", "fedselect"),
    "orange": ("pfedhn", "pefll", "odpfl-hn", "pfedhn-embed-only"),
    "purple": ("fedweit", "fedclass", "hr", "fedclass-local-head", "hr-local-head"),
    "grey": ("joint", "local"),
    "blue": ("pfeddsh",),
}
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def looks(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """Line styles by cell; a method looks the same in all figures, others take what is left."""
    known = {name: (colour, i) for colour, names in FAMILIES.items() for i, name in enumerate(names)}
    spare = cycle([(colour, i) for i in range(1, 5) for colour in ("sky", "vermilion", "blue", "grey")])
    styles = {}
    for cell in cells:
        usual = known.get(cell.variant.method) if not cell.variant.settings else None
        colour, i = usual or next(spare)
        ours = cell.variant.method == "pfeddsh"
        styles[cell.id] = {
            "color": PALETTE[colour], "linestyle": DASHES[i], "marker": MARKERS[i], "linewidth": 2.4 if ours else 1.4,
        }  # fmt: skip
    return styles


def _seeds(cells: Sequence[Cell]) -> str:
    counts = sorted({len(cell.runs) for cell in cells})
    return (
        f"n = {counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]} seeds"
    )


def _drawn(figure: Any, name: str, title: str, caption: str, cells: Sequence[Cell]) -> Drawing:
    return Drawing(name, inline(figure, name, f"{title}. {caption}"), caption, tuple(cell.id for cell in cells))


def _key(group: Group) -> str:
    return f"{group.cells[0].id}-{group.schedule}"


def standing(group: Group, name: str, measure: Measure, meaning: str) -> Drawing | None:
    """Methods in order of a measure: every seed, their mean and deviation, and the paper's figure."""
    shown = [(cell, s) for cell in group.contest + group.references if (s := over_seeds(cell, measure))]
    if len(shown) < 2:
        return None
    shown.sort(key=lambda pair: pair[1].mean)
    styles = looks([cell for cell, _ in shown])
    with mpl.rc_context(STYLE):
        figure = canvas(0.9 + 0.22 * len(shown))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        for y, (cell, spread) in enumerate(shown):
            style = {"color": styles[cell.id]["color"], "marker": styles[cell.id]["marker"]}
            values = [v for run in cell.runs if (v := measure(run.results)) is not None]
            axes.plot(values, [y] * len(values), "|", color=style["color"], markersize=7, alpha=0.7)
            axes.errorbar(spread.mean, y, xerr=spread.deviation or None, capsize=2, linewidth=1.2, **style)
            if old := printed("table1", cell):
                axes.plot(old[name == "PA"], y, "o", markersize=6, markerfacecolor="none", color=FAINT)
        axes.set_yticks(range(len(shown)), [f"{cell.label} ({spread.n})" for cell, spread in shown])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"{name}, points")
        axes.set_title(f"{name}: {meaning}")
    caption = (
        f"{group.setting.dataset}, {group.schedule}. Filled: mean over seeds (their number in brackets), bar: standard "
        "deviation, ticks: single seeds, grey ring: the paper's figure where it has one."
    )
    return _drawn(figure, f"{name}-{_key(group)}", f"{name} by method", caption, [cell for cell, _ in shown])


def first_batch(group: Group, cells: Sequence[Cell], what: str) -> Drawing | None:
    """What becomes of the first batch as others join."""
    steps = group.cells[0].runs[0].results.steps
    if steps < 2 or not cells:
        return None

    def curve(run: Results) -> list[float]:
        start = batch_accuracy(run, 1, 1) or 0.0
        return [(batch_accuracy(run, step, 1) or 0.0) - start for step in range(1, steps + 1)]

    styles = looks(cells)
    with mpl.rc_context(STYLE):
        figure = canvas(2.6 + 0.17 * ((len(cells) + 1) // 2))
        axes = figure.subplots()
        axes.axhline(0, color=INK, linewidth=0.8)
        for cell in cells:
            curves = np.array([curve(run.results) for run in cell.runs])
            axes.plot(range(1, steps + 1), curves.mean(0), label=f"{cell.label} ({len(curves)})", **styles[cell.id])
            if len(curves) > 1:
                low, high = curves.min(0), curves.max(0)
                axes.fill_between(
                    range(1, steps + 1), low, high, color=styles[cell.id]["color"], alpha=0.15, linewidth=0
                )
        axes.set_xticks(range(1, steps + 1))
        axes.set_xlabel("onboarding step")
        axes.set_ylabel("change of accuracy, points")
        axes.set_title(f"First batch as others join{what}")
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, handlelength=2.8, columnspacing=1)
    clients = group.cells[0].runs[0].results.batch.count(1)
    caption = (
        f"{group.setting.dataset}, {group.schedule}: mean change of the first {clients} clients since their own step, never "
        f"retrained. {_seeds(cells)} (in brackets); band: lowest to highest seed."
    )
    return _drawn(figure, f"first-batch{what and '-ablation'}-{_key(group)}", "First batch over steps", caption, cells)


def client_changes(group: Group) -> Drawing | None:
    """How single clients fared from their own step to the end; means hide the losers."""
    rows = []
    for cell in reversed(group.contest + group.ablations[1:] + group.references):
        changes = [(change, client, run.results.seed) for run in cell.runs
                   for client, change in since_joining(run.results).items()]  # fmt: skip
        rows += [(cell, changes)] if changes else []
    if not rows:
        return None
    styles = looks([cell for cell, _ in rows])
    with mpl.rc_context(STYLE):
        figure = canvas(1.0 + 0.32 * len(rows))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        for y, (cell, changes) in enumerate(rows):
            values = np.array([change for change, _, _ in changes])
            colour = styles[cell.id]["color"]
            low, lower, middle, upper, high = np.percentile(values, [5, 25, 50, 75, 95])
            axes.plot([low, high], [y, y], color=colour, linewidth=1.2)
            axes.plot([lower, upper], [y, y], color=colour, linewidth=6, alpha=0.6, solid_capstyle="butt")
            axes.plot(middle, y, "|", color=INK, markersize=8, markeredgewidth=1.6)
            worst, client, seed = min(changes)
            if worst < 0:
                axes.plot(worst, y, "x", color=colour, markersize=4.5)
                axes.annotate(f"client {client}, seed {seed}", (worst, y), xytext=(0, 3), textcoords="offset points",
                              fontsize=6.5, ha="left")  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"{cell.label} ({len(changes)})" for cell, changes in rows])
        axes.set_ylim(-0.6, len(rows) - 0.2)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("change of a client's accuracy, points")
        axes.set_title("Client by client, own step to the end")
    caption = (
        f"{group.setting.dataset}, {group.schedule}: existing clients (their number over all seeds in brackets); tick: median, "
        "box: middle half, line: 5 to 95 %, cross: the client that lost most."
    )
    cells = [cell for cell, _ in rows]
    return _drawn(figure, f"clients-{_key(group)}", "Change per client", caption, cells)


def trajectories(cell: Cell) -> Drawing:
    """Mean accuracy of every batch from its own step on."""
    steps = cell.runs[0].results.steps
    shades = mpl.colormaps["cividis"](np.linspace(0.1, 0.85, steps))
    with mpl.rc_context(STYLE):
        figure = canvas(2.1, 3.2)
        axes = figure.subplots()
        for batch in range(1, steps + 1):
            curve = [matrix(cell)[batch - 1][step - 1] for step in range(batch, steps + 1)]
            accuracies = [np.nan if value is None else value for value in curve]
            colour = PALETTE["blue"] if batch == 1 else mpl.colors.to_hex(shades[batch - 1])
            axes.plot(range(batch, steps + 1), accuracies, color=colour, marker=MARKERS[(batch - 1) % len(MARKERS)],
                      linestyle=DASHES[(batch - 1) % 4], linewidth=2.4 if batch == 1 else 1.2)  # fmt: skip
            axes.annotate(str(batch), (batch, accuracies[0]), xytext=(-4, 4), textcoords="offset points", fontsize=7)
        axes.set_xticks(range(1, steps + 1))
        axes.set_xlabel("step")
        axes.set_ylabel("accuracy, %")
        axes.margins(0.12, 0.15)
    caption = f"Each batch from its own step on (thick: the first). {_seeds([cell])}."
    return _drawn(figure, f"batches-{cell.id}", f"{cell.label}: accuracy per batch over steps", caption, [cell])


def matrix(cell: Cell) -> list[list[float | None]]:
    """The heat map: mean accuracy over seeds of batch b (row) after step t (column), None before it joined."""
    steps = range(1, cell.runs[0].results.steps + 1)

    def entry(step: int, batch: int) -> Callable[[Results], float | None]:
        return lambda run: batch_accuracy(run, step, batch)

    means = [[over_seeds(cell, entry(step, batch)) if step >= batch else None for step in steps] for batch in steps]
    return [[spread.mean if spread else None for spread in row] for row in means]


def capacity(cell: Cell) -> list[Drawing]:
    """Channels per layer and step: new, reused, and all so far; one drawing a layer."""
    used = [run.results.capacity for run in cell.runs if all(run.results.capacity)]
    layers = [layer for layer, facts in (used[0][0] or {}).items() if "total" in facts] if used else []
    steps = range(1, cell.runs[0].results.steps + 1)
    drawings = []
    for layer in layers:

        def counted(name: str, layer: str = layer) -> list[float]:
            return [float(np.mean([(run[t - 1] or {})[layer][name] for run in used])) for t in steps]

        reused, new, total, width = (counted(name) for name in ("reused", "new", "total", "width"))
        with mpl.rc_context(STYLE):
            figure = canvas(2.0, 2.6)
            axes = figure.subplots()
            axes.bar(steps, reused, 0.6, color=PALETTE["sky"], hatch="///", edgecolor=INK, linewidth=0, label="reused")
            axes.bar(steps, new, 0.6, bottom=reused, color=PALETTE["orange"], label="new")
            axes.plot(steps, total, "o--", color=INK, linewidth=1, markersize=3, label="total so far")
            axes.axhline(width[0], color=FAINT, linewidth=1)
            axes.set_ylim(0, 1.12 * width[0])
            axes.set_xticks(steps)
            axes.set_xlabel("step")
            axes.set_ylabel("channels")
            axes.set_title(f"{layer} (of {width[0]:.0f})")
            figure.legend(loc="outside lower center", ncols=3, fontsize=6.5, handlelength=1.5, columnspacing=0.8)
        share = 100 * sum(reused[1:]) / max(1.0, sum(reused[1:]) + sum(new[1:]))
        caption = f"{layer}: {share:.0f} % of later steps' channels are reused. {_seeds([cell])}."
        title = f"{cell.label}: channels of {layer} per step"
        drawings.append(_drawn(figure, f"capacity-{cell.id}-{layer}", title, caption, [cell]))
    return drawings


def of_group(group: Group) -> list[Drawing]:
    """What is drawn once for a schedule."""
    wanted = [
        standing(group, "PA", measures.pa_last, "newcomers against training alone"),
        standing(group, "RI", measures.ri_last, "existing clients, last step"),
        first_batch(group, group.contest + [c for c in group.references if c.variant.method == "joint"], ""),
        first_batch(group, group.ablations, ", ablations"),
        client_changes(group),
    ]
    return [drawing for drawing in wanted if drawing]
