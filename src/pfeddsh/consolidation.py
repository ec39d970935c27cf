"""Replay from end to end: which models are inverted, who teaches whom, and what each client is offered.

The heavy parts are jobs (`invert`, `listen`, `study`) that run wherever there is a free core; their grouping does not
depend on how many there are, so the bits do not either.
"""

import torch
from torch import Tensor

from pfeddsh import replay
from pfeddsh.messages import Message, State
from pfeddsh.methods.base import Compute
from pfeddsh.models.lenet import LeNet
from pfeddsh.rng import torch_stream

EXISTING = 15  # existing clients inverted beside the newcomers
LISTENING = 10  # clients whose opinion one job asks
CLASS = 8  # students taught by one job


class Consolidation:
    """Data-free replay for one network."""

    def __init__(self, model: LeNet, inversion: replay.Inversion, literal: bool) -> None:
        self.model, self.inversion, self.literal = model, inversion, literal
        self.studying = replay.Study()

    def run(
        self, state: State, models: dict[int, Message], newcomers: list[int], compute: Compute
    ) -> dict[int, Message]:
        """The consolidated model of every client, newcomers included."""
        step, clients = state.facts["step"], list(models)
        existing = [k for k in clients if k not in newcomers]
        draw = torch_stream(0, step, "replay")
        sample = [existing[i] for i in torch.randperm(len(existing), generator=draw)[:EXISTING].tolist()]
        histograms = {k: self._histogram(state, models[k], k) for k in clients}
        images = self._imagine(state, models, histograms, sorted(newcomers + sample), draw, compute)
        old = state.tensors.get("pool", torch.zeros(0, 3, 32, 32, dtype=torch.float16))
        heard = state.tensors.get("heard", torch.zeros(0, self.model.classes))
        again = self._ask(state, models, newcomers, old, compute)
        fresh = self._ask(state, models, clients, images, compute)
        heard = torch.cat([heard + again, fresh])
        state["pool"], state["heard"] = torch.cat([old, images]), heard
        groups = [clients[i : i + CLASS] for i in range(0, len(clients), CLASS)]
        lessons = [self._stack(state, models, group) for group in groups]
        for lesson, group in zip(lessons, groups, strict=True):
            lesson["histograms"] = torch.stack([histograms[k] for k in group])
            lesson.tensors |= {"images": state["pool"], "teacher": heard / len(clients)}
        students = torch.cat([reply["thetas"] for reply in compute("study", lessons)])
        return {k: Message({**models[k].tensors, "theta": theta}) for k, theta in zip(clients, students, strict=True)}

    def _histogram(self, state: State, model: Message, client: int) -> Tensor:
        """The client's label histogram as it told it; unknown ones are taken as uniform."""
        uniform = torch.full((self.model.classes,), 1 / self.model.classes)
        return state.tensors.get(f"histogram/{client}", uniform)

    def _stack(self, state: State, models: dict[int, Message], clients: list[int]) -> Message:
        """The models of several clients as one message."""
        parts = {
            "thetas": torch.stack([models[k]["theta"] for k in clients]),
            "statistics": torch.stack([state[f"statistics/{k}"] for k in clients]),
        }
        if "mask" in models[clients[0]]:
            parts["gates"] = torch.stack([models[k]["mask"].float() for k in clients])
        return Message(parts)

    def _imagine(
        self,
        state: State,
        models: dict[int, Message],
        histograms: dict[int, Tensor],
        clients: list[int],
        draw: torch.Generator,
        compute: Compute,
    ) -> Tensor:
        """Images of this step: as many from each of these clients, with labels as often as the client meets them."""
        each = -(-self.inversion.images // len(clients))
        orders = []
        for client in clients:
            order = self._stack(state, models, [client])
            order["labels"] = torch.multinomial(histograms[client], each, replacement=True, generator=draw)
            orders.append(order)
        return torch.cat([reply["images"] for reply in compute("invert", orders)])

    def _ask(
        self, state: State, models: dict[int, Message], clients: list[int], images: Tensor, compute: Compute
    ) -> Tensor:
        """The sum of these clients' log-probabilities on the images."""
        if not len(images):
            return torch.zeros(0, self.model.classes)
        questions = []
        for i in range(0, len(clients), LISTENING):
            question = self._stack(state, models, clients[i : i + LISTENING])
            question["images"] = images
            questions.append(question)
        answers = [reply["heard"] for reply in compute("listen", questions)]
        return torch.stack(answers).sum(0)

    # Jobs

    def invert(self, message: Message, generator: torch.Generator) -> Message:
        gates = message["gates"][0] if "gates" in message else None
        images, _ = replay.invert(
            self.model, message["thetas"][0], message["statistics"][0], gates, message["labels"], self.inversion,
            generator,
        )  # fmt: skip
        return Message({"images": images.half()})

    def listen(self, message: Message) -> Message:
        gates = message.tensors.get("gates")
        images = message["images"].float()
        heard = replay.opinions(self.model, message["thetas"], message["statistics"], gates, images)
        return Message({"heard": heard})

    def study(self, message: Message, generator: torch.Generator) -> Message:
        gates = message.tensors.get("gates")
        images, thetas = message["images"].float(), message["thetas"]
        each = zip(thetas, message["statistics"], [None] * len(thetas) if gates is None else gates, strict=True)
        inputs = torch.stack([replay.features(self.model, *own, images) for own in each])
        wanted = torch.stack([replay.targets(message["teacher"], histogram) for histogram in message["histograms"]])
        students = replay.study(self.model, thetas, inputs, wanted, gates, self.studying, generator)
        return Message({"thetas": students})
