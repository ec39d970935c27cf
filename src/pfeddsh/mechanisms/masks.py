"""Protection by masks: each step learns which channels it uses, and weights between channels of earlier steps freeze.

The gate is sigma(s z) with one logit z for each channel (Eq. 8). The paper's gamma = 5000 has no gradient beyond
|z| = 0.003, so gamma is read as the end of an annealing across the rounds of a step, with the gradient compensation of
HAT (Serra et al. 2018). Masks are then made binary within a budget for each layer while the weights still adapt: a
frozen weight is frozen exactly, and some channels are left for later steps.
"""

import torch
from torch import Tensor

from pfeddsh.errors import UserError
from pfeddsh.models.base import Model
from pfeddsh.models.channels import Channels
from pfeddsh.models.registry import DEFAULT

GAMMA = 5000.0
ANNEALED = 0.8  # share of a step's rounds in which gates are soft and logits move
LIMIT = 6.0  # of a logit
SATURATED = 50.0  # |s z| beyond which HAT's compensation is cut off
RATE = 20.0  # of the logits: HAT's 0.05 times its s_max of 400
LATER_BUDGET = 0.25  # share of a layer's free channels that a later step may take


def initial_logits(used: Tensor, generator: torch.Generator) -> Tensor:
    """Every channel starts on: spread over U(0, 1) in step 1, close to 0.5 in later ones."""
    if used.any():
        return 0.5 + 0.01 * torch.randn(len(used), generator=generator)
    return torch.rand(len(used), generator=generator)


def is_soft(round_: int, rounds: int) -> bool:
    """Whether logits are still trained in this round (counted from 0) of a step."""
    return round_ < ANNEALED * rounds


def scale(round_: int, rounds: int) -> float:
    """s(r): geometric from 1 to gamma over the annealed rounds, constant within a round."""
    return float(GAMMA ** min(1.0, round_ / (ANNEALED * rounds)))


def gates(logits: Tensor, s: float, used: Tensor) -> Tensor:
    """The factor of each channel in training: max(m_<t, sigma(s z)) (Eqs. 8-9). Used channels are always on."""
    return torch.maximum(used.float(), torch.sigmoid(s * logits))


def logit_gradient(gate_gradient: Tensor, logits: Tensor, s: float, used: Tensor) -> Tensor:
    """dL/dz from dL/dgate with HAT's compensation, which replaces the slope of sigma(s z) by that of sigma(z).

    HAT multiplies by (s_max / s) (cosh(s z) + 1) / (cosh(z) + 1), s z cut at 50. Written out, without its overflow and
    its factor s_max, that is sigma'(z) fading beyond the cut. Used channels are on whatever their logit: no gradient.
    """
    slope = torch.sigmoid(logits) * torch.sigmoid(-logits)
    fading = torch.exp(-torch.relu((s * logits).abs() - SATURATED))
    return torch.where(used, 0.0, gate_gradient * slope * fading)


def move(logits: Tensor, gradient: Tensor, rate: float = RATE) -> Tensor:
    """One plain SGD step on the logits, kept within +-6 so that no channel is lost for good."""
    return (logits - rate * gradient).clamp(-LIMIT, LIMIT)


def sparsity(gate: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """The regulariser R, the mean gate of free channels, and its gradient by the gates. Used channels cost nothing."""
    weight = (~used).float() / (~used).sum().clamp_min(1)
    return (weight * gate).sum(), weight


def select(channels: Channels, logits: Tensor, used: Tensor) -> Tensor:
    """The step's own binary mask g_t: in each layer the free channels with the highest positive logits.

    At most the budget is taken, and at least one while any is free. Used channels with a positive logit belong to the
    mask too: that is reuse, and free of charge.
    """
    own = used & (logits > 0)
    for name, layer in channels.layers.items():
        free = torch.nonzero(~used[layer]).flatten() + layer.start
        if len(free) == 0:
            continue
        most = max(1, round((LATER_BUDGET if used.any() else channels.budgets[name]) * len(free)))
        positive = int((logits[free] > 0).sum())
        best = logits[free].argsort(descending=True, stable=True)[: max(1, min(most, positive))]
        own[free[best]] = True
    return own


def union(used: Tensor, own: Tensor) -> Tensor:
    """m_<=t of Eq. 9, once masks are binary. A client is served with the union of its own step, for ever."""
    return used | own


def gradient_gate(model: Model, used: Tensor, gate: Tensor) -> Tensor:
    """The factor of every parameter's gradient in step t, Eq. 11: max over both ends of g_t (1 - m_<t).

    A bias has an output end only. The input image and the output units count as new in step 1 and as used afterwards.
    """
    new = torch.where(used, 0.0, gate.float())
    output, read = channels_of(model).ends.look_up(new, outside=0.0 if used.any() else 1.0, nothing=0.0)
    return torch.maximum(output, read)


def reached(model: Model, mask: Tensor) -> Tensor:
    """The parameters (boolean, P) that can matter to a client served with this mask: those with both ends on."""
    output, read = channels_of(model).ends.look_up(mask, outside=True, nothing=True)
    return output & read


def channels_of(model: Model) -> Channels:
    """What masks act on."""
    if model.channels is None:
        raise UserError(f"masks act on channels, which this model does not name: use {DEFAULT}, or another method")
    return model.channels
