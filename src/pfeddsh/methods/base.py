"""What a method is: a few functions on the server, a few at the client, and nothing about how they are run.

Server functions change the state in place; client functions are pure (message, data, memory, visit) -> (reply, memory).
To add a method, write one file with a subclass; the file's name is its name. `fedper.py` is a short example.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pfeddsh.mechanisms import guard, robust
from pfeddsh.mechanisms.guard import Served
from pfeddsh.mechanisms.prior import own_prior
from pfeddsh.mechanisms.privacy import Uniform, from_system, repeatable
from pfeddsh.messages import BadMessage, Compute, Memory, Message, State, check, withheld
from pfeddsh.methods.options import Normalised, Options, PriorAware
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models import base as models
from pfeddsh.models.training import sgd_epoch


class Method:
    """A personalised federated method. Subclasses override what differs from plain weight sharing."""

    Settings: ClassVar[type[Options]] = Options
    later: ClassVar[Literal["newcomers", "everyone"]] = "newcomers"  # who trains after step 1, unless a run says so
    existing: ClassVar[guard.Existing] = "follow"  # what clients do whose step is over, unless a run says so
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings that have a name of their own, NAME-KEY
    once: ClassVar[frozenset[str]] = frozenset()  # tensors that travel once per client or step, not in every round
    pools_data: ClassVar[bool] = False  # an oracle: one client a round trains, on a sample of all participants' images
    whole_only: ClassVar[bool] = False  # trains in a way of its own, not with `train`, which can do the head alone
    zero_shot: ClassVar[bool] = False  # newcomers can be served before any round: that is evaluated too
    sends_changes: ClassVar[bool] = True  # uploads are `delta`, or what was downloaded and then changed: see `privacy`
    judges: ClassVar[int] = 16  # existing clients that `question` goes to
    client_parts: ClassVar[tuple[str, ...]] = ()  # of the state: tensors `name/k` that are of client k alone
    control = False  # its clients train alone: their accuracies are the local-only controls
    quorum = 1  # reports without which none are pooled; set to more by who asks strangers, and they are by the median
    simulated = False  # set by who simulates clients: then there is nobody to protect, and noise must repeat

    def __init__(self, task: Task, options: Options) -> None:
        self.task = task
        self.model = task.model
        self.options = options
        self.trainer = task.model.trainer()
        self.pools = isinstance(options, Normalised) and options.statistics in ("pooled", "blended")
        self.fresh = isinstance(options, Normalised) and options.statistics in ("fresh", "blended")
        self.uses_prior = isinstance(options, PriorAware) and options.prior

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that the rounds of step 1 depend on; runs that agree in these can share those rounds.

        Statistics are those of served models: in rounds every batch normalises itself.
        """
        return {name: value for name, value in options.items() if name != "statistics"}

    @classmethod
    def unfit_live(cls, options: Mapping[str, Any]) -> str:
        """Why a live federation cannot run this: there a client must be able to use its network without us."""
        return ""

    # On the server

    def init(self) -> State:
        """State before anyone has joined."""
        raise NotImplementedError

    def greeting(self, state: State) -> Message:
        """What newcomers are sent before they tell of themselves (`card`)."""
        return Message()

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        """A batch of clients joins for a step of so many rounds; `cards` are what they tell of themselves."""

    def trouble(self, state: State) -> str | None:
        """Why the method cannot work as meant in the step just opened, in words for people; None if it can."""
        return None

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        """What sampled clients get this round."""
        raise NotImplementedError

    def expected(self, download: Message) -> Message:
        """Names, shapes and types an upload must have; by default those of the download plus a sample count."""
        return Message(download.tensors, {"samples": 1})

    def check_upload(self, download: Message, upload: Message) -> None:
        """Raise `BadMessage` unless the upload may touch the state; for uploads whose length is not known before."""
        check(upload, self.expected(download))

    def expected_card(self) -> Message:
        """Names, shapes and types a newcomer's card must have."""
        return Message()

    def check_card(self, card: Message) -> None:
        """Raise `BadMessage` unless the card may touch the state, and name what it lacks because it is withheld."""
        like = self.expected_card()
        try:
            check(card, like)
        except BadMessage as error:
            kept = sorted(withheld(card) & like.tensors.keys())
            raise BadMessage(f"{error}; its policy withholds {', '.join(kept)}" if kept else str(error)) from error

    def expected_report(self) -> Message:
        """Names, shapes and types of a participant's reply to `settle`."""
        return Message({"statistics": torch.zeros(models.statistics_size(self.model))})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        """End of a round; uploads are checked and ordered by client. They stay as they are: they are being recorded."""
        raise NotImplementedError

    def question(self, state: State, reports: dict[int, Message]) -> Message | None:
        """What a few existing clients are asked before a step is closed (`judge`); most methods ask nothing."""
        return None

    def decide(self, state: State, answers: dict[int, Message]) -> dict[str, Any]:
        """What follows from their answers, for `close_step`; and the same in words for people."""
        return {}

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        """The step's rounds are over; `reports` are the participants' replies to `settle`."""
        if self.pools and (seen := self.pool(reports)) is not None:
            state["statistics"] = seen

    def pool(self, reports: dict[int, Message]) -> Tensor | None:
        """The statistics of all these clients together; None if too few have told theirs."""
        told = [report["statistics"] for report in reports.values()]
        if len(told) < self.quorum:
            return None
        return pooled(self.model, told) if self.quorum == 1 else robust.pooled(self.model, told)

    def keep_report(self, state: State, client: int, report: Message) -> None:
        """Remember what a client told when it settled. One that was away when its step ended may settle later."""

    def forget(self, state: State, client: int) -> None:
        """A client has left: nothing stays that is its alone. What all have learnt from it cannot be taken back."""
        for name in self.client_parts:
            state.tensors.pop(f"{name}/{client}", None)

    def replay(self, state: State, compute: Compute) -> dict[int, Message]:
        """Improve models without calling any client; what comes back is offered to these clients (`receive`)."""
        return {}

    def settled(self, state: State) -> list[str]:
        """Tensors of the state that will never change again: snapshots need not write them again."""
        return []

    def offer(self, state: State) -> Message | None:
        """What all existing clients alike are offered after the step just closed; None: each a model of its own."""
        return None

    def capacity(self, state: State) -> dict[str, dict[str, int]] | None:
        """Channels in use per layer after the step just closed, for masked methods."""
        return None

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        """The models these clients are served now."""
        served = self.download(state, clients)
        return {k: Message({**message.tensors, **self.common(state)}, message.facts) for k, message in served.items()}

    def common(self, state: State) -> dict[str, Tensor]:
        """The pooled statistics, if the method uses them and a step has ended; they are part of what is served."""
        return {"statistics": state["statistics"]} if "statistics" in state else {}

    def alone(self, download: Message, upload: Message) -> Message:
        """What a client would download next if nobody else took part: its own upload in place of what it was sent."""
        own = {name: tensor for name, tensor in upload.tensors.items() if name in download}
        return Message({**download.tensors, **own}, download.facts)

    # At the client

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """What a joining client tells of itself. Nothing, unless the method needs it."""
        return Message(), memory

    def noise(self, generator: torch.Generator) -> Uniform:
        """Where noise that protects a client comes from: never from a seed, except in simulation."""
        return repeatable(generator) if self.simulated else from_system

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """One visit: train on the client's data, reply with an upload. `memory` never leaves the client."""
        raise NotImplementedError

    def train(self, theta: Tensor, data: ClientData, visit: Visit) -> dict[str, Any]:
        """Train a flat vector in place for the epochs of one visit; the facts every upload carries."""
        images, labels = data.train
        batches = visit.batches(len(labels))
        loss = sgd_epoch(
            self.trainer, theta, images, labels, batches=batches, lr=visit.lr, momentum=visit.momentum,
            part=self.model.head if visit.head_only else None, prior=self.prior(data),
        )  # fmt: skip
        return {"samples": len(labels), "loss": loss}

    def prior(self, data: ClientData) -> Tensor | None:
        """What a client adds to its logits, if the method is told to use that."""
        return own_prior(data.train[1], self.model.classes) if self.uses_prior else None

    def settle(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """The client's own step ends: one forward pass of its served model sets its normalisation statistics."""
        theta = self.weights(message, memory)
        statistics = self.model.calibrate(theta, data.train[0], self.gates(message))
        return Message({"statistics": statistics}), Memory({**memory.tensors, "statistics": statistics}, memory.facts)

    def weights(self, message: Message, memory: Memory) -> Tensor:
        """The full flat vector a client would use, from what it is served and what it keeps."""
        return message["theta"]

    def gates(self, message: Message) -> Tensor | None:
        """Channel gates of the served model, for masked methods."""
        return None

    def followed(self, message: Message, data: ClientData, memory: Memory, anew: bool = False) -> Served:
        """What the client uses if it goes along with the server; `anew`: with statistics of its own, taken now."""
        theta, gates = self.weights(message, memory), self.gates(message)
        pooled = message.tensors.get("statistics")
        if self.fresh or (anew and pooled is None):
            statistics: Tensor | None = self.calibrated(theta, message, data, gates)
        else:
            statistics = memory.tensors.get("statistics") if pooled is None else pooled
        return Served(theta, statistics, gates, self.prior(data))

    def calibrated(self, theta: Tensor, message: Message, data: ClientData, gates: Tensor | None = None) -> Tensor:
        """A client's own statistics of these weights, and their mean with the pooled ones if such are served."""
        own = self.model.calibrate(theta, data.train[0], gates)
        return (own + message["statistics"]) / 2 if "statistics" in message else own

    def current(self, message: Message, data: ClientData, memory: Memory) -> Served:
        """What the client uses now: the model it has kept, or what it is served."""
        return guard.kept(memory, self.prior(data)) or self.followed(message, data, memory)

    def folded(self, model: Served) -> Tensor:
        """Weights that need no prior beside them: it is added to the output bias."""
        theta = model.theta.clone()
        if model.prior is not None:
            theta[self.model.bias] += model.prior
        return theta

    def judge(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """An existing client's answer to `question`: one number from 0 to 1, `share`. It trains nothing."""
        raise NotImplementedError

    def keep(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """The client's own step is closed: it keeps the model it is served. Asked unless existing clients follow."""
        return Message(), self._keeping(self.followed(message, data, memory), message, memory)

    def _keeping(self, model: Served, message: Message, memory: Memory) -> Memory:
        """The client keeps this model, and remembers which pooled statistics its own are mixed with."""
        memory = guard.keep(model, memory)
        return Memory(memory.tensors, memory.facts | {"kept_with": _pooled(message)}) if self.fresh else memory

    def _still_served(self, kept: Served, message: Message, memory: Memory) -> bool:
        """Whether a client that followed would have what it has kept: then its statistics need not be taken anew."""
        known = self.fresh and memory.facts.get("kept_with") == _pooled(message) and self.gates(message) is None
        return known and kept.gates is None and torch.equal(kept.theta, self.weights(message, memory))

    def receive(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """The client is offered a model, keeps the better of both by its own evidence, and says which that is."""
        current, offered = guard.kept(memory, self.prior(data)), self.followed(message, data, memory, anew=True)
        accepted = current is None or guard.prefers(
            lambda images: self.logits(current, images, message),
            lambda images: self.logits(offered, images, message),
            data.train,
            data.held_out,
            visit.evidence,
        )
        return Message(facts={"accepted": accepted}), self._keeping(offered, message, memory) if accepted else memory

    def score(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """How many of its own test images the client gets right now, and would if it followed what it is served."""
        images, labels = data.test
        kept = guard.kept(memory, self.prior(data))
        if kept is not None and self._still_served(kept, message, memory):
            correct = dict.fromkeys(("acc", "acc_unguarded"), guard.right(self.logits(kept, images, message), labels))
        else:
            models = {"acc": self.followed(message, data, memory)}
            if kept is not None:
                models = {"acc": kept, "acc_unguarded": models["acc"]}
            correct = {rule: guard.right(self.logits(model, images, message), labels) for rule, model in models.items()}
        return Message(facts={"correct": correct, "count": len(labels)}), memory

    @torch.inference_mode()
    def logits(self, model: Served, images: Tensor, message: Message) -> Tensor:
        """What a client's model says of images; `message` is for methods that need more than a model."""
        logits = self.model.forward(model.theta, images, model.statistics, model.gates)
        return logits if model.prior is None else logits + model.prior

    def correct(
        self, theta: Tensor, examples: tuple[Tensor, Tensor], statistics: Tensor | None, gates: Tensor | None = None
    ) -> int:
        return guard.right(self.logits(Served(theta, statistics, gates), examples[0], Message()), examples[1])


def _pooled(message: Message) -> str:
    """The pooled statistics in a message, as a word; none, if there are none."""
    found = message.tensors.get("statistics")
    return "" if found is None else hashlib.sha256(found.cpu().numpy().tobytes()).hexdigest()


def pooled(network: models.Model, statistics: Sequence[Tensor]) -> Tensor:
    """Statistics of all clients' features together: plain mean of the means, law of total variance."""
    together = [statistics[0][:0]]
    for mean, variance in models.split_statistics(network, torch.stack(list(statistics))):
        spread = (variance + mean.square()).mean(0) - mean.mean(0).square()
        together += [mean.mean(0), spread.clamp_min(0)]  # of large means, rounding can leave less than nothing
    return torch.cat(together)
