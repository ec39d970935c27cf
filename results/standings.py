"""Who is ahead for everyone at the end: the documents' main table, and the overview of all places."""

from collections.abc import Sequence
from statistics import fmean

from behind import leads, others, place
from runs import MEASURES, Runs
from wording import CONTROLS, DATASETS, GROWING, NAMES, ORACLES, RIVALS, SCHEDULES, named, readable

from pfeddsh.report import measures
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import over_seeds
from pfeddsh.report.table import by

HEADINGS = {
    "end": "everyone at the end, %", "kept": "if existing clients kept theirs", "lost": "lost > 2 points, %",
    "first": "first batch after its step, %", "change": "its change to the end", "pa": "PA of newcomers",
    "pa3": "3+ visits", "zero": "zero-shot",
}  # fmt: skip


def main_table(runs: Runs, schedule: str, dataset: str = "cifar10", variants: bool = False, **protocol: object) -> str:
    """One line a method, the best for everyone at the end first; columns are of the whole run. Or its `variants`.

    A column that says the same as one before it, as PA of those with three visits where all have them, is left out.
    """
    group = runs.group(schedule, dataset, **protocol)
    if group is None:
        return "No runs yet."
    cells = by(measures.everyone_at_the_end, (cell for cell in group.cells if _in_table(cell, group, variants)))
    if not cells:
        return "No runs yet."
    lines = [[over_seeds(cell, MEASURES[key][0]) for key in HEADINGS] for cell in cells]
    columns = list(zip(*lines, strict=True))
    shown = [i for i, column in enumerate(columns) if any(column) and column not in columns[:i]]
    headings, forms = list(HEADINGS.values()), [MEASURES[key][1] for key in HEADINGS]
    text = ["| | " + " | ".join(headings[i] for i in shown) + " | seeds |", "|---|" + "---:|" * (len(shown) + 1)]
    ours, allowed = group.main.get("pfeddsh"), [cell for cell in cells if cell.variant.method not in ORACLES]
    best = next((cell for cell in allowed if cell is ours or not ours or _lead(cell, ours) > 0), None)
    for cell, line in zip(cells, lines, strict=True):
        parts = [f"{spread.mean:{forms[i]}}" if (spread := line[i]) else "" for i in shown]
        parts[0] = f"**{parts[0]}**" if cell is best and not variants else parts[0]
        text.append(f"| {readable(cell)} | " + " | ".join(parts) + f" | {len(cell.runs)} |")
    return "\n".join(text)


def _in_table(cell: Cell, group: Group, variants: bool) -> bool:
    """Methods as they are, our controls and whoever is ahead of pFedDSH; settings of others are `variants`.

    Of pFedDSH's own forms those that have a name here; its ablations have tables of their own.
    """
    if cell.variant.ablation and cell.variant.method not in NAMES:
        return False
    ours = group.main.get("pfeddsh")
    settings = dict(cell.variant.settings)
    if settings.get("existing") == "keep":
        return False  # a column says it
    protected = {"later", "existing"} & settings.keys()
    ahead = ours is not None and _lead(cell, ours) > 0
    return variants != (not cell.variant.settings or bool(protected) or ahead)


def _lead(cell: Cell, other: Cell) -> float:
    """For everyone at the end, on the seeds that both have; nobody leads without any."""
    found = leads(cell, other, "end")
    return fmean(found.values()) if found else 0.0


def nearest(runs: Runs, labels: Sequence[str], schedule: str, dataset: str = "cifar10") -> tuple[float, float, str]:
    """Of these, the one that pFedDSH leads by least for everyone at the end: its mean, the lead, and whose it is.

    Both on the seeds that both have.
    """
    group = runs.group(schedule, dataset)
    found = _nearest([cell for cell in group.cells if cell.label in labels], group.main["pfeddsh"]) if group else None
    if found is None:
        raise LookupError(f"none of {', '.join(labels)} was run beside pfeddsh on {dataset} with {schedule}")
    return found


def _nearest(cells: Sequence[Cell], own: Cell) -> tuple[float, float, str] | None:
    found = [(-fmean(ahead.values()), list(ahead), cell) for cell in cells if (ahead := leads(cell, own, "end"))]
    if not found:
        return None
    lead, seeds, cell = min(found, key=lambda each: each[0])
    spread = over_seeds(cell, MEASURES["end"][0], seeds)
    return (spread.mean, lead, named(cell.label)) if spread else None


def steadiest(runs: Runs) -> tuple[str, float]:
    """The control that falls least behind pFedDSH in the schedule that suits it least, and how far."""
    complete = [label for label in CONTROLS if all(runs.cell(label, schedule) for schedule in SCHEDULES)]
    return min(((label, furthest(runs, label)) for label in complete), key=lambda pair: pair[1])


def furthest(runs: Runs, label: str) -> float:
    """How far behind pFedDSH at the most, in points, of the schedules it was run with, on the seeds that both have."""
    return max(nearest(runs, [label], schedule)[1] for schedule in SCHEDULES if runs.cell(label, schedule))


def overview(runs: Runs) -> str:
    """Each place in one line: pFedDSH, the nearest control and rival, and pooled training.

    All with the paper's protocol, and of the others those in which somebody is ahead of pFedDSH or level with it. A
    method counts with every setting it was run with: frozen after step 1, or its existing clients keep theirs.
    """
    usual = [runs.group(schedule, dataset) for dataset in DATASETS for schedule in (*SCHEDULES, *GROWING)]
    groups = [group for group in usual if group and "pfeddsh" in group.main]
    groups += [group for group in runs.groups if group not in groups and _lost(group)]
    text = ["| everyone at the end, % | pFedDSH | nearest simple control | nearest rival | pooled training |"]
    return "\n".join([*text, "|---|---:|---|---|---:|", *map(_line, groups)])


def _line(group: Group) -> str:
    own, central = group.main["pfeddsh"], group.main.get("central")
    kinds = (
        [cell for cell in group.cells if cell.label in CONTROLS],
        [c for c in group.cells if c.variant.method in RIVALS],
    )
    told = [_mean(own), *(_told(cells, own) for cells in kinds), _mean(central)]
    return f"| {place(group)} | {' | '.join(told)} |"


def _told(cells: Sequence[Cell], own: Cell) -> str:
    found = _nearest(cells, own)
    return f"{found[0]:.1f} {found[2]} ({found[1]:+.1f})" if found else ""


def _mean(cell: Cell | None) -> str:
    spread = over_seeds(cell, MEASURES["end"][0]) if cell else None
    return f"{spread.mean:.1f}" if spread else ""


def _lost(group: Group) -> bool:
    """Somebody who is no oracle is ahead of pFedDSH there by the mean, or level with it as far as is told."""
    own = group.main.get("pfeddsh")
    return own is not None and any(round(_lead(cell, own), 1) >= 0 for cell in others(group))
