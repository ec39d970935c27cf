"""An autoencoder around LeNet: its layers up to fc2 encode, a decoder of 91,100 parameters paints the image again.

Both are flat vectors; gradients are PyTorch's own.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.errors import UserError
from pfeddsh.models.base import Model
from pfeddsh.models.flat import Layout
from pfeddsh.models.lenet import LeNet
from pfeddsh.models.training import over_batches

LATENT = 84  # LeNet's fc2, before its ReLU
DECODER = Layout.of_layers({"fc": (1024, LATENT), "conv1": (16, 16, 3, 3), "conv2": (12, 16, 3, 3)})


def encoder_of(model: Model) -> LeNet:
    """The network, if it is one that the decoder was made for."""
    if not isinstance(model, LeNet):
        raise UserError("hr paints images from the codes of LeNet by a decoder made for it: use model = lenet")
    return model


def encode(model: LeNet, encoder: Tensor, images: Tensor, statistics: Tensor | None = None) -> Tensor:
    """Codes (n x 84) by the body of a LeNet; without `statistics` the batch normalises itself."""
    theta = F.pad(encoder, (0, model.size - len(encoder)))
    p, x = model.views(theta), model.features(theta, images, statistics)
    return F.linear(F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), p["fc2.weight"], p["fc2.bias"])


def classify(model: LeNet, head: Tensor, codes: Tensor) -> Tensor:
    """Logits of codes by a last layer."""
    weight, bias = head.split((model.classes * LATENT, model.classes))
    return F.linear(F.relu(codes), weight.view(-1, LATENT), bias)


def decode(decoder: Tensor, codes: Tensor) -> Tensor:
    """Images of codes: 16 channels of 8x8 pixels, enlarged, and at last four pixels from each place of 16x16.

    Convolutions at full resolution would cost more than all the rest of the method.
    """
    p = DECODER.views(decoder)
    x = F.relu(F.linear(codes, p["fc.weight"], p["fc.bias"])).view(-1, 16, 8, 8)
    x = F.relu(F.conv2d(F.interpolate(x, scale_factor=2.0), p["conv1.weight"], p["conv1.bias"], padding=1))
    return F.pixel_shuffle(F.conv2d(x, p["conv2.weight"], p["conv2.bias"], padding=1), 2)


def descend(
    parameters: dict[str, Tensor],
    loss: Callable[[dict[str, Tensor], Tensor], Tensor],
    batches: Iterable[Tensor],
    lr: float,
    momentum: float,
    clip: float,
) -> float:
    """SGD in place with momentum from rest, each gradient shortened to the norm `clip`; returns the mean loss."""
    velocity = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}

    def step(batch: Tensor) -> Tensor:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        value = loss(leaves, batch)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for name, gradient in zip(leaves, gradients, strict=True):
            velocity[name].mul_(momentum).add_(gradient, alpha=min(1.0, clip / max(length, 1e-12)))
            parameters[name].sub_(velocity[name], alpha=lr)
        return value.detach()

    return over_batches(batches, step, next(iter(parameters.values())).device)
