"""Draw the documentation's figures from the runs in this folder: `python results/figure.py`.

docs/first-batch.png: what happens to the first batch as others join. docs/growth.png: the same where most clients come
later. Colours are those of the report.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from runs import HERE, Runs
from wording import plain

from pfeddsh.report import growth
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.looks import looks

FIRST_BATCH = ("pfeddsh", "fedavg-prior, existing=guard", "fedavg-prior", "fedper", "fedavg")
GROWTH = ("20+80", "10+90", "20+4x20", "10+9x10")
LINES = ("pfeddsh", "fedavg-prior", "fedavg-prior-finetune", "fedper", "fedrep", "pefll")  # the tables have all


def name(cell: Cell) -> str:
    return f"{plain(cell)} (n={len(cell.runs)})"


def draw_first_batch(runs: Runs, out: Path) -> None:
    """Change of the first batch since its own step, on the schedule of the paper's ablation."""
    found = runs.group("80+4x5")
    if found is None:
        print(f"no runs on cifar10 with 80+4x5, so {out.name} stays as it is")
        return
    styles, cells = looks(found), {cell.label: cell for cell in found.cells}
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for cell in (cells[method] for method in FIRST_BATCH if method in cells):
        style, curves = styles[cell.id], growth.curves(cell)
        curves = curves - curves[:, :1]
        steps = range(1, curves.shape[1] + 1)
        axes.plot(steps, curves.mean(0), label=name(cell), **style)
        axes.fill_between(steps, curves.min(0), curves.max(0), color=style["color"], alpha=0.15, linewidth=0)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xticks(range(1, 6))
    axes.set_xlabel("onboarding step (80 clients, then 4 times 5)")
    axes.set_ylabel("change of the first batch\n(accuracy, points)")
    axes.set_title("CIFAR-10: existing clients as others join, never retrained", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=160)


def draw_growth(runs: Runs, out: Path) -> None:
    """The first batch's accuracy as the federation grows, a panel a schedule; schedules without its lines are left out.

    The band is from the lowest to the highest seed of the first line.
    """
    found = [(group, _lines(group)) for schedule in GROWTH if (group := runs.group(schedule))]
    shown = [(group, chosen) for group, chosen in found if chosen]
    if not shown:
        print(f"no runs of a growing federation (examples/growth.toml) here yet, so there is no {out.name}")
        return
    rows = -(-len(shown) // 2)
    figure, panels = plt.subplots(
        rows, min(2, len(shown)), figsize=(8, 3.7 * rows + 0.8), layout="constrained", squeeze=False, sharey=True
    )
    for axes, (group, chosen) in zip(panels.flat, shown, strict=False):
        growth.plot(axes, group, chosen, {cell.id: plain(cell) for cell in chosen}, chosen[:1])
        axes.set_title(f"{group.schedule} (n={len(chosen[0].runs)})", fontsize=11)
        axes.xaxis.label.set_size(8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels.flat)[len(shown) :]:
        axes.set_visible(False)
    drawn = {text: line for axes in panels.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(drawn.values()), list(drawn), frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    figure.suptitle("CIFAR-10: the first batch's accuracy as the federation grows", fontsize=11)
    figure.savefig(out, dpi=160)


def _lines(group: Group) -> list[Cell]:
    cells = {cell.label: cell for cell in group.contest}
    return [cells[method] for method in LINES if method in cells]


def main() -> None:
    runs = Runs()
    docs = HERE.parent / "docs"
    draw_first_batch(runs, docs / "first-batch.png")
    draw_growth(runs, docs / "growth.png")


if __name__ == "__main__":
    main()
