"""The weighted mean of flat vectors, which may be long."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 17  # weights at a time: what lies between is small enough to stay in the processor's cache


def mean(vectors: Sequence[Tensor] | Tensor, shares: Tensor) -> Tensor:
    """The mean of vectors by shares that add up to one.

    Taken relative to the first, so that the mean of equal vectors is that vector to the bit; block by block, because
    whole differences of eleven million weights each take five times as long.
    """
    result = torch.empty_like(vectors[0])
    for start in range(0, len(result), BLOCK):
        part = slice(start, start + BLOCK)
        block = torch.stack([vector[part] for vector in vectors])
        torch.add(block[0], shares @ (block - block[0]), out=result[part])
    return result
