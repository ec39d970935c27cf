"""pFedDSH: a common model that keeps learning as others join, and what each client keeps to itself.

theta_k = a version of the common model, and the client's label prior on the logits. The common model learns from every
batch; each step leaves a version, which existing clients are offered and may decline. The prior stays at the client, so
a newcomer is served well before its first round.

`rate` adds a deviation: what a client remembers of its own visits, the latest most, in serving, never in training. It
earns nothing that shows, so it is off. The paper generates it by a hypernetwork on the server: that is `hyperdsh.py`.
docs/deviations.md says why this form is the default.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pfeddsh.mechanisms import common, guard, robust
from pfeddsh.mechanisms.consolidation import Consolidation
from pfeddsh.mechanisms.replay import INVERSIONS
from pfeddsh.mechanisms.robust import Aggregation
from pfeddsh.messages import BadMessage, Compute, Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.options import Normalised, Options, PriorAware, Statistics
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.parts import Personal, added, part

AT_THE_END = ("share", "ask", "newcomer_share", "replay", "replay_first")  # of steps: what rounds do not depend on


class AroundCommon(Normalised, PriorAware):
    """What forms of pFedDSH around a common model share."""

    statistics: Statistics = "fresh"
    prior: bool = Field(True, description="add each client's log label shares to its logits, at the client")
    personal: Personal = Field(
        "auto", description="the part of the weights that has deviations; auto: all of a small model (docs/models.md)"
    )
    common_rate: float = Field(1.0, ge=0, description="of the common model, which all clients share")
    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="of what a later step changes in the common model, how much existing clients are offered; none: "
        "newcomers per existing client, the whole at most; more where some of them find it better (`ask`)",
    )
    newcomer_share: float = Field(
        0.5, ge=0, le=1, description="the same for the step's newcomers: how far beyond that version theirs is"
    )
    aggregation: Aggregation = Field(
        "mean", description="of the common model; history limits the effect of faulty or malicious clients"
    )
    replay: Literal["off", "common"] = Field(
        "off", description="common: consolidate the old and the new version on images made from both"
    )
    replay_first: bool = Field(False, description="replay after step 1 too, when nobody has joined: a control")


class Settings(AroundCommon):
    """Chosen by everyone's accuracy at the end on seeds that no table reports (results/trials.csv)."""

    statistics: Statistics = "blended"
    rate: float = Field(
        0.0, ge=0, description="of a deviation: the part of a visit's change that a client keeps; 0: it has none"
    )
    fade: float = Field(0.3, ge=0, le=1, description="how much of its deviation a client forgets at each visit")
    ask: bool = Field(
        True,
        description="let some existing clients say, by a forward pass, how much further a version follows a step",
    )


class PFedDSH(Method):
    """State: `common`; its versions `common/t`, and `trained/t` for the newcomers of the last step; `statistics`.

    Upload: `delta`, served minus trained weights. Memory: the model the client accepted, and its `deviation`, if any.
    """

    Settings: ClassVar[type[Options]] = Settings
    zero_shot = True

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, AroundCommon)
        self.settings = options
        self.own = part(task.model, options.personal)
        self.consolidation = Consolidation(task.model, INVERSIONS["ours"], task.seed)

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """How versions are blended and what is replayed acts at the end of steps."""
        return {name: value for name, value in super().first_rounds(options).items() if name not in AT_THE_END}

    # On the server

    def init(self) -> State:
        return State({"common": self.task.theta0.clone()}, {"step": 0, "clients": 0, "newcomers": []})

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        everyone = state.facts["clients"] + len(cards)
        state.facts |= {"step": step, "rounds": rounds, "round": 0, "newcomers": list(cards), "clients": everyone}
        if self.settings.aggregation == "history":
            robust.opened(state)

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return self.models(state, clients, state["common"])

    def models(self, state: State, clients: Sequence[int], version: Tensor) -> dict[int, Message]:
        """What these clients are sent, made from a version of the common model."""
        return dict.fromkeys(clients, Message({"theta": version}))

    def expected(self, download: Message) -> Message:
        return Message({"delta": download["theta"]}, {"samples": 1})

    def alone(self, download: Message, upload: Message) -> Message:
        return Message({**download.tensors, "theta": download["theta"] - upload["delta"]})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        """One step of the common model; it needs no momentum of its own."""
        deltas = torch.stack([upload["delta"] for upload in uploads.values()])
        samples = torch.tensor([float(upload.facts["samples"]) for upload in uploads.values()])
        if self.settings.aggregation == "mean":
            moved = common.mean(self.model, deltas, samples)
        else:
            moved = robust.aggregate(self.model, state, list(uploads), deltas, samples)
        state["common"] = state["common"] - self.settings.common_rate * moved
        state.facts["round"] += 1

    def question(self, state: State, reports: dict[int, Message]) -> Message | None:
        """The last version and what this step made of it: how far along the way between them are clients best off?"""
        step, least = state.facts["step"], self.least(state)
        asks = isinstance(self.settings, Settings) and self.settings.ask
        if step == 1 or not asks or least == 1 or self.settings.share is not None:
            return None
        message = Message({"before": state[f"common/{step - 1}"], "trained": state["common"]}, {"least": least})
        if "statistics" in state:
            message.tensors["statistics"] = state["statistics"]
            seen = self.pool(reports)
            message.tensors["seen"] = state["statistics"] if seen is None else seen
        return message

    def decide(self, state: State, answers: dict[int, Message]) -> dict[str, Any]:
        shares = [float(answer.facts["share"]) for answer in answers.values()]
        state.facts["agreed"] = common.agreed(shares, self.least(state))
        return {"share": state.facts["agreed"], "asked": len(answers)}

    def least(self, state: State) -> float:
        """How far a version follows the step under way whatever anybody says."""
        newcomers = len(state.facts["newcomers"])
        return common.share(newcomers, state.facts["clients"] - newcomers)

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        """The step's version is a blend of old and new; that of newcomers lies nearer to what they trained."""
        step, agreed = state.facts["step"], state.facts.pop("agreed", None)
        share = self.settings.share
        if share is None:
            share = self.least(state) if agreed is None else agreed
        trained = state["common"]
        version = trained.clone() if step == 1 else common.blend(state[f"common/{step - 1}"], trained, share)
        state[f"trained/{step}"], state[f"common/{step}"] = trained, version
        state.tensors.pop(f"trained/{step - 1}", None)  # its clients have their copies
        state["common"] = version.clone()
        if self.pools and (seen := self.pool(reports)) is not None:
            state["statistics"] = common.blend(state["statistics"], seen, share) if "statistics" in state else seen
        if self.settings.replay == "common" and (seen := self.pool(reports)) is not None:
            state[f"replay/statistics/{step}"] = seen
        for client in state.facts["newcomers"]:
            robust.forget(state, client)

    def forget(self, state: State, client: int) -> None:
        super().forget(state, client)
        robust.forget(state, client)
        state.facts["newcomers"] = [k for k in state.facts["newcomers"] if k != client]

    def replay(self, state: State, compute: Compute) -> dict[int, Message]:
        """The version that existing clients are offered is taught by the one before it and by what was trained."""
        step = state.facts["step"]
        if self.settings.replay == "common" and (step > 1 or self.settings.replay_first):
            version = self.consolidation.run(state, compute)
            state[f"common/{step}"], state["common"] = version, version.clone()
            if step == 1:
                state["trained/1"] = version.clone()
        return {}

    def settled(self, state: State) -> list[str]:
        """Versions but the newest."""
        return [f"common/{step}" for step in range(1, state.facts["step"]) if f"common/{step}" in state]

    def offer(self, state: State) -> Message | None:
        nobody = -1  # whoever is no newcomer
        return self.personal(state, [nobody])[nobody]

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        """The newest version; for newcomers of the last step it leans to what their step trained."""
        step, newcomers = state.facts["step"], set(state.facts["newcomers"])
        newest = step if f"common/{step}" in state else step - 1
        theirs = state["common"]
        if f"trained/{step}" in state:
            theirs = common.blend(state[f"common/{step}"], state[f"trained/{step}"], self.settings.newcomer_share)
        fresh = self.models(state, [k for k in clients if k in newcomers], theirs)
        others = [k for k in clients if k not in newcomers]
        served = fresh | (self.models(state, others, state[f"common/{newest}"]) if others else {})
        for message in served.values():
            message.tensors |= self.common(state)
            message.facts["version"] = newest
        return {k: served[k] for k in clients}

    # At the client

    def weights(self, message: Message, memory: Memory) -> Tensor:
        deviation = memory.tensors.get("deviation")
        return message["theta"] if deviation is None else added(message["theta"], self.own, deviation)

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = message["theta"].clone()
        facts = self.train(theta, data, visit)
        delta = message["theta"] - theta
        return Message({"delta": delta}, facts), self.deviated(memory, delta)

    def judge(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """How far between two versions the client is best off, by the same evidence as an offer."""
        least = message.facts.get("least")
        if not (isinstance(least, float) and 0 <= least <= 1):  # a site does not compute with whatever it is sent
            raise BadMessage("the least share is not a number from 0 to 1")
        shares, models = common.candidates(least), []
        for share in shares:
            between = {"theta": common.blend(message["before"], message["trained"], share)}
            if "statistics" in message:
                between["statistics"] = common.blend(message["statistics"], message["seen"], share)
            models.append(self.followed(Message(between), data, memory, anew=True))
        predict = [partial(self.logits, model, message=message) for model in models]
        (images, labels), said = guard.judged_by(predict[0], data.train, data.held_out, visit.evidence)
        losses = [float(F.cross_entropy(one, labels)) for one in (said, *(other(images) for other in predict[1:]))]
        return Message(facts={"share": shares[losses.index(min(losses))]}), memory

    def deviated(self, memory: Memory, delta: Tensor) -> Memory:
        """What the client keeps of a visit, whatever becomes of its upload."""
        assert isinstance(self.settings, Settings)
        if not self.settings.rate:
            return memory
        delta = delta[self.own]
        before = memory.tensors.get("deviation", torch.zeros_like(delta))
        deviation = (1 - self.settings.fade) * before - self.settings.rate * delta
        return Memory({**memory.tensors, "deviation": deviation}, memory.facts)
