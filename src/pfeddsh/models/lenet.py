"""LeNet-5 as a pure function of one flat parameter vector.

Batch normalisation without affine parameters follows each convolution (no parameter added; 44 statistics that belong
to the client). A channel's gate multiplies the activation after normalisation and ReLU: masking weights before the
normalisation would be undone by it. This file is the readable, differentiable form; `fast.py` trains with the same
arithmetic written out by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfeddsh.errors import UserError
from pfeddsh.models import plain_lenet
from pfeddsh.models.base import Seen, Shape, split_statistics
from pfeddsh.models.channels import Channels, Ends
from pfeddsh.models.fast import CHANNELS, EPSILON, GATES, LeNetTrainer, split_gates
from pfeddsh.models.flat import Layout
from pfeddsh.models.moments import moments

SHAPE: Shape = (3, 32, 32)
STATISTICS = 2 * (6 + 16)
BUDGETS: Mapping[str, float] = {"conv1": 1.0, "conv2": 1.0, "fc1": 0.7, "fc2": 0.7}


def lenet(classes: int, shape: Shape = SHAPE) -> "LeNet":
    """LeNet-5 with normalised convolutions, for colour images of 32x32 pixels; its training is written by hand."""
    if tuple(shape) != SHAPE:
        text = "x".join(map(str, shape))
        raise UserError(
            f"model = lenet reads colour images of 32x32 pixels, these are {text} (channels x height x width): have "
            "them resized to 32x32, or choose a model for their size, see `pfeddsh models`"
        )
    return LeNet(classes)


@dataclass(frozen=True)
class LeNet:
    """conv 3-6 5x5, conv 6-16 5x5, 400-120-84-classes on 32x32 colour images: 62,006 parameters with 10 classes.

    >>> LeNet(10).size
    62006
    """

    classes: int
    shape = SHAPE
    norms = (6, 16)
    memory_format = torch.channels_last
    scales = ()  # its normalisations have no affine part

    @cached_property
    def layout(self) -> Layout:
        layers = {"conv1": (6, 3, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120)}
        return Layout.of_layers({**layers, "fc3": (self.classes, 84)})

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.layout.shapes

    @property
    def slices(self) -> dict[str, slice]:
        return self.layout.slices

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def body(self) -> slice:
        """Everything but the last layer: what FedPer shares."""
        return slice(0, self.slices["fc3.weight"].start)

    @property
    def head(self) -> slice:
        return slice(self.slices["fc3.weight"].start, self.size)

    @property
    def bias(self) -> slice:
        return self.slices["fc3.bias"]

    @cached_property
    def head_classes(self) -> Tensor:
        """The class that each parameter of the last layer speaks for: its rows, then its biases."""
        classes = torch.arange(self.classes)
        return torch.cat([classes.repeat_interleave(self.shapes["fc3.weight"][1]), classes])

    @property
    def dense(self) -> slice:
        """The fully connected layers: what replay may change, because no statistics depend on them."""
        return slice(self.slices["fc1.weight"].start, self.size)

    @property
    def channels(self) -> Channels:
        return _channels(self.classes)

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        return self.layout.views(theta)

    def init(self, generator: torch.Generator) -> Tensor:
        return self.layout.init(generator)

    def forward(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Tensor:
        """Logits. Without `statistics` each batch normalises itself, as in training.

        `gates` is one factor for each of the 6+16+120+84 channels. `seen` receives (mean, variance) of the input of
        each normalisation, which is what inversion matches.
        """
        return self.classify(theta, self.features(theta, images, statistics, gates, seen), gates)

    def classify(self, theta: Tensor, features: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits from the features that `features` gives: the fully connected layers."""
        p, gate, x = self.views(theta), split_gates(gates), features
        x = _gated(F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), gate[2])
        x = _gated(F.relu(F.linear(x, p["fc2.weight"], p["fc2.bias"])), gate[3])
        return F.linear(x, p["fc3.weight"], p["fc3.bias"])

    def features(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
        enough: bool = False,
    ) -> Tensor:
        """The 400 features that the fully connected layers read; or only as far as `seen` needs, if that is enough."""
        p, gate = self.views(theta), split_gates(gates)
        normal = [(None, None)] * 2 if statistics is None else split_statistics(self, statistics)
        x = images
        for layer in (0, 1):
            x = F.conv2d(x, p[f"conv{layer + 1}.weight"], p[f"conv{layer + 1}.bias"])
            if seen is not None:
                seen.append(moments(x))
                if enough and layer == 1:
                    break
            mean, variance = normal[layer]
            x = _activated(x, mean, variance, gate[layer])
        return x.flatten(1)

    @torch.no_grad()
    def calibrate(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """The statistics of this network on these images, by one forward pass."""
        seen: Seen = []
        self.features(theta, images, None, gates, seen, enough=True)
        return torch.cat([part for pair in seen for part in pair])

    def trainer(self) -> LeNetTrainer:
        return LeNetTrainer(self)

    def module(self, theta: Tensor, statistics: Tensor, gates: Tensor | None = None) -> nn.Module:
        """An ordinary module.

        A gate multiplies a channel after its ReLU. Being no less than zero it passes through pooling, so it is the same
        to multiply the weights that read the channel: the module needs no gates. (A gate of 0 or 1 changes no bit.)
        """
        weights = {name: view.clone() for name, view in self.views(theta).items()}
        for reader, gate in zip(("conv2", "fc1", "fc2", "fc3"), split_gates(gates), strict=True):
            if gate is not None:
                name = f"{reader}.weight"
                inputs = gate.repeat_interleave(25) if reader == "fc1" else gate  # fc1 reads 5x5 places of each channel
                weights[name] = weights[name] * inputs.view((1, -1, 1, 1) if weights[name].dim() == 4 else (1, -1))
        for number, (mean, variance) in enumerate(split_statistics(self, statistics), start=1):
            weights[f"norm{number}.running_mean"], weights[f"norm{number}.running_var"] = mean.clone(), variance.clone()
            weights[f"norm{number}.num_batches_tracked"] = torch.tensor(0)
        module = plain_lenet.PlainLeNet(self.classes)
        module.load_state_dict(weights)
        return module.eval()


def _activated(x: Tensor, mean: Tensor | None, variance: Tensor | None, gate: Tensor | None) -> Tensor:
    """Normalisation, ReLU, gate and pooling.

    Where nothing is differentiated, the maximum comes first: all the others keep the order of elements, so a quarter of
    the work gives the same bits. It is taken of whole rows and columns, which is faster than window by window.
    """
    if x.requires_grad:
        x = F.batch_norm(x, mean, variance, training=mean is None, eps=EPSILON)
        return F.max_pool2d(_gated(F.relu(x), gate), 2)
    if mean is None:  # the moments are those of all elements
        x = _pooled(F.batch_norm(x, None, None, training=True, eps=EPSILON))
    else:
        x = F.batch_norm(_pooled(x), mean, variance, eps=EPSILON)
    return _gated(F.relu(x), gate)


def _pooled(x: Tensor) -> Tensor:
    rows = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _gated(x: Tensor, gate: Tensor | None) -> Tensor:
    if gate is None:
        return x
    return x * (gate.view(-1, 1, 1) if x.dim() == 4 else gate)


@cache
def _channels(classes: int) -> Channels:
    """Which weight touches which of the 6+16+120+84 channels, computed once for each number of classes."""
    model, widths = LeNet(classes), dict(zip(("conv1", "conv2", "fc1", "fc2"), CHANNELS, strict=True))
    outside, nothing = GATES, GATES + 1
    image, units = torch.full((3,), outside), torch.full((classes,), outside)
    conv1, conv2, fc1, fc2 = torch.arange(GATES).split(CHANNELS)
    positions = conv2.repeat_interleave(model.shapes["fc1.weight"][1] // len(conv2))  # flattened channel by channel
    chain = {
        "conv1": (conv1, image),
        "conv2": (conv2, conv1),
        "fc1": (fc1, positions),
        "fc2": (fc2, fc1),
        "fc3": (units, fc2),
    }
    output, read = torch.empty(model.size, dtype=torch.int64), torch.empty(model.size, dtype=torch.int64)
    for name, (feeds, reads) in chain.items():
        weight = model.shapes[f"{name}.weight"]
        trailing = (1,) * (len(weight) - 2)
        output[model.slices[f"{name}.weight"]] = feeds.view(-1, 1, *trailing).expand(weight).flatten()
        read[model.slices[f"{name}.weight"]] = reads.view(1, -1, *trailing).expand(weight).flatten()
        output[model.slices[f"{name}.bias"]] = feeds
        read[model.slices[f"{name}.bias"]] = nothing
    return Channels(widths, BUDGETS, Ends(output, read))
