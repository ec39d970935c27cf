"""Which existing clients are looked at, where a run evaluates a sample of them.

Every client has a rank that follows from the seed and its number alone; the sample are the lowest. So it is drawn at
random, the same for all methods, and whoever is in it stays until newcomers with lower ranks take the place: changes
from step to step are those of the same clients.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pfeddsh.rng import derive


def panel(seed: int, clients: Sequence[int], count: int) -> list[int]:
    """So many of these clients, in their order; all of them if they are no more."""
    if len(clients) <= count:
        return list(clients)
    numbers = np.asarray(clients, dtype=np.uint64)
    chosen = np.argpartition(_ranks(numbers, derive(seed, "evaluate")), count)[:count]
    return [int(k) for k in np.sort(numbers[chosen])]


def _ranks(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """SplitMix64: distinct numbers get distinct ranks."""
    mixed = (numbers + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
