"""Mean and variance of each channel, which is most of what a client's statistics cost."""

import torch
from torch import Tensor

PART = 2**16  # elements that are summed at once, in the cache
DOUBT = 1e-11  # of the second moment: more than sums of doubles in another order differ by


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Over all dimensions but the second; the variance is the biased one."""
    over = [dimension for dimension in range(x.dim()) if dimension != 1]
    mean, last = x.mean(over), x.movedim(1, -1)
    plain = x.dtype == torch.float32 and x.device.type == "cpu" and len(x) > 0
    variance = _variance(last) if plain and last.is_contiguous() and not x.requires_grad else None
    return mean, x.var(over, unbiased=False) if variance is None else variance


def _variance(x: Tensor) -> Tensor | None:
    """The bits of `x.var`, which sums in double precision as well but one by one; None where these are in doubt."""
    channels = x.shape[-1]
    rows = x.reshape(-1, channels if x.dim() < 3 else x.shape[-2] * channels)
    total = x.new_zeros(2, rows.shape[1], dtype=torch.float64)
    for part in rows.split(max(1, PART // rows.shape[1])):
        wide = part.double()
        total[0] += wide.sum(0)
        total[1] += wide.mul_(wide).sum(0)
    mean, second = total.view(2, -1, channels).sum(1) * channels / x.numel()
    low, high = (second - mean.square() + sign * DOUBT * second for sign in (-1, 1))
    return low.float() if torch.equal(low.float(), high.float()) else None
