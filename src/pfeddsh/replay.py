"""Data-free replay: invert models to images, let all clients teach together, fit each client's dense layers.

1. `invert`: images on which a client's model sees its own labels and statistics (DeepInversion; the paper's Eq. 12-15,
   with the class term it leaves out).
2. `opinions` and `targets`: the teacher is the mean of all clients' logits, each trusted on a class as much as it has
   seen of it, with the student's own label prior; a student aims halfway between that and what it thinks itself.
3. `study`: every student starts from its original weights and changes fully connected layers only, so that its
   normalisation statistics stay true.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.models.lenet import IMAGE_SIZE, LeNet

RARE = 1e-3  # the least share of a class in a prior: absent is not impossible
OWN = 0.5  # weight of a student's own opinion in its target
TRUST = 0.05  # in a client's opinion on a class it has never seen


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
    model: LeNet,
    theta: Tensor,
    statistics: Tensor,
    gates: Tensor | None,
    labels: Tensor,
    how: Inversion,
    generator: torch.Generator,
) -> tuple[Tensor, list[float]]:
    """Images of these labels in the eyes of one client's model, from smoothed noise; and the loss on the way."""
    noise = torch.randn(len(labels), 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    images = F.avg_pool2d(noise, 3, 1, 1, count_include_pad=False).mul_(2).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=how.lr)
    wanted = statistics.split((6, 6, 16, 16))
    losses = []
    for _ in range(how.iterations):
        seen: list[tuple[Tensor, Tensor]] = []
        logits = model.forward(theta, images, statistics, gates, seen)
        found = [part for pair in seen for part in pair]
        feature = sum(((a - b).square().sum() for a, b in zip(found, wanted, strict=True)), torch.zeros(()))
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


def opinions(
    model: LeNet, thetas: Tensor, statistics: Tensor, gates: Tensor | None, trust: Tensor, images: Tensor
) -> Tensor:
    """What clients think of the images: the sum of their logits, each class weighed by `trust` (clients x classes)."""
    total = torch.zeros(len(images), model.classes)
    with torch.inference_mode():
        for i, theta in enumerate(thetas):
            gate = None if gates is None else gates[i]
            total += trust[i] * model.forward(theta, images, statistics[i], gate)
    return total


def trust(histograms: Tensor) -> Tensor:
    """How much each client's opinion on each class counts: as much as it has seen of the class, and a little always."""
    return histograms + TRUST


def log_prior(histograms: Tensor) -> Tensor:
    """How often a client meets each class, as an output bias."""
    return histograms.clamp_min(RARE).log()


def targets(common: Tensor, own: Tensor) -> Tensor:
    """What students should say: between the common opinion and their own, both with the student's prior."""
    return torch.softmax((1 - OWN) * common + OWN * own, -1)


def features(model: LeNet, theta: Tensor, statistics: Tensor, gates: Tensor | None, images: Tensor) -> Tensor:
    """What a client's convolutions make of the images: the input of its fully connected layers."""
    with torch.inference_mode():
        return torch.cat([model.convolve(theta, part, statistics, gates) for part in images.split(256)])


@dataclass(frozen=True)
class Study:
    """How students learn."""

    passes: int = 4
    lr: float = 0.01
    momentum: float = 0.9
    batch: int = 64


def study(
    model: LeNet, thetas: Tensor, inputs: Tensor, wanted: Tensor, gates: Tensor | None, how: Study,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Students (g x P) match their targets (g x n x classes) on their features (g x n x 400), all at once.

    The gradient is written out: softmax and cross-entropy, then three products per layer for all students together.
    """
    dense = thetas[:, model.dense].clone()
    velocity = torch.zeros_like(dense)
    gradient = torch.zeros_like(dense)
    p, g = _dense_views(model, dense), _dense_views(model, gradient)
    first, second = _dense_gates(gates)
    count = inputs.shape[1]
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(how.passes)])
    batches = order.split(how.batch)
    for i, batch in enumerate(batches):
        x0, y = inputs[:, batch], wanted[:, batch]
        a1, x1, a2, x2, logits = _dense_forward(p, x0, first, second)
        d = torch.softmax(logits, 2).sub_(y).div_(len(batch))
        d = _linear_backward("fc3", d, x2, p, g)
        d = _linear_backward("fc2", _relu_backward(d, a2, second), x1, p, g)
        _linear_backward("fc1", _relu_backward(d, a1, first), x0, p, g)
        velocity.mul_(how.momentum).add_(gradient)
        dense.sub_(velocity, alpha=how.lr * (1 - i / len(batches)))
    result = thetas.clone()
    result[:, model.dense] = dense
    return result


def dense_logits(model: LeNet, thetas: Tensor, inputs: Tensor, gates: Tensor | None) -> Tensor:
    """What the students (g x P) say on their features (g x n x 400) before they study."""
    p = _dense_views(model, thetas[:, model.dense])
    return _dense_forward(p, inputs, *_dense_gates(gates))[-1]


def _dense_gates(gates: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if gates is None else (gates[:, None, 22:142], gates[:, None, 142:])


def _dense_forward(
    p: dict[str, Tensor], x0: Tensor, first: Tensor | None, second: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Activations before and after the gates of both hidden layers, and the logits."""
    a1 = torch.baddbmm(p["fc1.bias"], x0, p["fc1.weight"].mT).relu_()
    x1 = a1 if first is None else a1 * first
    a2 = torch.baddbmm(p["fc2.bias"], x1, p["fc2.weight"].mT).relu_()
    x2 = a2 if second is None else a2 * second
    return a1, x1, a2, x2, torch.baddbmm(p["fc3.bias"], x2, p["fc3.weight"].mT)


def _dense_views(model: LeNet, dense: Tensor) -> dict[str, Tensor]:
    """Named tensors of the fully connected layers of g students; biases as rows, ready to be added."""
    start, result = model.dense.start, {}
    for name, shape in model.shapes.items():
        if name.startswith("fc"):
            part = model.slices[name]
            flat = dense[:, part.start - start : part.stop - start]
            result[name] = flat.view(-1, *shape) if len(shape) > 1 else flat[:, None, :]
    return result


def _linear_backward(name: str, d: Tensor, x: Tensor, p: dict[str, Tensor], g: dict[str, Tensor]) -> Tensor:
    g[f"{name}.weight"].copy_(torch.bmm(d.mT, x))
    g[f"{name}.bias"].copy_(d.sum(1, keepdim=True))
    return torch.bmm(d, p[f"{name}.weight"])


def _relu_backward(d: Tensor, active: Tensor, gate: Tensor | None) -> Tensor:
    d = d if gate is None else d * gate
    return d * (active > 0)
