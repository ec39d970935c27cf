"""Where pFedDSH loses, and to whom: found in the runs, so that no loss is left out."""

from statistics import fmean

from runs import MEASURES, Runs
from wording import DATASETS, ORACLES, plain

from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.paired import shared_seeds

IN = ("end", "pa", "first_end")  # the measures in which it is told
LOST = 5.0  # % of existing clients that may lose more than two points in a step


def behind(runs: Runs) -> list[list[str]]:
    """Each place in which others are ahead of pFedDSH, by the mean or on a seed: who they are, by measure."""
    lines = []
    for group in runs.groups:
        own = group.main.get("pfeddsh")
        if own is None or own.variant.settings:
            continue
        told = [_ahead(group, own, measure) for measure in IN]
        lines += [[place(group), *told]] if any(told) else []
    return lines


def losers(runs: Runs) -> list[str]:
    """Where more existing clients lose over two points in a step than should."""
    places = [(group, group.main["pfeddsh"]) for group in runs.groups if "pfeddsh" in group.main]
    shares = [(group, _mean(cell, "lost")) for group, cell in places]
    return [f"{place(group)} ({share:.1f} %)" for group, share in shares if share > LOST]


def place(group: Group) -> str:
    unlike = [f"{name}={value}" for name, value in group.setting.differs().items()] if _known(group) else []
    return ", ".join([DATASETS.get(group.setting.dataset, group.setting.dataset), group.schedule, *unlike])


def _known(group: Group) -> bool:
    """Of the walk-through's sites nearly all keys differ from the paper's protocol: they are told there."""
    return group.setting.dataset in ("cifar10", "cifar100", "tiny-imagenet", "digits")


def others(group: Group) -> list[Cell]:
    """Whom pFedDSH is compared with: no oracle, and none of its own ablations."""
    cells = (cell for cell in group.cells if cell.variant.method not in ("pfeddsh", *ORACLES))
    return [cell for cell in cells if not cell.variant.ablation]


def leads(cell: Cell, own: Cell, measure: str) -> dict[int, float]:
    """By seed, of those that both have."""
    values = [{run.results.seed: MEASURES[measure][0](run.results) for run in each.runs} for each in (cell, own)]
    pairs = {seed: (values[0][seed], values[1][seed]) for seed in sorted(shared_seeds(cell, own))}
    return {seed: a - b for seed, (a, b) in pairs.items() if a is not None and b is not None}


def _ahead(group: Group, own: Cell, measure: str) -> str:
    told = (cell for cell in others(group) if measure != "pa" or ("existing", "keep") not in cell.variant.settings)
    found = [(leads(cell, own, measure), cell) for cell in told]  # newcomers do not notice what existing clients keep
    return "; ".join(text for each, cell in sorted(found, key=_largest) if (text := _told(each, cell)))


def _told(found: dict[int, float], cell: Cell) -> str:
    """Ahead by the mean, or on some seed; a lead that rounds to nothing is none."""
    mean = fmean(found.values()) if found else 0.0
    if round(mean, 1) > 0:
        return f"{plain(cell)} ({mean:+.1f}, {len(found)} seed{'s' * (len(found) > 1)})"
    single = [f"{lead:+.1f} on seed {seed}" for seed, lead in found.items() if round(lead, 1) > 0]
    return f"{plain(cell)} (only {' and '.join(single)})" if single else ""


def _mean(cell: Cell, measure: str) -> float:
    values = [value for run in cell.runs if (value := MEASURES[measure][0](run.results)) is not None]
    return fmean(values) if values else 0.0


def _largest(pair: tuple[dict[int, float], Cell]) -> float:
    return -fmean(pair[0].values()) if pair[0] else 0.0
