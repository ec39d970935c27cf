"""Replay from end to end: which models are inverted, who teaches, and what comes of it.

Ours has one student, the common model: the version before a step and what the step trained teach it together. The
paper's (`run_literally`) fine-tunes every existing client. The heavy parts are jobs (`invert`, `distil`, `fine_tune`)
that run wherever there is a free core; their grouping does not depend on how many there are, so the bits do not either.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.mechanisms import replay
from pfeddsh.messages import Compute, Message, State
from pfeddsh.models.base import Model
from pfeddsh.models.training import over_batches
from pfeddsh.rng import torch_stream

CLASS = 8  # clients fine-tuned by one job


class Draws(Protocol):
    """The circumstances of a job, of which its randomness is a function."""

    def generator(self, purpose: str) -> torch.Generator: ...


class Consolidation:
    """Data-free replay for one network; the attribute `consolidation` of a method, by which its jobs are called."""

    def __init__(self, model: Model, inversion: replay.Inversion, seed: int) -> None:
        self.model, self.inversion, self.seed = model, inversion, seed
        self.distillation = replay.Distillation()

    def run(self, state: State, compute: Compute) -> Tensor:
        """The common model after a step, taught by its version before and by what the step trained.

        Both are inverted with the statistics of their clients, and with all classes alike: nobody has told labels.
        After step 1 there is only one teacher.
        """
        step, draw = state.facts["step"], torch_stream(self.seed, state.facts["step"], "replay")
        known = [t for t in range(1, step + 1) if f"replay/statistics/{t}" in state]
        if not known:
            return state["common"]
        past = [t for t in known if t < step] or known
        old = Message({
            "theta": state[f"common/{step - 1}" if step > 1 else "trained/1"],
            "statistics": torch.stack([state[f"replay/statistics/{t}"] for t in past]).mean(0),
        })  # fmt: skip
        teachers = [old]
        if step > 1 and step in known:
            new = {"theta": state[f"trained/{step}"], "statistics": state[f"replay/statistics/{step}"]}
            teachers.append(Message(new))
        orders = []
        for teacher in teachers:
            each = self.inversion.images // len(teachers)
            wanted = torch.randint(self.model.classes, (each,), generator=draw)
            orders.append(Message({**_one(teacher), "labels": wanted}))
        images = state["pool"] = torch.cat([reply["images"] for reply in compute("consolidation.invert", orders)])
        lesson = {name: torch.stack([t[name] for t in teachers]) for name in ("theta", "statistics")}
        student = Message({"images": images, "student": state["common"], **lesson})
        return compute("consolidation.distil", [student])[0]["theta"]

    def run_literally(
        self, state: State, models: dict[int, Message], newcomers: list[int], compute: Compute
    ) -> dict[int, Message]:
        """The paper's replay (Eq. 16): existing clients are fine-tuned on the labels of the newcomers' images."""
        draw = torch_stream(self.seed, state.facts["step"], "replay")
        images, labels = self.imagine(state, models, newcomers, draw, compute)
        existing = {k: model for k, model in models.items() if k not in newcomers}
        clients, lessons = list(existing), []
        for i in range(0, len(clients), CLASS):
            lesson = self._stack(state, existing, clients[i : i + CLASS])
            lesson.tensors |= {"images": images, "labels": labels}
            lessons.append(lesson)
        students = torch.cat([reply["thetas"] for reply in compute("consolidation.fine_tune", lessons)])
        return {k: Message({**models[k].tensors, "theta": theta}) for k, theta in zip(clients, students, strict=True)}

    def imagine(
        self, state: State, models: dict[int, Message], clients: list[int], draw: torch.Generator, compute: Compute
    ) -> tuple[Tensor, Tensor]:
        """Images as these clients see them, as many from each, with labels as often as the client meets them."""
        each = -(-self.inversion.images // len(clients))
        orders = []
        uniform = torch.full((self.model.classes,), 1 / self.model.classes)
        for client in clients:
            order = self._stack(state, models, [client])
            histogram = state.tensors.get(f"histogram/{client}", uniform)
            order["labels"] = torch.multinomial(histogram, each, replacement=True, generator=draw)
            orders.append(order)
        images = torch.cat([reply["images"] for reply in compute("consolidation.invert", orders)])
        return images, torch.cat([order["labels"] for order in orders])

    def _stack(self, state: State, models: dict[int, Message], clients: list[int]) -> Message:
        """The models of several clients as one message."""
        parts = {
            "thetas": torch.stack([models[k]["theta"] for k in clients]),
            "statistics": torch.stack([state[f"statistics/{k}"] for k in clients]),
        }
        if "mask" in models[clients[0]]:
            parts["gates"] = torch.stack([models[k]["mask"].float() for k in clients])
        return Message(parts)

    # Jobs

    def invert(self, message: Message, visit: Draws) -> Message:
        gates = message["gates"][0] if "gates" in message else None
        theta, statistics = message["thetas"][0], message["statistics"][0]
        draw = visit.generator("invert")
        images, _ = replay.invert(self.model, theta, statistics, gates, message["labels"], self.inversion, draw)
        return Message({"images": images.half()})

    def distil(self, message: Message, visit: Draws) -> Message:
        """The student matches what its teachers say together of the images, halfway from what it says itself."""
        images = message["images"].float()
        heard = replay.opinions(self.model, message["theta"], message["statistics"], images)
        statistics, draw = message["statistics"].mean(0), visit.generator("distil")
        student = replay.distil(self.model, message["student"], statistics, images, heard, self.distillation, draw)
        return Message({"theta": student})

    def fine_tune(self, message: Message, visit: Draws) -> Message:
        """The paper's literal fine-tuning: all weights, labels of the synthetic images, statistics as they are."""
        images, draw = message["images"].float(), visit.generator("fine-tune")
        order = torch.cat([torch.randperm(len(images), generator=draw) for _ in range(self.distillation.passes)])
        batches = order.split(self.distillation.batch)
        tuned = [self._tuned(message, i, images, batches) for i in range(len(message["thetas"]))]
        return Message({"thetas": torch.stack(tuned)})

    def _tuned(self, message: Message, i: int, images: Tensor, batches: Sequence[Tensor]) -> Tensor:
        """The weights of one of these clients after it."""
        theta, statistics = message["thetas"][i].clone().requires_grad_(), message["statistics"][i]
        gates = message["gates"][i] if "gates" in message else None
        optimiser = torch.optim.SGD([theta], self.distillation.lr, self.distillation.momentum)

        def step(batch: Tensor) -> Tensor:
            logits = self.model.forward(theta, images[batch], statistics, gates)
            loss = F.cross_entropy(logits, message["labels"][batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return loss.detach()

        over_batches(batches, step, images.device)
        return theta.detach()


def _one(teacher: Message) -> dict[str, Tensor]:
    """One model, as the inversion takes it."""
    return {"thetas": teacher["theta"][None], "statistics": teacher["statistics"][None]}
