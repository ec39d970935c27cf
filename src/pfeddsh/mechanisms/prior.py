"""A client's label prior: how often it meets each class, as numbers that its logits are raised by.

A model that is told the prior learns what clients have in common, evidence for classes, and not how often one of them
meets a class. It is added at the client, from the client's own labels, and never travels.
"""

import torch
from torch import Tensor

RARE = 1e-3  # the least share of a class: absent is not impossible


def log_prior(histogram: Tensor) -> Tensor:
    """The logarithm of each class's share, relative to equal shares, which give zero.

    >>> log_prior(torch.full((4,), 0.25))
    tensor([0., 0., 0., 0.])
    """
    return (histogram.double().clamp_min(RARE) * histogram.shape[-1]).float().log()


def own_prior(labels: Tensor, classes: int) -> Tensor:
    """The prior of these labels. Shares are taken in double precision: equal ones give exact zeros."""
    counts = torch.bincount(labels, minlength=classes).double()
    return log_prior(counts / counts.sum())
