"""What a table or figure shows of one run, of the runs of one cell, and of two cells against each other."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pfeddsh.report.arrange import Cell, comparable
from pfeddsh.report.read import Results, mean
from pfeddsh.results.metrics import changes

Measure = Callable[[Results], float | None]


class Spread(NamedTuple):
    """Mean and standard deviation over n seeds; none for a single one."""

    mean: float
    deviation: float | None
    n: int


def over_seeds(cell: Cell, measure: Measure) -> Spread | None:
    values = [value for run in cell.runs if (value := measure(run.results)) is not None]
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


# Of one run


def batch_accuracy(run: Results, step: int, batch: int) -> float | None:
    """Mean accuracy of a batch after a step."""
    return mean([run.acc[step - 1][k] for k, joined in enumerate(run.batch) if joined == batch])


def first_step(run: Results) -> float | None:
    return batch_accuracy(run, 1, 1)


def first_batch_alone(run: Results) -> float | None:
    return mean([run.local[k] for k, joined in enumerate(run.batch) if joined == 1])


def first_batch_at_the_end(run: Results) -> float | None:
    return batch_accuracy(run, run.steps, 1)


def everyone_at_the_end(run: Results) -> float | None:
    return mean(run.acc[-1])


def pa_last(run: Results) -> float | None:
    """PA of the last batch, as in the paper's Table 1; of a run with one step, none."""
    return run.pa[-1] if run.steps > 1 else None


def pa_mean(run: Results) -> float | None:
    return run.pa_mean if run.steps > 1 else None


def pa_zero_shot(run: Results) -> float | None:
    """Newcomers before any round of their step."""
    return mean(run.pa_zero_shot[1:]) if run.pa_zero_shot else None


def ri_last(run: Results) -> float | None:
    return run.ri_last


def ri_total(run: Results) -> float | None:
    return run.ri_cumulative


def ri_lowest(run: Results) -> float | None:
    return min((value for value in run.ri if value is not None), default=None)


def ri_unguarded(run: Results) -> float | None:
    """RI of the last step had nobody kept a model of its own."""
    bare = run.acc_unguarded
    return mean(changes(bare, run.batch, run.steps)) if bare and run.steps > 1 else None


def worse(run: Results) -> float | None:
    """Share of existing clients, over all steps, that lost anything, in %."""
    every = [change for step in range(2, run.steps + 1) for change in changes(run.acc, run.batch, step)]
    return 100 * sum(change < 0 for change in every) / len(every) if every else None


def since_joining(run: Results) -> dict[int, float]:
    """Per client that has seen others join: its change from its own step to the end."""
    return {
        k: end - start
        for k, joined in enumerate(run.batch)
        if joined < run.steps and (end := run.acc[-1][k]) is not None and (start := run.acc[joined - 1][k]) is not None
    }


class Loss(NamedTuple):
    """What one client lost over one step, in points."""

    points: float
    client: int
    step: int
    seed: int


def worst_loss(cell: Cell) -> Loss | None:
    """The largest loss of an existing client over any step of any seed; None if nobody lost."""
    losses = [
        Loss(before - after, k, step, run.results.seed)
        for run in cell.runs
        for step in range(2, run.results.steps + 1)
        for k, joined in enumerate(run.results.batch)
        if joined < step
        and (before := run.results.acc[step - 2][k]) is not None
        and (after := run.results.acc[step - 1][k]) is not None
        and after < before
    ]
    return max(losses, key=lambda loss: (loss.points, -loss.seed, -loss.client, -loss.step), default=None)


# Of two cells


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


@dataclass(frozen=True)
class Comparison:
    """One cell against a rival, client by client."""

    rival: str
    difference: float  # mean of the seeds' mean differences, points
    seeds: int
    better: int  # in how many of these seeds
    clients: int
    p: float


def compare(cell: Cell, rival: Cell, per_client: Callable[[Results], dict[int, float]]) -> Comparison | None:
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
    return Comparison(rival.label, statistics.fmean(means), len(means), better, len(every), signed_rank(every))


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p; clients without a difference count half for each side (Pratt)."""
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


def against_best(cells: Sequence[Cell], measure: Measure, per_client: Callable[[Results], dict[int, float]]
                 ) -> dict[str, Comparison]:  # fmt: skip
    """Every cell against the best of the others; p corrected over the table."""
    scored = {c.id: s.mean for c in cells if (s := over_seeds(c, measure)) is not None}
    ranked = sorted((c for c in cells if c.id in scored), key=lambda c: -scored[c.id])
    found = {}
    for cell in ranked:
        rival = next((other for other in ranked if other is not cell), None)
        if rival and (comparison := compare(cell, rival, per_client)):
            found[cell.id] = comparison
    fair = holm([comparison.p for comparison in found.values()])
    return {
        key: Comparison(c.rival, c.difference, c.seeds, c.better, c.clients, p)
        for (key, c), p in zip(found.items(), fair, strict=True)
    }
