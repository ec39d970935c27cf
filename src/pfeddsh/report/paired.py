"""Two cells against each other, client by client in the same seed."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import Cell, comparable
from pfeddsh.report.measures import Measure, Spread, over_seeds

PerClient = Callable[[Results], dict[int, float]]


def at_the_end(run: Results) -> dict[int, float]:
    """Accuracy of everyone after the last step."""
    return {k: a for k, a in enumerate(run.acc[-1]) if a is not None}


def newcomers(run: Results) -> dict[int, float]:
    """Accuracy of the last batch: PA up to the local-only accuracy, which cancels between methods."""
    last = run.acc[-1]
    return {k: a for k, joined in enumerate(run.batch) if joined == run.steps and (a := last[k]) is not None}


def existing(run: Results) -> dict[int, float]:
    """Change of each existing client over the last step."""
    pairs = zip(run.acc[-1], run.acc[-2], run.batch, strict=True) if run.steps > 1 else ()
    return {
        k: z - a for k, (z, a, joined) in enumerate(pairs) if joined < run.steps and z is not None and a is not None
    }


def everyone_who_joined(run: Results) -> dict[int, float]:
    """Accuracy of all later clients at the end of their own step."""
    own = {k: run.acc[joined - 1][k] for k, joined in enumerate(run.batch) if 1 < joined <= run.steps}
    return {k: a for k, a in own.items() if a is not None}


def first_batch(run: Results) -> dict[int, float]:
    """Change of each client of the first batch over the whole run."""
    pairs = zip(run.acc[-1], run.acc[0], run.batch, strict=True)
    return {k: z - a for k, (z, a, joined) in enumerate(pairs) if joined == 1 and z is not None and a is not None}


@dataclass(frozen=True)
class PairedTest:
    """One cell against a rival, client by client."""

    rival: str
    difference: float  # mean of the seeds' mean differences, points
    seeds: int
    better: int  # in how many of these seeds
    clients: int
    p: float


def compare(cell: Cell, rival: Cell, per_client: PerClient) -> PairedTest | None:
    """Wilcoxon's signed-rank test over clients, each paired with itself under the rival in the same seed.

    Over three seeds no rank test can fall below p = 0.25, so seeds are counted, not tested. Clients of one seed share a
    training run: p tells whether these clients differ, not whether the next training run would.
    """
    others = {run.results.seed: run for run in rival.runs}
    by_seed: list[list[float]] = []
    for run in cell.runs:
        twin = others.get(run.results.seed)
        if twin is None or not comparable(run, twin):
            continue
        own, theirs = per_client(run.results), per_client(twin.results)
        by_seed += [[own[k] - theirs[k] for k in own.keys() & theirs.keys()]]
    by_seed = [seed for seed in by_seed if seed]
    if not by_seed:
        return None
    means = [statistics.fmean(seed) for seed in by_seed]
    every = [difference for seed in by_seed for difference in seed]
    better = sum(value > 0 for value in means)
    return PairedTest(rival.label, statistics.fmean(means), len(means), better, len(every), signed_rank(every))


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p after Pratt: clients without a difference are ranked with the others, then their ranks are left out.

    So ties take the lowest ranks and the real differences keep the higher ones, but a tie speaks for neither side.
    """
    from scipy.stats import wilcoxon

    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="pratt").pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, floor = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        floor = max(floor, min(1.0, values[i] * (len(values) - rank)))
        corrected[i] = floor
    return corrected


def ranking(cells: Sequence[Cell], measure: Measure) -> list[tuple[Cell, Spread]]:
    """The best first, by the seeds that all of them have; if there are none, by all."""
    shared = set.intersection(*({run.results.seed for run in cell.runs} for cell in cells)) if cells else set()
    spreads = [(cell, over_seeds(cell, measure, shared)) for cell in cells]
    return sorted(((c, s) for c, s in spreads if s), key=lambda pair: -pair[1].mean)


def against_best(cells: Sequence[Cell], measure: Measure, per_client: PerClient
                 ) -> dict[str, PairedTest]:  # fmt: skip
    """Every cell against the best of the others; p corrected over the table."""
    ranked = [cell for cell, _ in ranking(cells, measure)]
    found = {}
    for cell in ranked:
        rival = next((other for other in ranked if other is not cell), None)
        if rival and (comparison := compare(cell, rival, per_client)):
            found[cell.id] = comparison
    fair = holm([comparison.p for comparison in found.values()])
    return {
        key: PairedTest(c.rival, c.difference, c.seeds, c.better, c.clients, p)
        for (key, c), p in zip(found.items(), fair, strict=True)
    }
