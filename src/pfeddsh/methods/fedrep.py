"""FedRep (Collins et al. 2021): FedPer's split, but the head learns on a fixed body first, then the body on that head.

Each pass has momentum of its own: one optimiser over both would go on moving the part at rest. The head epochs that the
original adds before its final test are left out, since existing clients must not train. Statistics are the client's
own, as in FedPer.
"""

from dataclasses import replace
from typing import Any

from pydantic import Field
from torch import Tensor

from pfeddsh.methods.fedper import FedPer, FedPerSettings
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.training import sgd_epoch


class Settings(FedPerSettings):
    """The original's 10 + 1 epochs do not fit the protocol's local epoch; of 1, 2 and 4 for the head, 2 was best."""

    head_epochs: int = Field(2, ge=1, description="passes of the head, per local epoch")
    body_epochs: int = Field(1, ge=1, description="passes of the body, per local epoch")
    # Off: one pass over the data for both would halve the steps of either part.
    split_epoch: bool = Field(False, description="one pass in all: half of the batches for the head, half for the body")


def two_passes(
    visit: Visit, count: int, split: bool, epochs: tuple[int, int] = (1, 1)
) -> tuple[list[Tensor], list[Tensor]]:
    """The batches of the personal and of the shared pass; without `split` the shared pass sees those of FedAvg."""
    if not split:
        first, second = (replace(visit, epochs=visit.epochs * times) for times in epochs)
        return first.batches(count, "personal batches"), second.batches(count)
    batches = visit.batches(count)
    if len(batches) == 1:  # else one of the two would never train
        batches = list(batches[0].chunk(2))
    return batches[: len(batches) // 2], batches[len(batches) // 2 :]


class FedRep(FedPer):
    """State, messages and memory are those of FedPer."""

    Settings = Settings

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options

    def train(self, theta: Tensor, data: ClientData, visit: Visit) -> dict[str, Any]:
        images, labels = data.train
        settings = self.settings
        passes = two_passes(visit, len(labels), settings.split_epoch, (settings.head_epochs, settings.body_epochs))
        parts = (self.model.head,) if visit.head_only else (self.model.head, self.model.body)
        for part, batches in zip(parts, passes, strict=False):
            loss = sgd_epoch(
                self.trainer, theta, images, labels, batches=batches, lr=visit.lr, momentum=visit.momentum, part=part,
                prior=self.prior(data),
            )  # fmt: skip
        return {"samples": len(labels), "loss": loss}
