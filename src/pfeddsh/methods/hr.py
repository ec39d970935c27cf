"""HR, hybrid replay (Nori et al. 2025): an autoencoder, classes as fixed points of its latent space, replayed codes.

An image is of the class whose centroid its code is nearest to. Here, as in the paper's comparison, clients upload codes
and the server replays them after every round: what newcomers do not hold, they do not make the encoder forget. One
model for everyone, so statistics are shared and pooled as FedAvg's; with a local head they are the client's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pfeddsh.mechanisms.guard import Served
from pfeddsh.messages import BadMessage, Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.fedavg import weighted_mean
from pfeddsh.methods.lennard_jones import place
from pfeddsh.methods.options import Normalised, Options, Statistics
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.autoencoder import DECODER, LATENT, classify, decode, descend, encode, encoder_of
from pfeddsh.rng import torch_stream


class Settings(Normalised):
    """The paper leaves most values open; these are of the public re-implementation unless said otherwise."""

    statistics: Statistics = "pooled"
    attraction: float = Field(10.0, ge=0, description="weight of the distance between a code and its centroid")
    # There 1, and the scale is the count of pixels: these drown the classes, 21.9 % in step 1 instead of 42 %.
    reconstruction: float = Field(0.01, ge=0, description="weight of the squared error, summed over pixels")
    scale: float = Field(100.0, gt=0, description="what the loss of an image is divided by")
    sigma: float = Field(5.0, gt=0, description="of the Lennard-Jones energy: neighbours settle 2^(1/6) sigma apart")
    clip: float = Field(10.0, gt=0, description="largest norm of a gradient")
    codes: int = Field(200, ge=1, description="codes in an upload")  # 68 KiB with labels; the paper's table says 72
    pool: int = Field(200, ge=1, description="codes kept per class and step")  # the paper's memory per class
    replay_steps: int = Field(5, ge=0, description="SGD steps of the server after a round")  # ours: 'a few'
    replay_batch: int = Field(32, ge=2, description="codes in each of these steps")  # that of clients
    replay_rate: float = Field(0.01, ge=0, description="of these steps")  # that of clients
    local_head: bool = Field(False, description="a last layer of its own for every client instead of centroids")


class HR(Method):
    """State: `encoder`, `decoder`, `centroids`, from step 2 on `before` (the encoder as it was), `codes/t`, `labels/t`.

    Download: encoder, decoder, centroids. Upload: what was trained of them, `codes`, `labels`. After step 1 the decoder
    is frozen, or old codes would lose their meaning.
    """

    Settings = Settings
    sends_changes = False  # codes and labels of images
    whole_only = True

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        self.network = encoder_of(task.model)

    @classmethod
    def unfit_live(cls, options: Mapping[str, Any]) -> str:
        return "" if options["local_head"] else "its classes are centroids, which no network holds: use hr-local-head"

    # On the server

    def init(self) -> State:
        decoder = DECODER.init(torch_stream(self.task.seed, "decoder"))
        return State({"encoder": self.task.theta0[self.model.body].clone(), "decoder": decoder}, {"step": 0})

    def expected_card(self) -> Message:
        return Message({"sums": torch.zeros(self.model.classes, LATENT), "counts": torch.zeros(self.model.classes)})

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        """All classes are placed in step 1 and never move; one that nobody holds yet starts somewhere among them."""
        state.facts |= {"step": step, "round": 0}
        if step > 1:
            state["before"] = state["encoder"].clone()
            return
        counts = torch.stack([card["counts"] for card in cards.values()]).sum(0)[:, None]
        means = torch.stack([card["sums"] for card in cards.values()]).sum(0) / counts.clamp_min(1)
        noise = torch.randn(means.shape, generator=torch_stream(self.task.seed, "centroids"))
        noise *= (means.std() + 1e-3) * torch.where(counts > 0, 0.01, 1.0)  # a little for all: no two may coincide
        state["centroids"] = place(means + noise, self.settings.sigma)

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        parts = {name: state[name] for name in ("encoder", "decoder", "centroids")}
        return dict.fromkeys(clients, Message(parts, {"frozen": state.facts["step"] > 1}))

    def expected(self, download: Message) -> Message:
        count = self.settings.codes
        like = download["centroids"]
        told = {"codes": like.new_zeros(count, LATENT), "labels": like.new_zeros(count, dtype=torch.int64)}
        trained = ("encoder",) if download.facts["frozen"] else ("encoder", "decoder")
        return Message(told | {name: download[name] for name in trained}, {"samples": 1})

    def check_upload(self, download: Message, upload: Message) -> None:
        super().check_upload(download, upload)
        if not bool(((upload["labels"] >= 0) & (upload["labels"] < self.model.classes)).all()):
            raise BadMessage("labels has values that are no class")

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        for name in ("encoder", "decoder"):
            if all(name in upload for upload in uploads.values()):
                state[name] = weighted_mean(uploads, name)
        self.keep_codes(state, uploads)
        self.rehearse(state)
        state.facts["round"] += 1

    def keep_codes(self, state: State, uploads: dict[int, Message]) -> None:
        """The newest codes of each class in this step."""
        step, told = state.facts["step"], [upload.tensors for upload in uploads.values()]
        if f"codes/{step}" in state:
            told.append({name: state[f"{name}/{step}"] for name in ("codes", "labels")})
        codes, labels = (torch.cat([part[name] for part in told]) for name in ("codes", "labels"))
        newest = [(labels == label).nonzero()[: self.settings.pool, 0] for label in range(self.model.classes)]
        index = torch.cat(newest).sort().values
        state[f"codes/{step}"], state[f"labels/{step}"] = codes[index], labels[index]

    def rehearse(self, state: State) -> None:
        """Train the encoder on decoded codes of all steps so far, and towards what it made of them before this step."""
        steps = [step for step in range(1, state.facts["step"] + 1) if f"codes/{step}" in state]
        codes, labels = (torch.cat([state[f"{name}/{step}"] for step in steps]) for name in ("codes", "labels"))
        stream = torch_stream(self.task.seed, state.facts["step"], state.facts["round"], "rehearsal")
        drawn = torch.randint(len(codes), (self.settings.replay_steps, self.settings.replay_batch), generator=stream)

        def loss(p: dict[str, Tensor], batch: Tensor) -> Tensor:
            points = state["centroids"][labels[batch]]
            images = decode(state["decoder"], codes[batch])
            return self.loss(p["encoder"], state["decoder"], images, points, state.tensors.get("before"))[0]

        descend({"encoder": state["encoder"]}, loss, drawn, self.settings.replay_rate, 0.9, self.settings.clip)

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        parts = {name: state[name] for name in ("encoder", "centroids")}
        return dict.fromkeys(clients, Message(parts | self.common(state)))

    # At the client

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """Where the common initial encoder sees each class: the sum of its codes, and their number."""
        images, labels = data.train
        with torch.no_grad():
            codes = encode(self.network, self.task.theta0[self.model.body], images)
        members = F.one_hot(labels, self.model.classes).float()
        return Message({"sums": members.t() @ codes, "counts": members.sum(0)}), memory

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        images, labels = data.train
        trained = {name: message[name].clone() for name in self.expected(message).tensors if name in message}
        own = {"head": self.weights(message, memory)[self.model.head].clone()} if self.settings.local_head else {}

        def loss(p: dict[str, Tensor], batch: Tensor) -> Tensor:
            points = message["centroids"][labels[batch]]
            total, z = self.loss(p["encoder"], p.get("decoder", message["decoder"]), images[batch], points)
            if "head" in p:
                total = total + F.cross_entropy(classify(self.network, p["head"], z), labels[batch])
            return total

        mean = descend(trained | own, loss, visit.batches(len(labels)), visit.lr, visit.momentum, self.settings.clip)
        some = torch.randperm(len(labels), generator=visit.generator("codes"))
        some = some[torch.arange(self.settings.codes, device=some.device) % len(labels)].to(labels.device)
        with torch.no_grad():
            codes = encode(self.network, trained["encoder"], images[some])
        upload = Message({**trained, "codes": codes, "labels": labels[some]}, {"samples": len(labels), "loss": mean})
        return upload, Memory({**memory.tensors, **own}, memory.facts)

    def weights(self, message: Message, memory: Memory) -> Tensor:
        return torch.cat([message["encoder"], memory.tensors.get("head", self.task.theta0[self.model.head])])

    def logits(self, model: Served, images: Tensor, message: Message) -> Tensor:
        """Without local heads, the nearer a centroid, the likelier its class."""
        if self.settings.local_head:
            return super().logits(model, images, message)
        with torch.inference_mode():
            codes = encode(self.network, model.theta[self.model.body], images, model.statistics)
            return -torch.cdist(codes, message["centroids"])

    # On either side

    def loss(
        self, encoder: Tensor, decoder: Tensor, images: Tensor, points: Tensor, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reconstruction, prior and attraction to the centroids, and what `before` says of the same images; codes."""
        z = encode(self.network, encoder, images)
        seen = decode(decoder, z)
        total = self.settings.reconstruction * (seen - images).square().sum() + 0.5 * z.square().sum()
        total = total + self.settings.attraction * (z - points).square().sum()
        if before is not None:
            with torch.no_grad():
                then = encode(self.network, before, images)
                seen_then = decode(decoder, then)
            total = total + (z - then).square().sum()
            total = total + self.settings.reconstruction * (seen - seen_then).square().sum()
        return total / (len(images) * self.settings.scale), z
