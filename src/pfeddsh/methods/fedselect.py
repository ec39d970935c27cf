"""FedSelect (Tamirisa et al. 2024): each client finds the weights that it keeps to itself, those that change most.

Growth counts a client's own visits, since rounds are many and visits few; an entry nobody shares in a round keeps the
server's value, which full participation never needs. A newcomer starts with the server's weights and nothing personal;
an existing client keeps its personal entries and re-reads the others. Statistics are the client's own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.fedrep import two_passes
from pfeddsh.methods.options import Normalised, Options
from pfeddsh.methods.partial import Partial
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.training import sgd_epoch


class Settings(Normalised):
    growth: float = Field(0.25, ge=0, le=1, description="of the shared weights, how many become personal")  # original
    # 0.8 originally; with the few visits of a client, less, so that something is left to share.
    bound: float = Field(0.5, ge=0, le=1, description="the largest personal share of each weight tensor")
    every: int = Field(3, ge=1, description="own visits between two growths")  # original, there in rounds
    # The original's 0.05, which is 5 x the protocol's 0.01: steps without momentum are shorter.
    rate: float = Field(5.0, gt=0, description="factor of the learning rate; no momentum")
    # Off: the original gives each of the two kinds a pass over the data.
    split_epoch: bool = Field(False, description="one pass in all: half of the batches for each kind of entries")


class FedSelect(Method):
    """State: `theta`. Upload: the shared entries and the bits that say which. Biases and scales are always shared.

    Memory: `personal`, which entries are; `own`, their values; `reference`, the weights when they were last chosen.
    """

    Settings = Settings
    sends_changes = False  # a mask of its own choice and values under it
    whole_only = True

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        self.partial = Partial(torch.arange(task.model.size))

    # On the server

    def init(self) -> State:
        return State({"theta": self.task.theta0.clone()})

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return dict.fromkeys(clients, Message({"theta": state["theta"]}))

    def check_upload(self, download: Message, upload: Message) -> None:
        self.partial.check(upload)

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        state["theta"] = self.partial.mean(state["theta"], uploads.values())

    def alone(self, download: Message, upload: Message) -> Message:
        return Message({"theta": self.partial.mean(download["theta"], [upload])})

    # At the client

    def weights(self, message: Message, memory: Memory) -> Tensor:
        if "personal" not in memory:
            return message["theta"]
        return torch.where(memory["personal"], memory["own"], message["theta"])

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """What becomes personal now was still shared in this visit, and is uploaded for the last time."""
        theta = self.weights(message, memory).clone()
        personal = memory.tensors.get("personal", torch.zeros_like(theta, dtype=torch.bool))
        reference = memory.tensors.get("reference", message["theta"])
        facts = self._alternate(theta, personal, data, visit)
        upload = Message(self.partial.pack(theta, ~personal), facts)
        visits = memory.facts.get("visits", 0) + 1
        if visits % self.settings.every == 0:
            personal, reference = self.grown(personal, theta - reference), theta
        kept = {"personal": personal, "own": theta.clone(), "reference": reference.clone()}
        return upload, Memory({**memory.tensors, **kept}, {**memory.facts, "visits": visits})

    def _alternate(self, theta: Tensor, personal: Tensor, data: ClientData, visit: Visit) -> dict[str, Any]:
        """A pass for the personal entries, then one for the shared; while nothing is personal, the latter alone."""
        images, labels = data.train
        passes = two_passes(visit, len(labels), self.settings.split_epoch)
        if not personal.any():
            passes = [], visit.batches(len(labels))
        for chosen, batches in zip((personal, ~personal), passes, strict=True):
            loss = sgd_epoch(
                self.trainer, theta, images, labels, batches=batches, lr=self.settings.rate * visit.lr, momentum=0.0,
                gradient_gate=chosen.float(),
            )  # fmt: skip
        return {"samples": len(labels), "loss": loss}

    def grown(self, personal: Tensor, change: Tensor) -> Tensor:
        """In each weight tensor, the shared entries that changed most become personal, up to the bound."""
        personal = personal.clone()
        for name, place in self.model.slices.items():
            if len(self.model.shapes[name]) == 1:
                continue
            taken, size = int(personal[place].sum()), place.stop - place.start
            room = int(self.settings.bound * size) - taken
            count = max(0, min(int(self.settings.growth * (size - taken)), room))
            moved = change[place].abs().masked_fill(personal[place], -1)
            personal[place.start + moved.topk(count).indices] = True
        return personal
