"""What a client does to an upload before it leaves: bound its length, then add Gaussian noise.

An upload is what was downloaded and then changed, or the change itself. The change is cut to an L2 norm of `clip`, over
all tensors together, and gets noise of standard deviation `noise * clip` in every weight. Whatever a client's data are,
no two of them can move what is sent by more than twice the clip; `accounting` turns that into epsilon.

Noise that protects somebody comes from the operating system: whoever knows the seed of a generator takes its noise off
again. In simulation nobody is protected and runs must repeat, so there, and only there, it is drawn from the seed.
"""

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pfeddsh.mechanisms.clip import Protection
from pfeddsh.messages import BadMessage, Message

Uniform = Callable[[int], Tensor]  # so many numbers strictly between 0 and 1, in double precision
LEAST = 2.0**-54


def from_system(count: int) -> Tensor:
    """From the operating system's generator for keys: what was drawn tells nothing of what else is."""
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    return torch.from_numpy((words + 0.5) * 2.0**-52)


def repeatable(generator: torch.Generator) -> Uniform:
    """For simulation only: anyone who knows the seed can draw the same."""
    return lambda count: torch.rand(count, generator=generator, dtype=torch.float64).clamp_min(LEAST)


def laplace(uniform: Uniform, count: int) -> Tensor:
    """Laplace noise of scale 1, in double precision."""
    centred = uniform(count) - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())


def gaussian(uniform: Uniform, count: int) -> Tensor:
    """Gaussian noise of standard deviation 1, in double precision."""
    drawn: Tensor = torch.special.ndtri(uniform(count))
    return drawn


def protect(download: Message, upload: Message, protection: Protection, uniform: Uniform) -> Message:
    """The upload with its change clipped, exactly, and noised. One that is not finite tells no change at all."""
    changes = {name: _change(download, name, tensor) for name, tensor in upload.tensors.items()}
    norm = _norm(changes)
    if not math.isfinite(norm):
        changes, norm = {name: torch.zeros_like(change) for name, change in changes.items()}, 0.0
    elif norm <= protection.clip and not protection.noise:
        return upload
    shrink = min(1.0, protection.clip / norm) if norm else 1.0
    while True:
        moved = {name: change * shrink for name, change in changes.items()}
        if protection.noise:
            scale = protection.noise * protection.clip
            moved = {n: c + scale * gaussian(uniform, c.numel()).view_as(c).to(c) for n, c in moved.items()}
        told = Message({name: _told(download, name, change) for name, change in moved.items()}, upload.facts)
        if protection.noise or _norm({n: _change(download, n, t) for n, t in told.tensors.items()}) <= protection.clip:
            return told
        shrink *= 1 - 1e-6  # rounding to single precision went beyond


def _change(download: Message, name: str, tensor: Tensor) -> Tensor:
    if name == "delta":
        return tensor.double()
    base = download.tensors.get(name)
    if base is None or base.shape != tensor.shape or not tensor.is_floating_point():
        raise BadMessage(f"{name} is no change of what was downloaded, so its length cannot be bounded")
    return tensor.double() - base.double()


def _told(download: Message, name: str, change: Tensor) -> Tensor:
    return change.float() if name == "delta" else (download[name].double() + change).float()


def _norm(changes: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
