"""The training step of perceptrons, written out: their layers are so small that autograd takes longer than they do."""

import torch
from torch import Tensor, nn

from pfeddsh.models.autograd import Buildable


def linear_layers(module: nn.Module) -> list[str]:
    """The linear layers of a plain perceptron, by name: one after the other, each but the last rectified.

    Nothing if the module is anything else, shares weights between layers, or keeps one from training.
    """
    parts = list(module.named_children()) if type(module) is nn.Sequential else []
    if parts and type(parts[0][1]) is nn.Flatten and parts[0][1].start_dim == 1:
        del parts[0]
    layers, between = parts[::2], parts[1::2]
    plain = all(type(part) is nn.Linear and part.bias is not None for _, part in layers)
    rectified = len(layers) > len(between) and all(type(part) is nn.ReLU for _, part in between)
    weights = list(module.parameters())  # once each, however many layers share them
    own = len(weights) == 2 * len(layers) and all(weight.requires_grad for weight in weights)
    return [name for name, _ in layers] if layers and plain and rectified and own else []


class PerceptronTrainer:
    """Forward and backward pass of a perceptron; the gradient lies in a buffer that the next call overwrites."""

    def __init__(self, model: Buildable, layers: list[str]) -> None:
        self.model, self._layers, self._views = model, layers, model.views
        self._theta = torch.empty(0)  # the vector last trained, whose views are kept
        self.d_gates = torch.empty(0)

    def _bind(self, theta: Tensor) -> None:
        if not len(self._theta) or (theta.dtype, theta.device) != (self._theta.dtype, self._theta.device):
            self.gradient = torch.zeros_like(theta)
            self._g = self._pairs(self.gradient)
        self._theta, self._p = theta, self._pairs(theta)

    def _pairs(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = self._views(vector)
        return [(parts[f"{name}.weight"], parts[f"{name}.bias"]) for name in self._layers]

    @torch.no_grad()
    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        assert gates is None, "this network has no gates"
        if theta is not self._theta:
            self._bind(theta)
        self._read = [images.reshape(len(images), -1)]
        for weight, bias in self._p[:-1]:
            self._read.append(torch.addmm(bias, self._read[-1], weight.t()).relu_())
        weight, bias = self._p[-1]
        return torch.addmm(bias, self._read[-1], weight.t())

    @torch.no_grad()
    def backward(self, d_logits: Tensor, dense_only: bool = False) -> Tensor:
        """The flat gradient; all of a perceptron is dense."""
        d = d_logits
        for layer in range(len(self._p) - 1, -1, -1):
            x, (d_weight, d_bias) = self._read[layer], self._g[layer]
            torch.mm(d.t(), x, out=d_weight)
            torch.sum(d, 0, out=d_bias)
            if layer:
                d = torch.mm(d, self._p[layer][0]).mul_(x > 0)
        return self.gradient
