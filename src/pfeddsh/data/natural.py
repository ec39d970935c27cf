"""Clients as the data name them: sites, devices, people. Nothing is drawn; what fits is checked and said."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pfeddsh.data.partition import Partition
from pfeddsh.data.splits import listed
from pfeddsh.errors import UserError, unknown

Numbers = npt.NDArray[np.int64]
LEAST = {"train": 2, "test": 1}  # images of every client


def natural(
    labels: tuple[Numbers, Numbers],
    owners: tuple[Numbers, Numbers],
    names: Sequence[str],
    *,
    classes: int,
    clients: int,
    order: Sequence[str] = (),
) -> Partition:
    """The partition that the data bring along: `owners` number `names`, in train and test.

    Clients are numbered as `order` lists them, all of them, or as `names` do. There must be as many as the schedule
    has, each with at least two images to train on and one to test with.

    >>> y, own = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
    >>> parts = natural((y, y), (own, own), ("here", "there"), classes=2, clients=2)
    >>> [part.tolist() for part in parts.train]
    [[1, 3], [0, 2]]
    """
    chosen = list(order) or list(names)
    for name in chosen:
        if name not in names:
            raise unknown("client in the order", name, names)
    if len(chosen) != len(names) or len(set(chosen)) != len(chosen):
        twice = [name for name in dict.fromkeys(chosen) if chosen.count(name) > 1]
        missing = [name for name in names if name not in chosen]
        problem = f"{listed(twice)} occurs twice" if twice else f"{listed(missing)} is missing"
        raise UserError(f"order: {problem}; name each of the {len(names)} clients once")
    if clients != len(names):
        raise UserError(
            f"the schedule has {clients} clients, the data have {len(names)} ({listed(list(names))}); "
            f"write a schedule of {len(names)}, for instance {example(len(names))}, or all"
        )
    numbers = [names.index(name) for name in chosen]
    parts = [tuple(np.flatnonzero(own == number) for number in numbers) for own in owners]
    poor = [
        f"{name} ({len(train)} train, {len(test)} test)"
        for name, train, test in zip(chosen, *parts, strict=True)
        if len(train) < LEAST["train"] or len(test) < LEAST["test"]
    ]
    if poor:
        raise UserError(f"too few images at {listed(poor)}: every client needs 2 to train on and 1 to test with")
    counts = [
        np.stack([np.bincount(y[index], minlength=classes) for index in part])
        for y, part in zip(labels, parts, strict=True)
    ]
    return Partition(parts[0], parts[1], counts[0], counts[1], tuple(chosen))


def example(clients: int) -> str:
    """A schedule for so many clients: most at first, the others later."""
    later = max(1, clients // 5)
    return f"{clients - later}+{later}" if clients > later else str(clients)
