"""Protection by projection: newcomers write only where no existing client reads.

An existing client's weights are b2 + W2 h with a fixed key h. An update D p^T of W2 with <p, h> = 0 does not change
them, in any row, so no capacity is spent. The keys of n clients span at most n of the hidden dimensions; what a
newcomer's key has outside that span is its own to write to. Not in the paper, which gates rows instead (Eq. 11).
"""

import torch
from torch import Tensor

FLOOR = 0.02  # of the energy by which a projected key is rescaled
TOLERANCE = 1e-8  # keys are float32: whatever is left of one below this is rounding


def empty(hidden: int) -> Tensor:
    """The basis before anyone has joined: no column."""
    return torch.zeros(hidden, 0, dtype=torch.float64)


def extend(basis: Tensor, keys: Tensor) -> Tensor:
    """The orthonormal basis (hidden x r, float64) grown by the keys (m x hidden) of a batch that is done training.

    Columns already there keep their bits. Keys within the span, such as a copy of an existing one, add nothing. New
    directions are made orthogonal a second time once they have unit length: what is left of a near copy is small, and
    so imprecise.
    """
    residual = _outside(basis, keys.double())
    directions, sizes, _ = torch.linalg.svd(residual.t(), full_matrices=False)
    fresh = _outside(basis, directions[:, sizes > TOLERANCE].t().contiguous())
    columns, _ = torch.linalg.qr(fresh.t())
    return torch.cat([basis, columns], dim=1)


def energy(basis: Tensor, keys: Tensor) -> Tensor:
    """The share of each key's squared norm outside the basis: 1 is all of it, 0 means nothing can be learned."""
    return _outside(basis, keys.double()).square().sum(1)


def project(basis: Tensor, keys: Tensor) -> Tensor:
    """What to write to in place of the keys (m x hidden): p = h_out / max(||h_out||^2, floor).

    As <p, h> = 1 above the floor, the sampled newcomer moves by exactly rate * D, as if nothing had been projected.
    """
    residual = _outside(basis, keys.double())
    return (residual / residual.square().sum(1, keepdim=True).clamp_min(FLOOR)).float()


def exhausted(basis: Tensor, keys: Tensor) -> bool:
    """Whether these newcomers can no longer be told apart from those whose keys span the basis.

    There are fewer directions left than newcomers, or half of them keep too little of their keys outside.
    """
    hidden, taken = basis.shape
    return hidden - taken < len(keys) or (len(keys) > 0 and float(energy(basis, keys).median()) < FLOOR)


def _outside(basis: Tensor, rows: Tensor) -> Tensor:
    """The component of each row orthogonal to the basis."""
    return rows - (rows @ basis) @ basis.t()
