"""The common model: one vector that learns from everyone in every step, and has one version a step.

Under label skew a plain mean of what clients trained dilutes the output layer: a client moves the rows of the classes
it has, and most others have not seen them. So each row is the mean over the clients weighted by how much of their
change went into it. That says whose class it is about as well as label histograms do, and nobody has to send one
(results/trials.csv). Everything below is weighted by the number of images, as in FedAvg.
"""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from pfeddsh.mechanisms import averaging
from pfeddsh.models.base import Model

SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)  # how far a version may follow its step, beside what the count gives
VOTERS = 3  # fewer clients do not speak for all


def mean(model: Model, deltas: Tensor, samples: Tensor) -> Tensor:
    """The mean of what clients (m x P) changed, by images; rows of the output layer also by `row_shares`."""
    result = averaging.mean(deltas, samples / samples.sum())
    counts = samples[:, None] * row_shares(model, deltas)
    weights = counts / counts.sum(0).clamp_min(torch.finfo(counts.dtype).tiny)
    result[model.head] = (weights[:, model.head_classes] * deltas[:, model.head]).sum(0)
    return result


def row_shares(model: Model, deltas: Tensor) -> Tensor:
    """How much of each client's change of the output layer, squared, went into the row of each class (m x classes).

    The shares of a client add up to one, however large its change is: nobody gains weight by training harder.
    """
    squares = deltas[:, model.head].double().square()
    rows = squares.new_zeros(len(deltas), model.classes).index_add_(1, model.head_classes, squares)
    return (rows / rows.sum(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)).to(deltas.dtype)


def blend(before: Tensor, trained: Tensor, share: float) -> Tensor:
    """What existing clients are offered after a step: their version, moved by this share of what the step changed.

    Its extremes are exact.
    """
    return trained.clone() if share == 1 else before + share * (trained - before)


def share(newcomers: int, existing: int) -> float:
    """How much of a step existing clients are offered at least: newcomers for each of them, at most all.

    Five newcomers beside eighty have often seen too little to speak for everyone; once as many have come as there were,
    they know the common task better than the version before them (results/trials.csv).

    >>> share(5, 80), share(80, 20)
    (0.0625, 1.0)
    """
    return min(1.0, newcomers / max(1, existing))


def candidates(least: float) -> list[float]:
    """What a client chooses from when it is asked how far its version should follow a step.

    >>> candidates(0.25)
    [0.25, 0.5, 0.75, 1.0]
    """
    return [least, *(share for share in SHARES if share > least)]


def agreed(shares: Sequence[float], least: float) -> float:
    """How much of a step they are offered by what some of them found best for themselves: the median, the lower of two.

    Most label-skewed clients are hurt by more than that, and a few who answer falsely cannot move it far.

    >>> agreed([0.0625, 0.125, 0.25, 1.0], least=0.0625), agreed([1.0, 1.0], least=0.0625)
    (0.125, 0.0625)
    """
    return max(least, statistics.median_low(shares)) if len(shares) >= VOTERS else least
