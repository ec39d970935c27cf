"""Robust aggregation: what a few clients send, by mistake or on purpose, must not carry the common model away.

`clipped` (norm clipping; Sun et al. 2019): no change is longer than twice the median of the round, so that a client's
pull is bounded, whatever it sends; who points away from where the round is going is left out of it; and nobody weighs
much more than others by the number of images that it claims. `trimmed` (the coordinate-wise trimmed mean; Yin et al.
2018): in each coordinate the largest and the smallest values do not count, and neither do images and labels.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.mechanisms import common
from pfeddsh.models.base import Model

Aggregation = Literal["mean", "clipped", "trimmed"]
TRIM = 0.2  # of the clients, at either end
LONGEST = 2.0  # times the median length that a change may have: honest ones differ too
HEAVIEST = 3.0  # times the median number of images that anyone weighs
ENOUGH = 3  # clients among which there is a direction to point away from


def aggregate(
    model: Model, deltas: Tensor, samples: Tensor, histograms: Tensor | None, rule: Aggregation = "mean"
) -> Tensor:
    """What the common model is moved by, given what clients changed (m x P); see `common.mean` for the rest."""
    if rule == "mean":
        return common.mean(model, deltas, samples, histograms)
    if rule == "trimmed":
        return trimmed(deltas)
    samples, deltas = samples.clamp_max(HEAVIEST * float(samples.median())), clipped(deltas)
    kept = along(deltas)
    return common.mean(model, deltas[kept], samples[kept], None if histograms is None else histograms[kept])


def clipped(deltas: Tensor) -> Tensor:
    """Each change, shortened to twice the median length of all if it is longer.

    >>> clipped(torch.tensor([[3.0, 4.0], [0.0, 5.0], [60.0, 80.0]]))
    tensor([[3., 4.],
            [0., 5.],
            [6., 8.]])
    """
    norms: Tensor = deltas.square().sum(1, keepdim=True).sqrt()
    return deltas * (LONGEST * norms.median() / norms.clamp_min(torch.finfo(deltas.dtype).tiny)).clamp_max(1)


def along(deltas: Tensor) -> Tensor:
    """Which changes do not point away from the median of each coordinate; all, if there are few or none is left.

    >>> along(torch.tensor([[1.0, 0.2], [0.9, 0.1], [1.0, -0.1], [-1.0, -0.1]]))
    tensor([ True,  True,  True, False])
    """
    kept = F.cosine_similarity(deltas, deltas.median(0).values[None]) > 0
    return kept if len(deltas) >= ENOUGH and bool(kept.any()) else torch.ones_like(kept)


def trimmed(deltas: Tensor) -> Tensor:
    """The mean of each coordinate without its extremes: a fifth of the clients at either end, rounded up.

    >>> trimmed(torch.tensor([[1.0], [2.0], [3.0], [4.0], [-100.0]]))
    tensor([2.])
    """
    cut = min(math.ceil(TRIM * len(deltas)), (len(deltas) - 1) // 2)
    return deltas.sort(0).values[cut : len(deltas) - cut].mean(0)
