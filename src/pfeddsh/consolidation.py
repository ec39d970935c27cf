"""Replay from end to end: which models are inverted, who teaches whom, and what each client is offered.

The heavy parts are jobs (`invert`, `listen`, `study`) that run wherever there is a free core; their grouping does not
depend on how many there are, so the bits do not either.
"""

import torch
import torch.nn.functional as F
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

    def __init__(self, model: LeNet, inversion: replay.Inversion, seed: int) -> None:
        self.model, self.inversion, self.seed = model, inversion, seed
        self.studying = replay.Study()

    def run(
        self, state: State, models: dict[int, Message], newcomers: list[int], compute: Compute
    ) -> dict[int, Message]:
        """The consolidated model of every client, newcomers included."""
        clients = list(models)
        existing = [k for k in clients if k not in newcomers]
        draw = torch_stream(self.seed, state.facts["step"], "replay")
        sample = [existing[i] for i in torch.randperm(len(existing), generator=draw)[:EXISTING].tolist()]
        fresh, _ = self.imagine(state, models, sorted(newcomers + sample), draw, compute)
        old = state.tensors.get("pool", fresh[:0])
        heard = state.tensors.get("heard", torch.zeros(0, self.model.classes))
        again = self._ask(state, models, newcomers, old, compute)
        state["heard"] = torch.cat([heard + again, self._ask(state, models, clients, fresh, compute)])
        state["pool"] = torch.cat([old, fresh])
        teacher = state["heard"] / replay.trust(self._histograms(state, clients)).sum(0)
        return self._teach(state, models, compute, "study", {"images": state["pool"], "teacher": teacher})

    def run_literally(
        self, state: State, models: dict[int, Message], newcomers: list[int], compute: Compute
    ) -> dict[int, Message]:
        """The paper's replay (Eq. 16): existing clients are fine-tuned on the labels of the newcomers' images."""
        draw = torch_stream(self.seed, state.facts["step"], "replay")
        images, labels = self.imagine(state, models, newcomers, draw, compute)
        existing = {k: model for k, model in models.items() if k not in newcomers}
        return self._teach(state, existing, compute, "cram", {"images": images, "labels": labels})

    def imagine(
        self, state: State, models: dict[int, Message], clients: list[int], draw: torch.Generator, compute: Compute
    ) -> tuple[Tensor, Tensor]:
        """Images as these clients see them, as many from each, with labels as often as the client meets them."""
        each = -(-self.inversion.images // len(clients))
        orders = []
        for client, histogram in zip(clients, self._histograms(state, clients), strict=True):
            order = self._stack(state, models, [client])
            order["labels"] = torch.multinomial(histogram, each, replacement=True, generator=draw)
            orders.append(order)
        images = torch.cat([reply["images"] for reply in compute("invert", orders)])
        return images, torch.cat([order["labels"] for order in orders])

    def _histograms(self, state: State, clients: list[int]) -> Tensor:
        """Label histograms as the clients told them; one that was not told is taken as uniform."""
        uniform = torch.full((self.model.classes,), 1 / self.model.classes)
        return torch.stack([state.tensors.get(f"histogram/{k}", uniform) for k in clients])

    def _stack(self, state: State, models: dict[int, Message], clients: list[int]) -> Message:
        """The models of several clients as one message."""
        parts = {
            "thetas": torch.stack([models[k]["theta"] for k in clients]),
            "statistics": torch.stack([state[f"statistics/{k}"] for k in clients]),
            "histograms": self._histograms(state, clients),
        }
        if "mask" in models[clients[0]]:
            parts["gates"] = torch.stack([models[k]["mask"].float() for k in clients])
        return Message(parts)

    def _ask(
        self, state: State, models: dict[int, Message], clients: list[int], images: Tensor, compute: Compute
    ) -> Tensor:
        """The sum of these clients' opinions on the images."""
        if not len(images):
            return torch.zeros(0, self.model.classes)
        questions = []
        for i in range(0, len(clients), LISTENING):
            question = self._stack(state, models, clients[i : i + LISTENING])
            question["images"] = images
            questions.append(question)
        return torch.stack([reply["heard"] for reply in compute("listen", questions)]).sum(0)

    def _teach(
        self, state: State, models: dict[int, Message], compute: Compute, job: str, material: dict[str, Tensor]
    ) -> dict[int, Message]:
        """Hand the material to all clients' models, a class of them at a time."""
        clients = list(models)
        lessons = []
        for i in range(0, len(clients), CLASS):
            lesson = self._stack(state, models, clients[i : i + CLASS])
            lesson.tensors |= material
            lessons.append(lesson)
        students = torch.cat([reply["thetas"] for reply in compute(job, lessons)])
        return {k: Message({**models[k].tensors, "theta": theta}) for k, theta in zip(clients, students, strict=True)}

    # Jobs

    def invert(self, message: Message, generator: torch.Generator) -> Message:
        gates = message["gates"][0] if "gates" in message else None
        theta, statistics = message["thetas"][0], message["statistics"][0]
        images, _ = replay.invert(self.model, theta, statistics, gates, message["labels"], self.inversion, generator)
        return Message({"images": images.half()})

    def listen(self, message: Message) -> Message:
        """Opinions are on classes as such: how often a client meets them is taken out of what it says."""
        thetas, histograms = message["thetas"], message["histograms"]
        thetas[:, self.model.slices["fc3.bias"]] -= replay.log_prior(histograms)
        heard = replay.opinions(
            self.model, thetas, message["statistics"], message.tensors.get("gates"), replay.trust(histograms),
            message["images"].float(),
        )  # fmt: skip
        return Message({"heard": heard})

    def study(self, message: Message, generator: torch.Generator) -> Message:
        gates, thetas = message.tensors.get("gates"), message["thetas"]
        images = message["images"].float()
        each = zip(thetas, message["statistics"], [None] * len(thetas) if gates is None else gates, strict=True)
        inputs = torch.stack([replay.features(self.model, *own, images) for own in each])
        common = message["teacher"] + replay.log_prior(message["histograms"])[:, None]
        wanted = replay.targets(common, replay.dense_logits(self.model, thetas, inputs, gates))
        return Message({"thetas": replay.study(self.model, thetas, inputs, wanted, gates, self.studying, generator)})

    def cram(self, message: Message, generator: torch.Generator) -> Message:
        """The paper's literal fine-tuning: all weights, labels of the synthetic images, statistics as they are."""
        gates, images = message.tensors.get("gates"), message["images"].float()
        order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(self.studying.passes)])
        students = []
        for i, theta in enumerate(message["thetas"]):
            gate = None if gates is None else gates[i]
            theta = theta.clone().requires_grad_()
            optimiser = torch.optim.SGD([theta], self.studying.lr, self.studying.momentum)
            for batch in order.split(self.studying.batch):
                logits = self.model.forward(theta, images[batch], message["statistics"][i], gate)
                optimiser.zero_grad()
                F.cross_entropy(logits, message["labels"][batch]).backward()
                optimiser.step()
            students.append(theta.detach())
        return Message({"thetas": torch.stack(students)})
