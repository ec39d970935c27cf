"""Two cells against each other, client by client in the same seed."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


FEW = 3  # with fewer seeds nothing is said about the next training run
LEVEL = 0.05
TOO_FEW = "too few seeds"


@dataclass(frozen=True)
class PairedTest:
    """One cell against a rival, over the seeds that both have: client by client, and seed by seed."""

    rival: str
    difference: float  # mean of the seeds' mean differences, points
    seeds: int
    better: int  # in how many of these seeds
    clients: int
    p: float  # over clients
    p_seeds: float | None  # None: too few seeds

    @property
    def beyond_chance(self) -> str:
        """Only where both tests say so."""
        if self.p_seeds is None:
            return TOO_FEW
        return "yes" if max(self.p, self.p_seeds) < LEVEL else "no"


def compare(cell: Cell, rival: Cell, per_client: PerClient) -> PairedTest | None:
    """Wilcoxon's signed-rank test over clients, and Student's t-test over the seeds' means, each paired with the rival.

    Clients of one seed share a training run: the first p tells whether these clients differ, the second whether the
    next training run would.
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
    return PairedTest(
        rival.label, statistics.fmean(means), len(means), sum(value > 0 for value in means), len(every),
        signed_rank(every), over_runs(means),
    )  # fmt: skip


def over_runs(differences: Sequence[float]) -> float | None:
    """Two-sided p of a paired t-test, a difference a seed; None if there are too few."""
    from scipy.stats import ttest_1samp

    if len(differences) < FEW:
        return None
    if len(set(differences)) == 1:
        return 0.0 if differences[0] else 1.0
    return float(ttest_1samp(differences, 0.0).pvalue)


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


def gap(cell: Cell, rival: Cell, measure: Measure) -> float | None:
    """Difference of the means over the seeds that both have, if they share any."""
    if not (shared := shared_seeds(cell, rival)):
        return None
    own, theirs = over_seeds(cell, measure, shared), over_seeds(rival, measure, shared)
    return own.mean - theirs.mean if own and theirs else None


def shared_seeds(*cells: Cell) -> set[int]:
    return set.intersection(*({run.results.seed for run in cell.runs} for cell in cells))


def best_other(cell: Cell, cells: Sequence[Cell], measure: Measure) -> Cell | None:
    """The rival that leaves this cell the least, each judged on the seeds it shares with it."""
    gaps = [(found, rival) for rival in cells if rival is not cell and (found := gap(cell, rival, measure)) is not None]
    return min(gaps, key=lambda pair: pair[0])[1] if gaps else None


def ranking(cells: Sequence[Cell], measure: Measure) -> list[tuple[Cell, Spread]]:
    """The best first: who leads its best rival by most, or is least behind it, on the seeds that the two share."""

    def lead(cell: Cell) -> float:
        rival = best_other(cell, cells, measure)
        found = gap(cell, rival, measure) if rival else None
        return -math.inf if found is None else found

    spreads = [(cell, spread) for cell in cells if (spread := over_seeds(cell, measure))]
    return sorted(spreads, key=lambda pair: -lead(pair[0]))


def against_best(cells: Sequence[Cell], measure: Measure, per_client: PerClient
                 ) -> dict[str, PairedTest]:  # fmt: skip
    """Every cell against the best of the others; both p corrected over the table."""
    found = {
        cell.id: comparison
        for cell in cells
        if (rival := best_other(cell, cells, measure)) and (comparison := compare(cell, rival, per_client))
    }
    fair = dict(zip(found, holm([test.p for test in found.values()]), strict=True))
    seeded = {key: test.p_seeds for key, test in found.items() if test.p_seeds is not None}
    corrected = dict(zip(seeded, holm(list(seeded.values())), strict=True))
    return {key: replace(test, p=fair[key], p_seeds=corrected.get(key)) for key, test in found.items()}
