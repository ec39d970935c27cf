"""PeFLL (Scott et al. 2024): an embedding network describes a client's data, a hypernetwork turns that into weights.

The original exchanges six messages in a round. Here are two: a client is served from the descriptor it sent last, and
the gradient of that descriptor reaches it with its next download, when it pulls it through the embedding network and
uploads the result. So the embedding network learns one visit late, in full size and at full cost: `eta` travels both
ways. A client keeps nothing but data; whoever evaluates takes statistics by a forward pass. Existing clients are served
from the descriptor of their own step: weights for a new one can only come from the server, which they do not call.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh.mechanisms.hypernet import EMBEDDING
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.options import Options
from pfeddsh.methods.pfedhn import Generated, HypernetSettings
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.describing import describe, layout
from pfeddsh.rng import torch_stream

CHUNK = 64  # images described at once
BETA1, BETA2, TINY = 0.9, 0.999, 1e-8  # Adam's own


class Settings(HypernetSettings):
    """Of the embedding network; the hypernetwork learns as pFedHN's (Adam on W2 would need three times its memory)."""

    # The original's Adam takes 2e-4 over 5,000 rounds. In 200, whatever moves descriptors moves clients away from the
    # keys they were written under: step 1 has 80.5 % at 1e-5, 82.2 % at 1e-6, 82.1 % at 0 (docs/baselines.md).
    rate: float = Field(1e-6, ge=0, description="of the embedding network")
    clip: float = Field(50.0, gt=0, description="largest norm of a client's gradient")  # the original's
    images: int = Field(32, ge=1, description="images behind a client's gradient")  # the original's one batch
    # The original's one pair needs its 5,000 rounds to tell clients apart: here it leaves keys with a cosine of 0.995.
    scaling: Literal["each", "common"] = Field(
        "each", description="descriptors are normalised by the first step's mean and scale of each number, or of all"
    )


class PeFLL(Generated):
    """State: also `eta` with Adam's moments, `centre` and `scale` of descriptors, and `slope/k`, to be sent to k.

    Download: also `eta` and `slope`. Upload: also `descriptor` and `gradient`, that of <slope, descriptor> by `eta`.
    """

    Settings = Settings
    sends_changes = False  # a description of its data
    zero_shot = True
    labelled = True  # one-hot labels are input channels

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        self.fresh = True
        self.network = layout(task.model.shape[0], task.model.classes if self.labelled else 0, EMBEDDING)

    # On the server

    def init(self) -> State:
        state = super().init()
        state["eta"] = self.network.init(torch_stream(self.task.seed, "embedding network"))
        return state

    def greeting(self, state: State) -> Message:
        return Message({"eta": state["eta"]})

    def expected_card(self) -> Message:
        return Message({"descriptor": torch.zeros(EMBEDDING)})

    def expected_report(self) -> Message:
        return self.expected_card()

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        state.facts |= {"step": step, "updates": 0}
        state["mean"], state["square"] = torch.zeros_like(state["eta"]), torch.zeros_like(state["eta"])
        if step == 1:
            raw = torch.stack([card["descriptor"] for card in cards.values()])
            state["centre"], state["scale"] = constants(raw, self.settings.scaling)
        self.remember(state, cards)

    def remember(self, state: State, told: dict[int, Message]) -> None:
        for client, message in told.items():
            state[f"e/{client}"] = (message["descriptor"] - state["centre"]) / state["scale"]

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        messages = super().download(state, clients)
        for client, message in messages.items():
            message["slope"] = state.tensors.get(f"slope/{client}", torch.zeros(EMBEDDING))
            message["eta"] = state["eta"]
        return messages

    def expected(self, download: Message) -> Message:
        told = {"delta": download["theta"], "descriptor": download["slope"], "gradient": download["eta"]}
        return Message(told, {"samples": 1})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        for client, slope in self.descend(state, uploads).items():
            state[f"slope/{client}"] = slope / state["scale"]
        gradients = [upload["gradient"] for upload in uploads.values()]
        clipped = [g * min(1.0, self.settings.clip / max(float(g.norm()), TINY)) for g in gradients]
        self.learn(state, torch.stack(clipped).mean(0))
        self.remember(state, uploads)

    def learn(self, state: State, gradient: Tensor) -> None:
        """One step of Adam for the embedding network; its moments start afresh at every onboarding step."""
        state.facts["updates"] += 1
        count = state.facts["updates"]
        state["mean"].lerp_(gradient, 1 - BETA1)
        state["square"].lerp_(gradient.square(), 1 - BETA2)
        length = (state["square"] / (1 - BETA2**count)).sqrt_().add_(TINY)
        state["eta"].addcdiv_(state["mean"], length, value=-self.settings.rate / (1 - BETA1**count))

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        self.remember(state, reports)
        for client in state.under("slope"):
            del state.tensors[f"slope/{client}"]

    # At the client

    def describe(self, eta: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The sum of the embedding network's outputs over these images."""
        return describe(self.network.views(eta), images, labels if self.labelled else None)

    @torch.no_grad()
    def descriptor(self, eta: Tensor, data: ClientData) -> Tensor:
        """The mean over all of the client's images."""
        images, labels = data.train
        parts = zip(images.split(CHUNK), labels.split(CHUNK), strict=True)
        return torch.stack([self.describe(eta, *part) for part in parts]).sum(0) / len(labels)

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        return Message({"descriptor": self.descriptor(message["eta"], data)}), memory

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        upload, memory = super().local(message, data, memory, visit)
        images, labels = data.train
        few = torch.randperm(len(labels), generator=visit.generator("describe"))[: self.settings.images]

        def product(eta: Tensor) -> Tensor:
            return torch.dot(self.describe(eta, images[few], labels[few]), message["slope"]) / len(few)

        upload["gradient"] = torch.func.grad(product)(message["eta"])
        upload["descriptor"] = self.descriptor(message["eta"], data)
        return upload, memory

    def settle(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        return Message({"descriptor": self.descriptor(message["eta"], data)}), memory


def constants(raw: Tensor, scaling: str) -> tuple[Tensor, Tensor]:
    """Centre and scale of descriptors (clients x 32): the same for all 32 numbers, or for each its own.

    Each number's own variance is steadied by the average one, and by that of the numbers if there is a single client.
    """
    common = raw.std(unbiased=False).clamp_min(1e-6)
    if scaling == "common":
        return raw.mean().expand(EMBEDDING).clone(), common.expand(EMBEDDING).clone()
    variance = raw.var(0, unbiased=False)
    return raw.mean(0), ((variance + variance.mean()) / 2).sqrt().clamp_min(0.01 * float(common))
