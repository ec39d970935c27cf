"""LeNet-5 as a pure function of one flat parameter vector.

Batch normalisation without affine parameters follows each convolution (no parameter added; 44 statistics that belong
to the client). A channel's gate multiplies the activation after normalisation and ReLU: masking weights before the
normalisation would be undone by it. This file is the readable, differentiable form; `fast.py` trains with the same
arithmetic written out by hand.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # of the normalisation
IMAGE_SIZE = 32


@dataclass(frozen=True)
class LeNet:
    """conv 3-6 5x5, conv 6-16 5x5, 400-120-84-classes on 32x32 colour images: 62,006 parameters with 10 classes.

    >>> LeNet(10).size
    62006
    """

    classes: int

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter tensors in the order in which they lie in the flat vector."""
        return {
            "conv1.weight": (6, 3, 5, 5),
            "conv1.bias": (6,),
            "conv2.weight": (16, 6, 5, 5),
            "conv2.bias": (16,),
            "fc1.weight": (120, 400),
            "fc1.bias": (120,),
            "fc2.weight": (84, 120),
            "fc2.bias": (84,),
            "fc3.weight": (self.classes, 84),
            "fc3.bias": (self.classes,),
        }

    @cached_property
    def slices(self) -> dict[str, slice]:
        result, start = {}, 0
        for name, shape in self.shapes.items():
            result[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return result

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def body(self) -> slice:
        """Everything but the last layer: what FedPer shares."""
        return slice(0, self.slices["fc3.weight"].start)

    @property
    def head(self) -> slice:
        return slice(self.slices["fc3.weight"].start, self.size)

    @cached_property
    def head_classes(self) -> Tensor:
        """The class that each parameter of the last layer speaks for: its rows, then its biases."""
        classes = torch.arange(self.classes)
        return torch.cat([classes.repeat_interleave(self.shapes["fc3.weight"][1]), classes])

    @property
    def dense(self) -> slice:
        """The fully connected layers: what replay may change, because no statistics depend on them."""
        return slice(self.slices["fc1.weight"].start, self.size)

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """The named tensors of a flat vector, sharing its memory."""
        return {name: theta[self.slices[name]].view(shape) for name, shape in self.shapes.items()}

    def init(self, generator: torch.Generator) -> Tensor:
        """PyTorch's default initialisation: uniform within 1/sqrt(fan_in) for weights and biases."""
        theta = torch.empty(self.size)
        fan_in = 1
        for name, view in self.views(theta).items():
            if name.endswith("weight"):
                fan_in = math.prod(view.shape[1:])
            view.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=generator)
        return theta

    def forward(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """Logits. Without `statistics` each batch normalises itself, as in training.

        `gates` is one factor for each of the 6+16+120+84 channels. `seen` receives (mean, variance) of the input of
        each normalisation, which is what inversion matches.
        """
        return self.classify(theta, self.convolve(theta, images, statistics, gates, seen), gates)

    def classify(self, theta: Tensor, features: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits from the features that `convolve` gives: the fully connected layers."""
        p, gate, x = self.views(theta), split_gates(gates), features
        x = _gated(F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), gate[2])
        x = _gated(F.relu(F.linear(x, p["fc2.weight"], p["fc2.bias"])), gate[3])
        return F.linear(x, p["fc3.weight"], p["fc3.bias"])

    def convolve(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """The 400 features that the fully connected layers read."""
        p, gate, normal = self.views(theta), split_gates(gates), split_statistics(statistics)
        x = images
        for layer in (0, 1):
            x = F.conv2d(x, p[f"conv{layer + 1}.weight"], p[f"conv{layer + 1}.bias"])
            if seen is not None:
                seen.append((x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)))
            mean, variance = normal[layer]
            x = F.batch_norm(x, mean, variance, training=mean is None, eps=EPSILON)
            x = F.max_pool2d(_gated(F.relu(x), gate[layer]), 2)
        return x.flatten(1)

    @torch.no_grad()
    def calibrate(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """The statistics of this network on these images, by one forward pass."""
        seen: list[tuple[Tensor, Tensor]] = []
        self.forward(theta, images, None, gates, seen)
        return torch.cat([part for pair in seen for part in pair])


CHANNELS = (6, 16, 120, 84)
GATES = sum(CHANNELS)
STATISTICS = 2 * (6 + 16)


def split_gates(gates: Tensor | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if gates is None else gates.split(CHANNELS)


def split_statistics(statistics: Tensor | None) -> list[tuple[Tensor | None, Tensor | None]]:
    """(mean, variance) for each of the two normalisations, from one client's statistics or a stack of them."""
    if statistics is None:
        return [(None, None), (None, None)]
    mean1, variance1, mean2, variance2 = statistics.split((6, 6, 16, 16), dim=-1)
    return [(mean1, variance1), (mean2, variance2)]


def _gated(x: Tensor, gate: Tensor | None) -> Tensor:
    if gate is None:
        return x
    return x * (gate.view(-1, 1, 1) if x.dim() == 4 else gate)
