"""PA and RI as the paper defines them, from the matrix acc[t][k] (Eq. 6 and 7).

Accuracies are in %, steps are rows, clients columns, None where a client has not joined yet.
"""

from collections.abc import Sequence
from typing import Any

Row = Sequence[float | None]
LOST = 2.0  # points: less than that is the noise of a small test set
VISITS = 3  # a newcomer sampled less often has hardly taken part


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def proactive_adaptation(acc: Sequence[Row], batch: Sequence[int], local: Sequence[float | None]) -> list[float | None]:
    """PA per step: what the newcomers of a step gained over training alone."""
    result = []
    for step, row in enumerate(acc, 1):
        pairs = [(row[k], local[k]) for k, joined in enumerate(batch) if joined == step]
        result.append(mean([a - b for a, b in pairs if a is not None and b is not None]))
    return result


def sampled_adaptation(
    acc: Sequence[Row], batch: Sequence[int], local: Sequence[float | None], visits: Sequence[int]
) -> list[float | None]:
    """PA per step over newcomers sampled at least `VISITS` times: the draw decides about the others, not the method."""
    return proactive_adaptation(
        acc, batch, [a if count >= VISITS else None for a, count in zip(local, visits, strict=True)]
    )


def changes(acc: Sequence[Row], batch: Sequence[int], step: int) -> list[float]:
    """The change of each existing client's accuracy over one step (2 or later)."""
    return [
        after - before
        for after, before, joined in zip(acc[step - 1], acc[step - 2], batch, strict=True)
        if joined < step and after is not None and before is not None
    ]


def retroactive_improvement(acc: Sequence[Row], batch: Sequence[int]) -> list[float | None]:
    """RI per step: how existing clients changed without being retrained. None for step 1."""
    return [None, *(mean(changes(acc, batch, step)) for step in range(2, len(acc) + 1))]


def cumulative_improvement(acc: Sequence[Row], batch: Sequence[int]) -> float | None:
    """What the first batch gained from its own step to the last."""
    pairs = zip(acc[-1], acc[0], batch, strict=True)
    return mean([z - a for z, a, joined in pairs if joined == 1 and z is not None and a is not None])


def everyone_at_the_end(acc: Sequence[Row]) -> float | None:
    """Mean accuracy of everyone present at the end of the run: the measure that decides.

    RI rewards a low start and PA forgets those who came before; both explain, neither can be had for nothing here.
    """
    return mean([a for a in acc[-1] if a is not None]) if acc else None


def lost_share(acc: Sequence[Row], batch: Sequence[int]) -> list[float | None]:
    """Per step, the share of existing clients that lost more than `LOST` points over it, in %. None for step 1."""
    each = (changes(acc, batch, step) for step in range(2, len(acc) + 1))
    return [None, *(mean([100.0 * (change < -LOST) for change in step]) for step in each)]


def worst_drop(acc: Sequence[Row], batch: Sequence[int]) -> float:
    """The largest loss of any existing client over any step, in points."""
    return max([0.0, *(-change for step in range(2, len(acc) + 1) for change in changes(acc, batch, step))])


def summary(acc: Sequence[Row], batch: Sequence[int], local: Sequence[float | None]) -> dict[str, object]:
    """The derived fields of results.json."""
    pa = proactive_adaptation(acc, batch, local)
    ri = retroactive_improvement(acc, batch)
    return {
        "pa": pa,
        "ri": ri,
        "pa_mean": mean([value for value in pa[1:] or pa if value is not None]),
        "ri_last": ri[-1],
        "ri_cumulative": cumulative_improvement(acc, batch) if len(acc) > 1 else None,
        "worst_drop": worst_drop(acc, batch),
        "acc_end_mean": everyone_at_the_end(acc),
        "lost_share": lost_share(acc, batch),
    }


def completed(results: dict[str, Any]) -> dict[str, Any]:
    """A results.json with the derived fields that the version which wrote it did not have yet."""
    return summary(results["acc"], results["batch"], results["local"]) | results
