"""The embedding network of PeFLL: its sum over a client's images, with their labels if wanted, describes the client."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from pfeddsh.models.flat import Layout

SIDE = 32  # pixels: it sees every image at this size, whatever the model reads


def layout(colours: int, labels: int, size: int) -> Layout:
    """The original's: two convolutions with 16 and 32 kernels, which read `labels` channels more; `size` outputs."""
    convolutions = {"conv1": (16, colours + labels, 5, 5), "conv2": (32, 16, 5, 5)}
    return Layout.of_layers({**convolutions, "fc1": (120, 800), "fc2": (84, 120), "fc3": (size, 84)})


def describe(p: Mapping[str, Tensor], images: Tensor, labels: Tensor | None) -> Tensor:
    """The sum of its outputs over these images.

    A label's one-hot channel is constant, so what the first convolution makes of it is the sum of its weights.
    """
    colours = images.shape[1]
    if images.shape[2:] != (SIDE, SIDE):
        images = F.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    x = F.conv2d(images, p["conv1.weight"][:, :colours], p["conv1.bias"])
    if labels is not None:
        x = x + p["conv1.weight"][:, colours:].sum((2, 3)).t()[labels][:, :, None, None]
    x = F.max_pool2d(F.relu(x), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"])), 2).flatten(1)
    for layer in ("fc1", "fc2"):
        x = F.relu(F.linear(x, p[f"{layer}.weight"], p[f"{layer}.bias"]))
    return F.linear(x, p["fc3.weight"], p["fc3.bias"]).sum(0)
