"""The figures of the report. Each is as wide as a phone; the page sets them side by side where there is room."""

from collections.abc import Callable, Sequence

import numpy as np

from pfeddsh.report import growth, measures
from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.looks import ids, label, looks, seeds, title, where
from pfeddsh.report.measures import Measure, batch_accuracy, over_seeds, since_joining
from pfeddsh.report.paper import printed
from pfeddsh.report.steps import single
from pfeddsh.report.svg import FAINT, INK, PALETTE, Drawing, canvas, draw, styled


def of_group(group: Group) -> list[Drawing]:
    """What is drawn once for a schedule, after its first picture."""
    oracle = [cell for cell in group.references if cell.variant.method == "joint"]
    if single(group):
        return [drawing for drawing in (client_changes(group),) if drawing]
    wanted = [
        standing(group, "end", measures.everyone_at_the_end, "Everyone at the end", "mean accuracy, %"),
        *beside_the_paper(group),
        growth.drawing(group),
        first_batch(group, list(dict.fromkeys(group.contest + oracle)), ""),
        first_batch(group, group.ablations, ", ablations") if group.ablations != group.contest else None,
        client_changes(group),
    ]
    return [drawing for drawing in wanted if drawing]


def beside_the_paper(group: Group) -> list[Drawing | None]:
    """PA and RI of the last step, where the paper has any for these runs."""
    if not any(printed("table1", cell) for cell in group.contest):
        return []
    return [
        standing(group, "PA", measures.pa_last, "PA, last step, and the paper's", "PA, last step, points", 1),
        standing(group, "RI", measures.ri_last, "RI, last step, and the paper's", "RI, last step, points", 0),
    ]


def standing(
    group: Group, name: str, measure: Measure, heading: str, axis: str, paper: int | None = None
) -> Drawing | None:
    """Methods in order of a measure: every seed, their mean and deviation, and the paper's figure, which it has for
    points of gain or loss only.
    """
    shown = [(cell, s) for cell in dict.fromkeys(group.contest + group.references) if (s := over_seeds(cell, measure))]
    if len(shown) < 2:
        return None
    shown.sort(key=lambda pair: pair[1].mean)
    styles = looks(group)
    with styled():
        figure = canvas(0.9 + 0.22 * len(shown))
        axes = figure.subplots()
        if paper is not None:
            axes.axvline(0, color=INK, linewidth=0.8)
        for y, (cell, spread) in enumerate(shown):
            style = {"color": styles[cell.id]["color"], "marker": styles[cell.id]["marker"]}
            values = [v for run in cell.runs if (v := measure(run.results)) is not None]
            axes.plot(values, [y] * len(values), "|", color=style["color"], markersize=7, alpha=0.7)
            axes.errorbar(spread.mean, y, xerr=spread.deviation or None, capsize=2, linewidth=1.2, **style)
            if paper is not None and (old := printed("table1", cell)):
                axes.plot(old[paper], y, "o", markersize=6, markerfacecolor="none", color=FAINT)
        axes.set_yticks(range(len(shown)), [label(cell, spread.n) for cell, spread in shown])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(axis)
        title(figure, heading)
    ring = "" if paper is None else ", grey ring: the paper's value, if it has one"
    caption = (
        f"{where(group)}. Filled: mean over seeds (their number in brackets), bar: standard deviation, ticks: single "
        f"seeds{ring}."
    )
    return draw(figure, f"{name}-{group.cells[0].id}", heading, caption, ids(c for c, _ in shown))


def first_batch(group: Group, cells: Sequence[Cell], what: str) -> Drawing | None:
    """What becomes of the first batch as others join."""
    first = group.cells[0].runs[0].results
    steps = range(1, first.steps + 1)
    if len(steps) < 2 or not cells:
        return None

    def curve(run: Results) -> list[float]:
        start = batch_accuracy(run, 1, 1) or 0.0
        return [(batch_accuracy(run, step, 1) or 0.0) - start for step in steps]

    styles = looks(group)
    with styled():
        figure = canvas(2.6 + 0.17 * ((len(cells) + 1) // 2))
        axes = figure.subplots()
        axes.axhline(0, color=INK, linewidth=0.8)
        for cell in cells:
            curves = np.array([curve(run.results) for run in cell.runs])
            style = styles[cell.id]
            axes.plot(steps, curves.mean(0), label=label(cell, len(curves)), **style)
            if len(curves) > 1:
                low, high = curves.min(0), curves.max(0)
                axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
        axes.set_xticks(steps)
        axes.set_xlabel("onboarding step")
        axes.set_ylabel("change of accuracy, points")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -1), max(high, 1))  # a tenth of a point should not look like a cliff
        title(figure, f"First batch as others join{what}")
        figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, handlelength=2.8, columnspacing=1)
    caption = (
        f"{where(group)}: mean change of the first {first.batch.count(1)} clients since their own step; "
        f"{seeds(cells)} (in brackets), band: lowest to highest seed."
    )
    name = f"first-batch{what and '-ablation'}-{group.cells[0].id}"
    return draw(figure, name, "Change of the first batch over steps", caption, ids(cells))


def client_changes(group: Group) -> Drawing | None:
    """How single clients fared from their own step to the end; means hide the losers."""
    rows = []
    for cell in reversed(dict.fromkeys(group.contest_and_ablations + group.references)):
        changes = [(v, k) for run in cell.runs for k, v in since_joining(run.results).items()]
        rows += [(cell, changes)] if changes else []
    if not any(change for _, changes in rows for change, _ in changes):
        return None
    styles = looks(group)
    with styled():
        figure = canvas(1.0 + 0.3 * len(rows))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        for y, (cell, changes) in enumerate(rows):
            colour = styles[cell.id]["color"]
            low, lower, middle, upper, high = np.percentile([change for change, _ in changes], [5, 25, 50, 75, 95])
            axes.plot([low, high], [y, y], color=colour, linewidth=1.2)
            axes.plot([lower, upper], [y, y], color=colour, linewidth=6, alpha=0.6, solid_capstyle="butt")
            axes.plot(middle, y, "|", color=INK, markersize=8, markeredgewidth=1.6)
            worst, client = min(changes)
            if worst < 0:
                axes.plot(worst, y, "x", color=colour, markersize=4.5)
                axes.text(worst, y + 0.16, str(client), ha="center", fontsize=7)
        axes.set_yticks(range(len(rows)), [label(cell, len(changes)) for cell, changes in rows])
        axes.set_ylim(-0.6, len(rows) - 0.2)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("change of accuracy, points")
        title(figure, "Single clients, own step to the end")
    caption = (
        f"{where(group)}: existing clients (their number over all seeds in brackets). Tick: median, box: middle half, "
        "line: 5 to 95 %, cross: the client that lost most, with its number."
    )
    return draw(figure, f"clients-{group.cells[0].id}", "Change per client", caption, ids(c for c, _ in rows))


def matrix(cell: Cell) -> list[list[float | None]]:
    """The heat map: mean accuracy over seeds of batch b (row) after step t (column), None before it joined."""
    steps = range(1, cell.runs[0].results.steps + 1)

    def entry(step: int, batch: int) -> Callable[[Results], float | None]:
        return lambda run: batch_accuracy(run, step, batch)

    means = [[over_seeds(cell, entry(step, batch)) if step >= batch else None for step in steps] for batch in steps]
    return [[spread.mean if spread else None for spread in row] for row in means]


def capacity(cell: Cell) -> Drawing | None:
    """Channels per layer and step: new ones, and all so far. Reuse is not drawn: it is total by construction."""
    used = [run.results.capacity for run in cell.runs if all(run.results.capacity)]
    layers = [layer for layer, facts in (used[0][0] or {}).items() if "total" in facts] if used else []
    if not layers:
        return None
    steps = range(1, cell.runs[0].results.steps + 1)

    def counted(layer: str, name: str) -> list[float]:
        return [float(np.mean([(run[t - 1] or {})[layer][name] for run in used])) for t in steps]

    rows = -(-len(layers) // 2)
    with styled():
        figure = canvas(0.6 + 1.55 * rows)
        panels = list(figure.subplots(rows, 2, squeeze=False).flat)
        for axes, layer in zip(panels, layers, strict=False):
            new, total, width = (counted(layer, name) for name in ("new", "total", "width"))
            axes.bar(steps, new, 0.6, color=PALETTE["orange"], hatch="///", linewidth=0, label="new")
            axes.plot(steps, total, "o--", color=INK, linewidth=1, markersize=3, label="total so far")
            axes.axhline(width[0], color=FAINT, linewidth=1)
            axes.set_ylim(0, 1.12 * width[0])
            axes.set_xticks(steps)
            axes.set_xlabel("step")
            axes.set_title(f"{layer} (of {width[0]:.0f})")
        for axes in panels[len(layers) :]:
            axes.set_visible(False)
        figure.supylabel("channels", fontsize=8.5)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=7.5, handlelength=1.5)
    caption = (
        f"{cell.label}: new channels of each step and all channels so far, by layer; grey line: the layer's width. "
        f"Every later step's mask includes all earlier channels, for any data; {seeds([cell])}."
    )
    return draw(figure, f"capacity-{cell.id}", "Neuron usage per layer and step", caption, (cell.id,))
