"""Randomness as a function of (seed, step, round, client, purpose), never of execution order.

Every draw names what it is for, so a pool of processes, a single process and a resumed run see the same numbers.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *key: int | str) -> int:
    """A 63-bit seed for one purpose."""
    text = "/".join(str(part) for part in (seed, *key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_stream(seed: int, *key: int | str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *key))


def torch_stream(seed: int, *key: int | str) -> "torch.Generator":
    import torch  # here, not above: decoding images and parsing a command line need no torch

    return torch.Generator().manual_seed(derive(seed, *key))
