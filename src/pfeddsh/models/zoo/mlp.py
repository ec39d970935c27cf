"""A perceptron with two hidden layers, for vectors of features; images it reads as such. Nothing is normalised."""

import math

from torch import nn

__all__ = ["mlp"]


def mlp(classes: int, shape: tuple[int, int, int]) -> nn.Sequential:
    """A perceptron with 128 and 64 hidden units, for vectors of features."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)
    )
