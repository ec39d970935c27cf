"""pFedDSH: a hypernetwork generates every client's weights, existing clients are protected, replay improves them.

The mechanisms are in `embedding`, `hypernet`, `protection` and `replay`; this file composes them. Where it departs from
the paper, docs/deviations.md says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pfeddsh import embedding, gating, hypernet, masks
from pfeddsh.consolidation import Consolidation
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import ClientData, Compute, Method, Options, Task, Visit
from pfeddsh.protection import PROTECTIONS
from pfeddsh.replay import INVERSIONS, Inversion, log_prior
from pfeddsh.rng import torch_stream


class Settings(Options):
    """Defaults are ours; the registry has the paper's configuration and the ablations as presets."""

    protection: Literal["projection", "gate", "snapshot", "none"] = "projection"
    replay: Literal["ours", "paper", "off"] = "ours"
    inversion: Literal["ours", "appendix", "sensitivity"] = "ours"
    images: int | None = Field(None, ge=1, description="synthetic images per step, if not the preset's")
    iterations: int | None = Field(None, ge=0, description="of the inversion, if not the preset's")
    feature: float | None = Field(None, ge=0, description="weight of the statistics, if not the preset's")
    variation: float | None = Field(None, ge=0, description="weight of the total variation, if not the preset's")
    norm: float | None = Field(None, ge=0, description="weight of the pixel norm, if not the preset's")
    guard: bool = Field(True, description="clients keep the better of what they have and what they are offered")
    hidden: int = Field(
        512, ge=1, description="hidden units; with the projection, the most clients that can be told apart"
    )
    freeze_trunk: bool = Field(True, description="W1 and b1 train in step 1 only")
    rate: float = Field(0.7, gt=0, description="of W2: how far a sampled client moves towards what it trained")
    bias_rate: float = Field(0.3, ge=0, description="of b2, which all clients share")
    trunk_rate: float = Field(1.0, ge=0, description="of W1 and b1")
    embedding_rate: float = Field(1.0, ge=0)
    embedding: Literal["both", "image", "random"] = "both"
    histogram: bool = Field(True, description="clients tell their label histogram")
    prior: bool = Field(True, description="serve each client's log histogram in its output bias")
    rounding: float = Field(0.0, ge=0, description="step to which a client rounds its histogram")
    noise: float = Field(0.0, ge=0, description="scale of the Laplace noise a client adds to its histogram")
    mask_rate: float = Field(20.0, gt=0, description="of the mask logits (gate)")
    sparsity: float = Field(0.1, ge=0, description="weight of the mean gate of free channels (gate)")

    def how_to_invert(self) -> Inversion:
        own = {name: getattr(self, name) for name in ("images", "iterations", "feature", "variation", "norm")}
        return replace(INVERSIONS[self.inversion], **{name: value for name, value in own.items() if value is not None})


WHILE_TRAINING = (
    "hidden", "rate", "bias_rate", "trunk_rate", "embedding_rate", "embedding", "histogram", "prior", "rounding",
    "noise",
)  # fmt: skip


class PFedDSH(Method):
    """State: the hypernetwork, what the protection keeps, and for each client k `e/k`, `histogram/k`, `statistics/k`.

    Upload: `delta`, served minus trained weights. Memory: statistics and the model the client has accepted.
    """

    Settings = Settings

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        self.cards = embedding.CardOptions(options.embedding, options.histogram, options.rounding, options.noise)
        self.protection = PROTECTIONS[options.protection](task.model, task.seed)
        self.consolidation = Consolidation(task.model, options.how_to_invert(), task.seed)

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Replay, guard and what inverts images act at the end of steps; protections differ later, except the gate."""
        gate = options["protection"] == "gate"
        names = WHILE_TRAINING + (("mask_rate", "sparsity") if gate else ())
        return {"gate": gate, **{name: options[name] for name in names}}

    # On the server

    def init(self) -> State:
        net = hypernet.create(self.task.theta0, torch_stream(self.task.seed, "hypernetwork"), self.settings.hidden)
        return State(net, {"step": 0, "joined": {}})

    def expected_card(self) -> Message:
        nobody = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
        return Message(embedding.describe(*nobody, self.model.classes, self.cards, 0, torch.Generator()))

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        state.facts |= {"step": step, "rounds": rounds, "round": 0}
        if step == 1:
            fitted = embedding.fit([card.tensors for card in cards.values()], self.cards, self.task.seed)
            state.tensors |= {f"whitening/{name}": tensor for name, tensor in fitted.items()}
        whitening = {name[10:]: tensor for name, tensor in state.tensors.items() if name.startswith("whitening/")}
        for client, card in cards.items():
            state[f"e/{client}"] = embedding.embed(whitening, card.tensors)
            if "histogram" in card:
                state[f"histogram/{client}"] = card["histogram"]
            state.facts["joined"][str(client)] = step
        self.protection.open(state, self.keys(state, list(cards)))

    def keys(self, state: State, clients: Sequence[int]) -> Tensor:
        keys = [hypernet.key(state.tensors, state[f"e/{k}"]) for k in clients]
        return torch.stack(keys) if keys else torch.zeros(0, self.settings.hidden)

    def newcomers(self, state: State) -> list[int]:
        return [int(k) for k, step in state.facts["joined"].items() if step == state.facts["step"]]

    def with_priors(self, state: State, clients: Sequence[int], thetas: Tensor) -> Tensor:
        """Add each client's log histogram to its output bias, in place.

        The hypernetwork then learns what all clients have in common, evidence for classes, and not how often one of
        them meets a class; and a class that a client lacks is not unlearned there.
        """
        if self.settings.prior:
            for theta, k in zip(thetas, clients, strict=True):
                if f"histogram/{k}" in state:
                    theta[self.model.slices["fc3.bias"]] += log_prior(state[f"histogram/{k}"])
        return thetas

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        thetas = self.with_priors(state, clients, hypernet.generate(state.tensors, self.keys(state, clients)))
        masking = {name: state[name] for name in ("logits", "used", "own") if name in state}
        return {k: Message({"theta": theta, **masking}) for k, theta in zip(clients, thetas, strict=True)}

    def expected(self, download: Message) -> Message:
        moved = {"delta": download["theta"]}
        if "logits" in download:
            moved["logits"] = download["logits"]
        return Message(moved, {"samples": 1})

    def alone(self, download: Message, upload: Message) -> Message:
        moved = {name: tensor for name, tensor in upload.tensors.items() if name == "logits"}
        return Message({**download.tensors, "theta": download["theta"] - upload["delta"], **moved})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        """One plain SGD step on the hypernetwork; momentum, decay or Adam would move what must not move."""
        clients = list(uploads)
        deltas = torch.stack([upload["delta"] for upload in uploads.values()])
        embeddings = torch.stack([state[f"e/{k}"] for k in clients])
        keys, rates = self.keys(state, clients), (self.settings.rate, self.settings.bias_rate)
        at_keys = self.protection.write(state, clients, deltas, keys, *rates)
        gradient = hypernet.trunk_gradient(state.tensors, embeddings, at_keys)
        if state.facts["step"] == 1 or not self.settings.freeze_trunk:
            state["W1"].sub_(gradient["W1"], alpha=self.settings.trunk_rate)
            state["b1"].sub_(gradient["b1"], alpha=self.settings.trunk_rate)
        for client, slope in zip(clients, gradient["embeddings"], strict=True):
            state[f"e/{client}"].sub_(slope, alpha=self.settings.embedding_rate)
        state.facts["round"] += 1
        if "logits" in state:
            self.protection.learn_masks(state, torch.stack([upload["logits"] for upload in uploads.values()]))

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        for client, report in reports.items():
            self.keep_report(state, client, report)
        newcomers = self.newcomers(state)
        self.protection.close(state, newcomers, self.keys(state, newcomers))

    def keep_report(self, state: State, client: int, report: Message) -> None:
        state[f"statistics/{client}"] = report["statistics"]  # without them nothing can be replayed for it

    def originals(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        """The models of these clients as of their own step."""
        thetas = self.with_priors(state, clients, self.protection.originals(state, clients, self.keys(state, clients)))
        models = {k: Message({"theta": theta}) for k, theta in zip(clients, thetas, strict=True)}
        for client, model in models.items():
            if (mask := self.protection.mask(state, client)) is not None:
                model["mask"] = mask
        return models

    def replay(self, state: State, compute: Compute) -> dict[int, Message]:
        """Existing clients are served the consolidated model; newcomers are only offered it."""
        if self.settings.replay == "off" or state.facts["step"] == 1:
            return {}
        clients = [int(k) for k in state.facts["joined"] if f"statistics/{k}" in state]
        newcomers = [k for k in self.newcomers(state) if k in clients]
        if self.settings.replay == "paper":
            served = self.personal(state, clients)
            offers = self.consolidation.run_literally(state, served, newcomers, compute)
            state.tensors |= {f"replayed/{k}": offer["theta"].clone() for k, offer in offers.items()}
            return offers
        offers = self.consolidation.run(state, self.originals(state, clients), newcomers, compute)
        for k in set(clients) - set(newcomers):
            state[f"replayed/{k}"] = offers[k]["theta"][self.model.dense].clone()
        return offers

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        models = self.originals(state, clients)
        for client, model in models.items():
            if (replayed := state.tensors.get(f"replayed/{client}")) is not None:
                model["theta"][-len(replayed) :] = replayed  # the dense layers, or everything if replayed literally
        return models

    def capacity(self, state: State) -> dict[str, dict[str, int]] | None:
        return self.protection.usage(state)

    # Server jobs, run wherever there is a free core

    def invert(self, message: Message, visit: Visit) -> Message:
        return self.consolidation.invert(message, visit.generator("invert"))

    def listen(self, message: Message, visit: Visit) -> Message:
        return self.consolidation.listen(message)

    def study(self, message: Message, visit: Visit) -> Message:
        return self.consolidation.study(message, visit.generator("study"))

    def cram(self, message: Message, visit: Visit) -> Message:
        return self.consolidation.cram(message, visit.generator("cram"))

    # At the client

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        own = visit.generator("card")
        card = embedding.describe(*data.train, self.model.classes, self.cards, self.task.seed, own)
        return Message(card), memory

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = message["theta"].clone()
        if "logits" not in message:
            facts = self.train(theta, data, visit)
            return Message({"delta": message["theta"] - theta}, facts), memory
        images, labels = data.train
        logits, loss = gating.train(
            self.trainer, theta, message["logits"], message["used"], message.tensors.get("own"), images, labels,
            visit.batches(len(labels)), visit.lr, visit.momentum, masks.scale(visit.round, visit.rounds),
            self.settings.mask_rate, self.settings.sparsity,
        )  # fmt: skip
        moved = {"delta": message["theta"] - theta, "logits": logits}
        return Message(moved, {"samples": len(labels), "loss": loss}), memory

    def gates(self, message: Message) -> Tensor | None:
        if "logits" in message:  # a newcomer that trains for itself, as everyone does when the shared state is frozen
            own = message.tensors.get("own", message["logits"] > 0)
            return masks.union(message["used"], own).float()
        return message["mask"].float() if "mask" in message else None

    def settle(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        report, memory = super().settle(message, data, memory, visit)
        memory["theta"] = message["theta"]
        return report, memory

    def receive(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """The guard: by a forward pass on its own data, the client keeps the better of what it has and the offer."""
        current, offered = (
            self.own_loss(model["theta"], data, memory["statistics"], self.gates(message))
            for model in (memory, message)
        )
        accepted = offered < current
        kept = {"theta": message["theta"]} if accepted else {}
        return Message(facts={"accepted": accepted}), Memory({**memory.tensors, **kept}, memory.facts)

    def own_loss(self, theta: Tensor, data: ClientData, statistics: Tensor, gates: Tensor | None) -> float:
        """What the guard looks at."""
        images, labels = data.held_out
        with torch.inference_mode():
            return float(F.cross_entropy(self.model.forward(theta, images, statistics, gates), labels))

    def score(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """Both rules: with the guard the model the client has kept, without it the one the server would serve."""
        models = {"guarded": memory["theta"], "unguarded": message["theta"]}
        gates = self.gates(message)
        correct = {k: self.correct(theta, data.test, memory["statistics"], gates) for k, theta in models.items()}
        chosen, other = ("guarded", "unguarded") if self.settings.guard else ("unguarded", "guarded")
        facts = {"correct": {"acc": correct[chosen], f"acc_{other}": correct[other]}, "count": len(data.test[1])}
        return Message(facts=facts), memory
