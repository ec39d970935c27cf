"""What an existing client keeps, and when it takes what it is offered instead.

A client judges by data of its own, and by more than it has trained on: a model has learnt those images by heart, so
they speak for the one it has, however good the offer is. Its test images measure, and must not choose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.messages import Memory

Existing = Literal["follow", "keep", "guard"]
Evidence = Literal["loss", "shifted", "held-out"]
Examples = tuple[Tensor, Tensor]  # images and labels
Predict = Callable[[Tensor], Tensor]  # from images to logits

SHIFT = 2  # pixels
FAIR = 0.75  # flipped images are evidence if the model gets this share as many right as of others


@dataclass(frozen=True)
class Served:
    """All that a client predicts with."""

    theta: Tensor
    statistics: Tensor | None
    gates: Tensor | None = None
    prior: Tensor | None = None


def keep(model: Served, memory: Memory) -> Memory:
    """The client's memory with this model in it, whole; the prior is not stored, it follows from the labels."""
    parts = {"kept": model.theta, "kept_statistics": model.statistics, "kept_gates": model.gates}
    others = {name: tensor for name, tensor in memory.tensors.items() if name not in parts}
    return Memory({**others, **{name: part for name, part in parts.items() if part is not None}}, memory.facts)


def kept(memory: Memory, prior: Tensor | None) -> Served | None:
    """The model a client has kept, if any."""
    if "kept" not in memory:
        return None
    return Served(memory["kept"], memory.tensors.get("kept_statistics"), memory.tensors.get("kept_gates"), prior)


def prefers(current: Predict, offered: Predict, trained: Examples, held_out: Examples, evidence: Evidence) -> bool:
    """Whether the client takes the offer: it must be better, by the evidence.

    `loss`: on the images it holds out, which in simulation are those it trained on unless some were set aside;
    `shifted`: the loss on its training images as nobody trained on them; `held-out`: how many of the images set aside
    are right, and among equals the loss on them.
    """
    (images, labels), said = judged_by(current, trained, held_out, evidence)
    now, then = (_merit(logits, labels, evidence == "held-out") for logits in (said, offered(images)))
    return then > now


def judged_by(current: Predict, trained: Examples, held_out: Examples, evidence: Evidence) -> tuple[Examples, Tensor]:
    """The images that this evidence is taken from, and what the current model says of them.

    A cat flipped is a cat, but a digit flipped is none. Where the model fails on flipped images and not on others, it
    sees other classes in them, and what they say of an offer is noise (results/trials.csv).
    """
    if evidence != "shifted":
        return held_out, current(held_out[0])
    flipped = shifted((trained[0].flip(-1), trained[1]))
    said = current(flipped[0])
    if (recognised := right(said, flipped[1])) >= FAIR * len(flipped[1]):
        return flipped, said
    moved = shifted(trained)
    unflipped = current(moved[0])
    return (flipped, said) if recognised >= FAIR * right(unflipped, moved[1]) else (moved, unflipped)


def shifted(examples: Examples) -> Examples:
    """Every image once, moved by two pixels: in turn down, up, right and left.

    Vectors of features have nothing to shift: for them it is the loss on what the client trained on.
    """
    images, labels = examples
    height, width = images.shape[-2:]
    padded = F.pad(images, (SHIFT,) * 4, mode="replicate")
    corners = ((0, SHIFT), (2 * SHIFT, SHIFT), (SHIFT, 0), (SHIFT, 2 * SHIFT))
    parts = [padded[i::4, :, y : y + height, x : x + width] for i, (y, x) in enumerate(corners)]
    return torch.cat(parts), torch.cat([labels[i::4] for i in range(len(corners))])


def right(logits: Tensor, labels: Tensor) -> int:
    return int((logits.argmax(1) == labels).sum())


def _merit(logits: Tensor, labels: Tensor, count: bool) -> tuple[int, float]:
    return right(logits, labels) if count else 0, -float(F.cross_entropy(logits, labels))
