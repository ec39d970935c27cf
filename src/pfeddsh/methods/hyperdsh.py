"""pFedDSH as the paper has it: the deviation W2 h_k comes from a hypernetwork on the server, and must be protected.

theta_k = a version of the common model + b2 + W2 h_k. Around a common model that learns, b2 stays at zero; with
`common_rate = 0` the hypernetwork carries everything, as in the paper. The mechanisms are in `embedding`, `hypernet`,
`protection` and `replay`; this file composes them. Where it departs from the paper, docs/deviations.md says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from pfeddsh.errors import UserError, unknown
from pfeddsh.mechanisms import embedding, gating, hypernet, masks
from pfeddsh.mechanisms.consolidation import Consolidation
from pfeddsh.mechanisms.privacy import from_system
from pfeddsh.mechanisms.protection import PROTECTIONS
from pfeddsh.mechanisms.replay import INVERSIONS, Inversion
from pfeddsh.messages import Compute, Memory, Message, State
from pfeddsh.methods import pfeddsh
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.parts import added
from pfeddsh.rng import torch_stream


class Settings(pfeddsh.AroundCommon):
    """The registry has the paper's configuration and the ablations as presets."""

    protection: str = Field("projection", description=f"of existing clients: {', '.join(PROTECTIONS)}")
    replay: Literal["off", "common", "paper"] = "off"  # type: ignore[assignment]  # one kind more
    inversion: Literal["ours", "appendix", "sensitivity"] = "ours"
    images: int | None = Field(None, ge=1, description="synthetic images per step, if not the preset's")
    iterations: int | None = Field(None, ge=0, description="of the inversion, if not the preset's")
    feature: float | None = Field(None, ge=0, description="weight of the statistics, if not the preset's")
    variation: float | None = Field(None, ge=0, description="weight of the total variation, if not the preset's")
    norm: float | None = Field(None, ge=0, description="weight of the pixel norm, if not the preset's")
    hidden: int = Field(
        512, ge=1, description="hidden units; with the projection, clients in a block of the hypernetwork"
    )
    freeze_trunk: bool = Field(True, description="W1 and b1 train in step 1 only; without protection they always do")
    rate: float = Field(0.2, gt=0, description="of W2: how far a sampled client moves towards what it trained")
    bias_rate: float = Field(0.0, ge=0, description="of b2, which all clients share")
    trunk_rate: float = Field(1.0, ge=0, description="of W1 and b1")
    embedding_rate: float = Field(1.0, ge=0)
    embedding: Literal["both", "image", "random"] = "both"
    histogram: bool = Field(True, description="clients send their label histogram, which the embedding is made of")
    rounding: float = Field(0.0, ge=0, description="step to which a client rounds its histogram")
    noise: float = Field(0.0, ge=0, description="scale of the Laplace noise a client adds to its histogram")
    mask_rate: float = Field(20.0, gt=0, description="of the mask logits (gate)")
    sparsity: float = Field(0.1, ge=0, description="weight of the mean gate of free channels (gate)")

    @field_validator("protection")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PROTECTIONS:
            raise ValueError(str(unknown("protection", name, PROTECTIONS)))
        return name

    def how_to_invert(self) -> Inversion:
        own = {name: getattr(self, name) for name in ("images", "iterations", "feature", "variation", "norm")}
        return replace(INVERSIONS[self.inversion], **{name: value for name, value in own.items() if value is not None})


AT_THE_END = ("inversion", "images", "iterations", "feature", "variation", "norm", "freeze_trunk")
OF_PROTECTIONS = ("protection", "mask_rate", "sparsity")


class HyperDSH(pfeddsh.PFedDSH):
    """State: that of pFedDSH, the hypernetwork, what the protection keeps, and for each client k `e/k`, `histogram/k`.

    Histograms stay until the step ends; with the paper's replay for good, and `statistics/k` with them.
    Upload: `delta`, served minus trained weights; with the gate also `logits`. The client has no deviation of its own.
    """

    Settings: ClassVar[type[Options]] = Settings
    client_parts = ("histogram", "e", "statistics", "replayed", "kept", "moved")

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.hyper = options
        self.cards = embedding.CardOptions(options.embedding, options.histogram, options.rounding, options.noise)
        weights = len(task.theta0[self.own])
        hypernet.affordable(weights, options.hidden)
        kind = PROTECTIONS[options.protection]
        if kind.masks_all and weights < task.model.size:
            why = "masks act on the whole model; set options.personal = all"
            raise UserError(f"options.protection = {options.protection}: {why}")
        self.protection = kind(task.model, task.seed)
        self.consolidation = Consolidation(task.model, options.how_to_invert(), task.seed)

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Replay and what inverts images act at the end of steps; most protections only differ in later steps."""
        later = AT_THE_END + (() if PROTECTIONS[options["protection"]].acts_first else OF_PROTECTIONS)
        return {name: value for name, value in super().first_rounds(options).items() if name not in later}

    # On the server

    def init(self) -> State:
        state = super().init()
        nothing = torch.zeros_like(self.task.theta0[self.own])
        net = hypernet.create(nothing, torch_stream(self.task.seed, "hypernetwork"), self.hyper.hidden)
        return State({**state.tensors, **net}, {**state.facts, "joined": {}})

    def expected_card(self) -> Message:
        nobody = torch.zeros(1, *self.model.shape), torch.zeros(1, dtype=torch.int64)
        return Message(embedding.describe(*nobody, self.model.classes, self.cards, 0, torch.Generator(), from_system))

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        super().open_step(state, step, rounds, cards)
        if step == 1:
            fitted = embedding.fit([card.tensors for card in cards.values()], self.cards, self.task.seed)
            state.tensors |= {f"whitening/{name}": tensor for name, tensor in fitted.items()}
        whitening = state.under("whitening")
        for client, card in cards.items():
            if "histogram" in card:
                state[f"histogram/{client}"] = card["histogram"].clamp_min(0)
            state[f"e/{client}"] = embedding.embed(whitening, card.tensors)
            state.facts["joined"][str(client)] = step
        self.protection.open(state, self.keys(state, list(cards)))

    def keys(self, state: State, clients: Sequence[int]) -> Tensor:
        keys = [hypernet.key(state.tensors, state[f"e/{k}"]) for k in clients]
        return torch.stack(keys) if keys else torch.zeros(0, self.hyper.hidden)

    def settled(self, state: State) -> list[str]:
        return super().settled(state) + self.protection.settled(state)

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        made = self.protection.generate(state, clients, self.keys(state, clients))
        thetas = added(state["common"], self.own, made)
        masking = {name: state[name] for name in ("logits", "used", "own") if name in state}
        return {k: Message({"theta": theta, **masking}) for k, theta in zip(clients, thetas, strict=True)}

    def models(self, state: State, clients: Sequence[int], version: Tensor) -> dict[int, Message]:
        """A version with these clients' deviations as of their own step, masked where the protection masks."""
        thetas = added(version, self.own, self.protection.originals(state, clients, self.keys(state, clients)))
        models = {k: Message({"theta": theta}) for k, theta in zip(clients, thetas, strict=True)}
        for client, model in models.items():
            if (mask := self.protection.mask(state, client)) is not None:
                model["theta"].mul_(masks.reached(self.model, mask))
                model["mask"] = mask
        return models

    def expected(self, download: Message) -> Message:
        expected = super().expected(download)
        if "logits" in download:
            expected["logits"] = download["logits"]
        return expected

    def alone(self, download: Message, upload: Message) -> Message:
        moved = super().alone(download, upload)
        if "logits" in upload:
            moved["logits"] = upload["logits"]
        return moved

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        """One plain SGD step on the hypernetwork; momentum, decay or Adam would move what must not move."""
        super().aggregate(state, uploads)
        clients = list(uploads)
        deltas = torch.stack([upload["delta"][self.own] for upload in uploads.values()])
        embeddings = torch.stack([state[f"e/{k}"] for k in clients])
        keys, rates = self.keys(state, clients), (self.hyper.rate, self.hyper.bias_rate)
        at_keys = self.protection.write(state, clients, deltas, keys, *rates)
        gradient = hypernet.trunk_gradient(state.tensors, embeddings, at_keys)
        if state.facts["step"] == 1 or not self.frozen_trunk:
            state["W1"].sub_(gradient["W1"], alpha=self.hyper.trunk_rate)
            state["b1"].sub_(gradient["b1"], alpha=self.hyper.trunk_rate)
        for client, slope in zip(clients, gradient["embeddings"], strict=True):
            state[f"e/{client}"].sub_(slope, alpha=self.hyper.embedding_rate)
        if "logits" in state:
            self.protection.learn_masks(state, torch.stack([upload["logits"] for upload in uploads.values()]))

    @property
    def frozen_trunk(self) -> bool:
        return self.hyper.freeze_trunk and self.protection.protects

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        super().close_step(state, reports)
        for client, report in reports.items():
            self.keep_report(state, client, report)
        newcomers = state.facts["newcomers"]
        if self.hyper.replay != "paper":  # which draws labels of its images from them
            for client in newcomers:
                state.tensors.pop(f"histogram/{client}", None)
        self.protection.close(state, newcomers, self.keys(state, newcomers))

    def keep_report(self, state: State, client: int, report: Message) -> None:
        if self.hyper.replay == "paper":
            state[f"statistics/{client}"] = report["statistics"]  # without them nothing can be replayed for it

    def forget(self, state: State, client: int) -> None:
        """Its key direction becomes free again; those of all others whose step is over stay taken."""
        super().forget(state, client)
        state.facts["joined"].pop(str(client), None)
        closed = [int(k) for k, step in state.facts["joined"].items() if f"common/{step}" in state]
        self.protection.release(state, client, closed, self.keys(state, closed))

    def replay(self, state: State, compute: Compute) -> dict[int, Message]:
        """With the paper's replay every existing client is fine-tuned, from what it was served last."""
        if self.hyper.replay != "paper":
            return super().replay(state, compute)
        if state.facts["step"] == 1:
            return {}
        clients = [int(k) for k in state.facts["joined"] if f"statistics/{k}" in state]
        newcomers = [k for k in state.facts["newcomers"] if k in clients]
        if not newcomers:
            return {}
        offers = self.consolidation.run_literally(state, self.personal(state, clients), newcomers, compute)
        state.tensors |= {f"replayed/{k}": offer["theta"].clone() for k, offer in offers.items()}
        return offers

    def offer(self, state: State) -> Message | None:
        """A version comes with a deviation that the server makes for each."""
        return None

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        models = super().personal(state, clients)
        for client, model in models.items():
            if (replayed := state.tensors.get(f"replayed/{client}")) is not None:
                model["theta"] = replayed.clone()
        return models

    def capacity(self, state: State) -> dict[str, dict[str, int]] | None:
        return self.protection.usage(state)

    # At the client

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        own = visit.generator("card")
        noise = self.noise(own)
        card = embedding.describe(*data.train, self.model.classes, self.cards, self.task.seed, own, noise)
        return Message(card), memory

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        if "logits" not in message:
            return super().local(message, data, memory, visit)
        images, labels = data.train
        theta = message["theta"].clone()
        logits, loss = gating.train(
            self.trainer, theta, message["logits"], message["used"], message.tensors.get("own"), images, labels,
            visit.batches(len(labels)), visit.lr, visit.momentum, masks.scale(visit.round, visit.rounds),
            self.hyper.mask_rate, self.hyper.sparsity, self.prior(data), free=self.hyper.common_rate > 0,
        )  # fmt: skip
        moved = {"delta": message["theta"] - theta, "logits": logits}
        return Message(moved, {"samples": len(labels), "loss": loss}), memory

    def deviated(self, memory: Memory, delta: Tensor) -> Memory:
        """The server holds the deviation."""
        return memory

    def gates(self, message: Message) -> Tensor | None:
        if "logits" in message:  # a newcomer that trains for itself, as everyone does when the shared state is frozen
            own = message.tensors.get("own", message["logits"] > 0)
            return masks.union(message["used"], own).float()
        return message["mask"].float() if "mask" in message else None
