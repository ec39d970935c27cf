"""Networks as pure functions of one flat parameter vector: where each layer lies in it, and its first values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Layers, each a weight of the given shape and a bias, in the order in which they lie in the vector.

    >>> Layout({"fc": (2, 3)}).size
    8
    """

    layers: Mapping[str, tuple[int, ...]]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        pairs = [{f"{name}.weight": shape, f"{name}.bias": shape[:1]} for name, shape in self.layers.items()]
        return {name: shape for pair in pairs for name, shape in pair.items()}

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a flat vector, sharing its memory."""
        parts = vector.split([math.prod(shape) for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def init(self, generator: torch.Generator) -> Tensor:
        """PyTorch's default initialisation: uniform within 1/sqrt(fan_in) for weights and biases."""
        vector = torch.empty(self.size)
        views = self.views(vector)
        for name, shape in self.layers.items():
            bound = 1 / math.sqrt(math.prod(shape[1:]))
            for part in ("weight", "bias"):
                views[f"{name}.{part}"].uniform_(-bound, bound, generator=generator)
        return vector
