"""Networks as pure functions of one flat parameter vector: where each tensor lies in it, and its first values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Named tensors in the order in which they lie in the vector."""

    shapes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of_layers(layers: Mapping[str, tuple[int, ...]]) -> "Layout":
        """Layers, each a weight of the given shape and a bias.

        >>> Layout.of_layers({"fc": (2, 3)}).size
        8
        """
        pairs = [{f"{name}.weight": shape, f"{name}.bias": shape[:1]} for name, shape in layers.items()]
        return Layout({name: shape for pair in pairs for name, shape in pair.items()})

    @cached_property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        stops = accumulate(self.sizes)
        return {name: slice(stop - n, stop) for name, stop, n in zip(self.shapes, stops, self.sizes, strict=True)}

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a flat vector, sharing its memory."""
        parts = vector.split(self.sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def init(self, generator: torch.Generator) -> Tensor:
        """PyTorch's default initialisation of layers: uniform within 1/sqrt(fan_in) for weights and biases."""
        vector = torch.empty(self.size)
        bound = 1.0
        for name, view in self.views(vector).items():
            if name.endswith("weight"):
                bound = 1 / math.sqrt(math.prod(view.shape[1:]))
            view.uniform_(-bound, bound, generator=generator)
        return vector
