"""Data-free replay: invert models to images, let models teach together, fit the dense layers of a student.

1. `invert`: images on which a model sees given labels and its clients' statistics (DeepInversion; the paper's Eq.
   12-15, with the class term it leaves out).
2. `opinions` and `targets`: the teacher is the mean of all models' logits; a student aims halfway between that and
   what it thinks itself.
3. `distil`: the student changes fully connected layers only, so that normalisation statistics stay true.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.models.base import Model, Seen, split_statistics
from pfeddsh.models.training import over_batches

OWN = 0.5  # weight of a student's own opinion in its target


@dataclass(frozen=True)
class Inversion:
    """Weights of the inversion's terms, and its length."""

    feature: float
    variation: float
    norm: float
    iterations: int
    images: int  # per step, over all inverted clients
    lr: float = 0.1


INVERSIONS = {
    "ours": Inversion(feature=1.0, variation=0.001, norm=1e-5, iterations=100, images=600),
    "appendix": Inversion(feature=1e-2, variation=1e-5, norm=1e-4, iterations=250, images=200),
    "sensitivity": Inversion(feature=1.0, variation=0.2, norm=1e-5, iterations=20, images=256),
}


def invert(
    model: Model,
    theta: Tensor,
    statistics: Tensor,
    gates: Tensor | None,
    labels: Tensor,
    how: Inversion,
    generator: torch.Generator,
) -> tuple[Tensor, list[float]]:
    """Images of these labels in the eyes of one client's model, from smoothed noise; and the loss on the way."""
    noise = torch.randn(len(labels), *model.shape, generator=generator).to(theta)
    images = F.avg_pool2d(noise, 3, 1, 1, count_include_pad=False).mul_(2).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=how.lr)
    wanted = split_statistics(model, statistics)
    losses = []
    for _ in range(how.iterations):
        seen: Seen = []
        logits = model.forward(theta, images, statistics, gates, seen)
        pairs = [pair for both in zip(seen, wanted, strict=True) for pair in zip(*both, strict=True)]
        feature = sum(((a - b).square().sum() for a, b in pairs), theta.new_zeros(()))
        loss = (
            F.cross_entropy(logits, labels)
            + how.feature * feature
            + how.variation * total_variation(images)
            + how.norm * images.square().sum()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return images.detach(), losses


def total_variation(images: Tensor) -> Tensor:
    """Sum over four directions of the norm of the difference to the shifted image (Eq. 13)."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    falling = images[..., 1:, 1:] - images[..., :-1, :-1]
    rising = images[..., 1:, :-1] - images[..., :-1, 1:]
    return torch.stack([part.norm() for part in (across, down, falling, rising)]).sum()


def opinions(model: Model, thetas: Tensor, statistics: Tensor, images: Tensor) -> Tensor:
    """What models think of the images together: the mean of their logits."""
    with torch.inference_mode():
        heard = [model.forward(theta, images, own) for theta, own in zip(thetas, statistics, strict=True)]
    return torch.stack(heard).mean(0)


def targets(common: Tensor, own: Tensor) -> Tensor:
    """What a student should say: between the common opinion and its own."""
    return torch.softmax((1 - OWN) * common + OWN * own, -1)


@dataclass(frozen=True)
class Distillation:
    """How a student learns."""

    passes: int = 4
    lr: float = 0.01
    momentum: float = 0.9
    batch: int = 64


def distil(
    model: Model, theta: Tensor, statistics: Tensor, images: Tensor, opinion: Tensor, how: Distillation,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """The student learns what others say of the images (n x classes); what lies below them keeps its bits."""
    with torch.no_grad():
        inputs = torch.cat([model.features(theta, part, statistics) for part in images.split(256)])
        wanted = targets(opinion, model.classify(theta, inputs))
    below, dense = theta[: model.dense.start], theta[model.dense].clone().requires_grad_()
    optimiser = torch.optim.SGD([dense], how.lr, how.momentum)
    order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(how.passes)])
    batches = order.split(how.batch)
    rates = (how.lr * (1 - i / len(batches)) for i in range(len(batches)))

    def step(batch: Tensor) -> Tensor:
        optimiser.param_groups[0]["lr"] = next(rates)
        loss = F.cross_entropy(model.classify(torch.cat([below, dense]), inputs[batch]), wanted[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss.detach()

    over_batches(batches, step, images.device)
    return torch.cat([below, dense.detach()])
