"""What a sample of existing clients says of everyone, and how far off that may be.

Newcomers of a step are all evaluated; of existing clients a sample, drawn without replacement. Everyone's mean is then
the newcomers' mean and the sample's, each weighted by how many it stands for.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

from pfeddsh.results.metrics import Row, changes


def estimate(row: Row, batch: Sequence[int], step: int, absent: Collection[int]) -> tuple[float | None, float | None]:
    """The mean accuracy of everyone present after a step, and its standard error."""
    known = [(joined, a) for a, joined in zip(row, batch, strict=True) if a is not None]
    new, seen = [a for joined, a in known if joined == step], [a for joined, a in known if joined < step]
    existing = sum(map(step.__gt__, batch)) - sum(batch[k] < step for k in absent)
    if not seen:
        return (sum(new) / len(new) if new and not existing else None), (0.0 if new and not existing else None)
    everyone = len(new) + existing
    mean = (sum(new) + existing * sum(seen) / len(seen)) / everyone
    error = standard_error(seen, existing)
    return mean, None if error is None else error * existing / everyone


def standard_error(values: Sequence[float], of: int) -> float | None:
    """Of the mean of so many drawn from a finite number, without replacement; None for a single one."""
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return math.sqrt(variance / count * max(0.0, 1 - count / max(of, count)))


def evaluated(acc: Sequence[Row], batch: Sequence[int], absent: Collection[int], sample: int) -> dict[str, Any]:
    """The fields of results.json that a sample adds, by step."""
    everyone = [estimate(row, batch, step, absent) for step, row in enumerate(acc, 1)]
    existing = [sum(joined < step for joined in batch) for step in range(1, len(acc) + 1)]
    change = [standard_error(changes(acc, batch, step), existing[step - 1]) for step in range(2, len(acc) + 1)]
    return {
        "sample": sample,
        "existing": existing,
        "acc_everyone": [mean for mean, _ in everyone],
        "acc_everyone_error": [error for _, error in everyone],
        "ri_error": [None, *change],
    }
