"""Training of any module by autograd: its parameters are views of one flat vector, and so are its gradients."""

from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfeddsh.models.base import Model


class Buildable(Model, Protocol):
    """A network that is made of a module."""

    def build(self) -> nn.Module: ...
    def views(self, theta: Tensor) -> dict[str, Tensor]: ...


def normalisations(module: nn.Module) -> dict[str, _BatchNorm]:
    return {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}


class AutogradTrainer:
    """Forward and backward pass by autograd.

    A module of its own, whose parameters are tied to a vector as long as that one is trained: cheaper than handing
    them over in every call. Autograd adds their gradients up in views of one vector.
    """

    def __init__(self, model: Buildable) -> None:
        self.model: Model = model
        self._network = model
        self._theta: Tensor | None = None
        self.d_gates = torch.empty(0)

    @cached_property
    def _module(self) -> nn.Module:
        module = self._network.build()
        for norm in normalisations(module).values():
            norm.track_running_stats = False  # the batch alone
        return module.train()

    def _bind(self, theta: Tensor) -> None:
        if self._theta is None or (theta.dtype, theta.device) != (self._theta.dtype, self._theta.device):
            self._module.to(theta.device)
            self._gradient = torch.zeros_like(theta)
        self._theta = theta
        tensors = dict(self._module.named_parameters())
        collected = self._network.views(self._gradient)
        for name, view in self._network.views(theta.detach()).items():
            tensors[name].data = view
            tensors[name].grad = collected[name] if tensors[name].requires_grad else None
        dense = self._network.dense.start
        self._dense = [tensors[name] for name in collected if self._network.slices[name].start >= dense]

    @torch.enable_grad()
    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        assert gates is None, "this network has no gates"
        if theta is not self._theta:
            self._bind(theta)
        self._logits = logits = cast(Tensor, self._module(images))
        return logits.detach()

    def backward(self, d_logits: Tensor, dense_only: bool = False) -> Tensor:
        self._gradient.zero_()
        self._logits.backward(d_logits, inputs=[p for p in self._dense if p.requires_grad] if dense_only else None)
        return self._gradient
