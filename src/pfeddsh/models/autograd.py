"""Training of any module by autograd: its parameters are views of one flat vector, and so are its gradients."""

from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
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
    them over in every call. The gradients are collected.
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
        if self._theta is None or self._theta.device != theta.device:
            self._module.to(theta.device)
        self._theta, self._gradient = theta, torch.zeros_like(theta)
        tensors = dict(self._module.named_parameters())
        collected = self._network.views(self._gradient)
        for name, view in self._network.views(theta.detach()).items():
            tensors[name].data = view
        trained = {name: part for name, part in collected.items() if tensors[name].requires_grad}
        self._leaves = [(tensors[name], part) for name, part in trained.items()]
        dense = self._network.dense.start
        above = [name for name in trained if self._network.slices[name].start >= dense]
        self._dense = [(tensors[name], trained[name]) for name in above]

    @torch.enable_grad()
    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        assert gates is None, "this network has no gates"
        if theta is not self._theta:
            self._bind(theta)
        self._logits = logits = cast(Tensor, self._module(images))
        return logits.detach()

    def backward(self, d_logits: Tensor, dense_only: bool = False) -> Tensor:
        """By the engine itself: what `torch.autograd.grad` checks first is a tenth of a small network's step."""
        leaves, collected = zip(*(self._dense if dense_only else self._leaves), strict=True)
        found = _engine_run_backward(
            (self._logits,), (d_logits,), False, False, leaves, allow_unreachable=True, accumulate_grad=False
        )
        gradients = [torch.zeros_like(leaf) if own is None else own for leaf, own in zip(leaves, found, strict=True)]
        torch._foreach_copy_(collected, gradients)
        return self._gradient
