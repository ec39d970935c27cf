"""Local training under masks: weights and mask logits together, neither able to touch what earlier steps use."""

import torch
from torch import Tensor

from pfeddsh.mechanisms import masks
from pfeddsh.models.base import Trainer
from pfeddsh.models.training import cross_entropy, over_batches


@torch.no_grad()
def train(
    trainer: Trainer,
    theta: Tensor,
    logits: Tensor,
    used: Tensor,
    own: Tensor | None,
    images: Tensor,
    labels: Tensor,
    batches: list[Tensor],
    lr: float,
    momentum: float,
    scale: float,
    mask_rate: float,
    sparsity: float,
    prior: Tensor | None = None,
    free: bool = False,
) -> tuple[Tensor, float]:
    """Train `theta` in place; returns the new logits and the mean loss.

    While masks are soft (`own` is None) the logits follow the loss plus `sparsity` times the mean gate of free
    channels. Which gradients pass (Eq. 11) is decided once a visit, from the gates at full scale; `free` lets all
    pass, for a common model whose earlier versions are kept and the server alone protects the deviations.
    """
    model = trainer.model
    passing = torch.ones_like(theta) if free else masks.gradient_gate(model, used, logits > 0 if own is None else own)
    fixed = None if own is None else masks.union(used, own).float()
    velocity = torch.zeros_like(theta)

    def step(batch: Tensor) -> Tensor:
        nonlocal logits
        gate = masks.gates(logits, scale, used) if fixed is None else fixed
        said = trainer.forward(theta, images[batch], gate)
        loss, d = cross_entropy(said if prior is None else said + prior, labels[batch])
        gradient = trainer.backward(d).mul_(passing)
        velocity.mul_(momentum).add_(gradient)
        theta.sub_(velocity, alpha=lr)
        if fixed is None:
            _, pressure = masks.sparsity(gate, used)
            pull = trainer.d_gates + sparsity * pressure
            logits = masks.move(logits, masks.logit_gradient(pull, logits, scale, used), mask_rate)
        return loss

    loss = over_batches(batches, step, labels.device)
    return logits, loss
