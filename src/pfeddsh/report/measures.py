"""What a table or figure shows of one run, and of the runs of one cell."""

import statistics
from collections.abc import Callable, Collection
from typing import NamedTuple

from pfeddsh.report.contract import Results, mean
from pfeddsh.report.grouping import Cell
from pfeddsh.results.metrics import changes, cumulative_improvement, lost_share

Measure = Callable[[Results], float | None]


class Spread(NamedTuple):
    """Mean and standard deviation over n seeds; none for a single one."""

    mean: float
    deviation: float | None
    n: int


def over_seeds(cell: Cell, measure: Measure, seeds: Collection[int] = ()) -> Spread | None:
    """Over all seeds of a cell, or some of them."""
    runs = [run.results for run in cell.runs if not seeds or run.results.seed in seeds]
    values = [value for run in runs if (value := measure(run)) is not None]
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
    """What decides: the mean accuracy of all who are there after the last step."""
    return run.acc_end_mean


def lost(run: Results) -> float | None:
    """Share of existing clients that lost more than two points over a step, mean over later steps, in %."""
    return mean(run.lost_share or ())


def pa_last(run: Results) -> float | None:
    """PA of the last batch, as in the paper's Table 1; of a run with one step, none."""
    return run.pa[-1] if run.steps > 1 else None


def pa_mean(run: Results) -> float | None:
    return run.pa_mean if run.steps > 1 else None


def pa_sampled_last(run: Results) -> float | None:
    """PA of those of the last batch that were sampled at least three times."""
    return run.pa_sampled[-1] if run.pa_sampled and run.steps > 1 else None


def pa_sampled_mean(run: Results) -> float | None:
    return mean(run.pa_sampled[1:]) if run.pa_sampled else None


def zero_shot_last(run: Results) -> float | None:
    """PA of the last batch before any round of its step."""
    return run.pa_zero_shot[-1] if run.pa_zero_shot and run.steps > 1 else None


def zero_shot_mean(run: Results) -> float | None:
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


def ri_total_unguarded(run: Results) -> float | None:
    """Change of the first batch over the whole run, had nobody kept a model of its own."""
    bare = run.acc_unguarded
    return cumulative_improvement([run.acc[0], bare[-1]], run.batch) if bare and run.steps > 1 else None


def everyone_unguarded(run: Results) -> float | None:
    """Everyone at the end, had nobody kept a model of its own."""
    return mean(run.acc_unguarded[-1]) if run.acc_unguarded else None


def lost_unguarded(run: Results) -> float | None:
    """Share of existing clients that would then have lost more than two points over a step, mean over later steps."""
    return mean(lost_share(run.acc_unguarded, run.batch)) if run.acc_unguarded else None


def replay_seconds(run: Results) -> float | None:
    """Per later step."""
    return mean(run.seconds.replay_per_step[1:])


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
