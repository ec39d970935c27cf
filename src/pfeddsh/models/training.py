"""Local training, the same for every network: the loop over mini-batches, cross-entropy, and SGD on a flat vector."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from pfeddsh.models.base import Trainer

_ops = torch.ops.aten


@torch.no_grad()
def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss and its gradient with respect to the logits."""
    logs = torch.log_softmax(logits, 1)
    loss, weight = _ops.nll_loss_forward(logs, labels, None, 1, -100)
    d = _ops.nll_loss_backward(torch.ones_like(loss), logs, labels, None, 1, -100, weight)
    return loss, _ops._log_softmax_backward_data(d, logs, 1, logs.dtype)


def over_batches(batches: Iterable[Tensor], step: Callable[[Tensor], Tensor], device: torch.device) -> float:
    """One step for each mini-batch of image numbers, and the mean of the losses that the steps return.

    Batches of one are skipped: there is nothing to normalise by.
    """
    losses = [step(batch.to(device)) for batch in batches if len(batch) > 1]
    return float(torch.stack(losses).mean()) if losses else 0.0


@torch.no_grad()
def sgd_epoch(
    trainer: Trainer,
    theta: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    batches: Iterable[Tensor],
    lr: float,
    momentum: float,
    gates: Tensor | None = None,
    gradient_gate: Tensor | None = None,
    part: slice | None = None,
    prior: Tensor | None = None,
    anchor: Tensor | None = None,
    pull: float = 0.0,
) -> float:
    """Train `theta` in place, with momentum from rest, and return the mean loss over the batches.

    `gradient_gate` multiplies the gradient, `part` restricts the update to a slice, `prior` is added to the logits.
    With an `anchor`, `pull` times the way from it is added to the gradient.
    """
    part = part or slice(0, len(theta))
    dense_only = part.start is not None and part.start >= trainer.model.dense.start
    target = theta[part]
    velocity = torch.zeros_like(target)
    layout = trainer.model.memory_format
    there, back = ((0, 2, 3, 1), (0, 3, 1, 2)) if layout is torch.channels_last else ((0, 1, 2, 3),) * 2
    pixels = images.contiguous(memory_format=layout).permute(there)

    def step(batch: Tensor) -> Tensor:
        logits = trainer.forward(theta, pixels.index_select(0, batch).permute(back), gates)
        if prior is not None:
            logits += prior
        loss, d = cross_entropy(logits, labels.index_select(0, batch))
        gradient = trainer.backward(d, dense_only)
        if gradient_gate is not None:
            gradient *= gradient_gate
        if anchor is not None:
            gradient.add_(theta - anchor, alpha=pull)
        torch.add(gradient[part], velocity, alpha=momentum, out=velocity)
        target.add_(velocity, alpha=-lr)
        return loss

    return over_batches(batches, step, labels.device)
