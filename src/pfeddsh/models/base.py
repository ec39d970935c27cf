"""What the rest of the package may ask of a network: a pure function of one flat vector of weights.

The last layer lies at the end of the vector, so that body and head are slices. Normalisation statistics are no weights:
they belong to the client. Whoever writes a network by hand implements `Model`; any `torch.nn.Module` becomes one in
`module.py`.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pfeddsh.models.channels import Channels

Shape = tuple[int, int, int]  # channels, height, width; a vector of n features is (n, 1, 1)
Seen = list[tuple[Tensor, Tensor]]  # mean and variance of the input of each normalisation


class Trainer(Protocol):
    """Forward and backward pass in training mode, where each batch normalises itself."""

    @property
    def model(self) -> "Model": ...
    @property
    def d_gates(self) -> Tensor: ...  # of the last backward pass, if there were gates

    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits, without a graph."""
        ...

    def backward(self, d_logits: Tensor, dense_only: bool = False) -> Tensor:
        """The flat gradient of the last forward pass, in a buffer that the next call overwrites.

        `dense_only` saves the work below the dense tail and leaves that part of the gradient undefined.
        """
        ...


@runtime_checkable
class Model(Protocol):
    """A network of so many weights; the slices say where in the flat vector its parts lie."""

    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> Shape: ...  # of one image
    @property
    def size(self) -> int: ...
    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...  # of the named tensors, as they lie in the vector
    @property
    def slices(self) -> Mapping[str, slice]: ...
    @property
    def body(self) -> slice: ...  # everything but the last layer
    @property
    def head(self) -> slice: ...  # the last layer, at the end
    @property
    def dense(self) -> slice: ...  # the tail on which no statistics depend: what `classify` reads
    @property
    def bias(self) -> slice: ...  # of the output
    @property
    def scales(self) -> tuple[slice, ...]: ...  # affine parameters of normalisations
    @property
    def head_classes(self) -> Tensor: ...  # the class that each parameter of the head speaks for
    @property
    def norms(self) -> tuple[int, ...]: ...  # features that each normalisation has statistics of
    @property
    def channels(self) -> Channels | None: ...  # what gates multiply, if the network can be gated
    @property
    def memory_format(self) -> torch.memory_format: ...  # how images should lie in memory; speed alone depends on it

    def init(self, generator: torch.Generator) -> Tensor: ...

    def forward(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Tensor:
        """Logits. Without `statistics` each batch normalises itself; `seen` receives what normalisations met."""
        ...

    def features(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Tensor:
        """What the dense tail reads."""
        ...

    def classify(self, theta: Tensor, features: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits of these features, by the dense tail."""
        ...

    def calibrate(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """The statistics of this network on these images, by one forward pass."""
        ...

    def trainer(self) -> Trainer: ...

    def module(self, theta: Tensor, statistics: Tensor, gates: Tensor | None = None) -> nn.Module:
        """The same function as an ordinary module in evaluation mode, for the world outside."""
        ...


def statistics_size(model: Model) -> int:
    """How many numbers a client's statistics are: a mean and a variance for each normalised feature."""
    return 2 * sum(model.norms)


def split_statistics(model: Model, statistics: Tensor) -> Seen:
    """(mean, variance) for each normalisation, from one client's statistics or a stack of them."""
    parts = statistics.split([size for size in model.norms for _ in range(2)], dim=-1) if model.norms else ()
    return list(zip(parts[::2], parts[1::2], strict=True))
