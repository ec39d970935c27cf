"""The part of a network that is a client's own: where deviations lie."""

from typing import Literal

import torch
from torch import Tensor

from pfeddsh.models.base import Model

Personal = Literal["auto", "all", "head", "norm+head", "dense"]
LARGE = 150_000  # weights beyond which `auto` leaves most of them common: W2 of 512 hidden units takes 300 MB there


def part(model: Model, personal: Personal) -> slice | Tensor:
    """Where in the flat vector it lies: all of it, the last layer, that and the scales of normalisations, or the tail.

    `auto` is all of a small network, and scales and last layer of one with more than 150,000 weights.
    """
    if personal == "auto":
        personal = "all" if model.size <= LARGE else "norm+head"
    if personal == "norm+head" and model.scales:
        places = (*model.scales, model.head)
        return torch.cat([torch.arange(place.start, place.stop) for place in places])
    if personal == "all":
        return slice(0, model.size)
    return model.dense if personal == "dense" else model.head


def added(theta: Tensor, place: slice | Tensor, deviation: Tensor) -> Tensor:
    """Weights, or a row of them each, with deviations of a part added."""
    result = theta.expand(*deviation.shape[:-1], -1).clone()
    result[..., place] += deviation
    return result
