"""pFedHN (Shamsian et al. 2021): a hypernetwork on the server turns an embedding of each client into its weights.

Clients train what they are served and send back the difference, which the server pulls through the hypernetwork.
Existing clients are served by the current hypernetwork and their own frozen embedding, with statistics of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh.mechanisms import hypernet
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.options import Normalised, Options
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.rng import torch_stream


class HypernetSettings(Options):
    """What all rivals with a hypernetwork share."""

    hidden: int = Field(512, ge=1, description="hidden units")  # the paper's, for all methods with a hypernetwork
    # The original's rate of 0.01 belongs to its trunk. Keys have length 1 here: rho/2 for W2 and b2 alike means this.
    rho: float = Field(1.0, gt=0, le=2, description="share of its own change that a sampled client is served next")
    trunk_rate: float = Field(1.0, ge=0, description="of W1 and b1")  # pFedDSH's


class Settings(HypernetSettings, Normalised):
    """The original's SGD without momentum and decay, which would move the embeddings of idle clients."""

    # At pFedDSH's rate of 1 random embeddings stay where they are (0.5 % in a step); theirs do not start from data.
    embedding_rate: float = Field(10.0, ge=0, description="of an embedding, while the whole hypernetwork trains")
    # `all` lets newcomers contribute and is what the paper compares with; the original's novel client is `embed_only`.
    novel: Literal["all", "embed_only"] = Field(
        "all", description="after step 1, train the whole hypernetwork or only the embeddings of newcomers"
    )
    # The original's pFedHN-PC.
    local_head: bool = Field(False, description="the last layer is the client's own, the rest comes from the server")


class Generated(Method):
    """A method whose clients are served what the hypernetwork makes of `e/k`, and upload `delta`: served minus trained.

    State: the hypernetwork and `e/k` for each client k. Subclasses say where embeddings come from and how they move.
    """

    client_parts = ("e", "slope")

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, HypernetSettings)
        self.shared = options
        self.made = slice(0, task.model.size)  # what of a client's weights the hypernetwork makes
        hypernet.affordable(task.model.size, options.hidden)

    def init(self) -> State:
        start, stream = self.task.theta0[self.made], torch_stream(self.task.seed, "hypernetwork")
        return State(hypernet.create(start, stream, self.shared.hidden), {"step": 0})

    def keys(self, state: State, clients: Sequence[int]) -> Tensor:
        keys = [hypernet.key(state.tensors, state[f"e/{k}"]) for k in clients]
        return torch.stack(keys) if keys else torch.zeros(0, self.shared.hidden)

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        thetas = hypernet.generate(state.tensors, self.keys(state, clients))
        return {k: Message({"theta": theta}) for k, theta in zip(clients, thetas, strict=True)}

    def expected(self, download: Message) -> Message:
        return Message({"delta": download["theta"]}, {"samples": 1})

    def alone(self, download: Message, upload: Message) -> Message:
        return Message({**download.tensors, "theta": download["theta"] - upload["delta"]}, download.facts)

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = self.weights(message, memory).clone()
        return self.reply(message, theta, self.train(theta, data, visit), memory)

    def reply(self, message: Message, theta: Tensor, facts: dict[str, Any], memory: Memory) -> tuple[Message, Memory]:
        """What a client sends, and keeps, of the weights it trained."""
        return Message({"delta": message["theta"] - theta[self.made]}, facts), memory

    def descend(self, state: State, uploads: dict[int, Message]) -> dict[int, Tensor]:
        """One SGD step on the hypernetwork, in place; returns the gradient of each sampled client's embedding."""
        embeddings = torch.stack([state[f"e/{k}"] for k in uploads])
        deltas = torch.stack([upload["delta"] for upload in uploads.values()])
        rate = self.shared.rho / 2
        at_keys = hypernet.update(state.tensors, deltas, self.keys(state, list(uploads)), rate, rate)
        gradient = hypernet.trunk_gradient(state.tensors, embeddings, at_keys)
        state["W1"].sub_(gradient["W1"], alpha=self.shared.trunk_rate)
        state["b1"].sub_(gradient["b1"], alpha=self.shared.trunk_rate)
        return dict(zip(uploads, gradient["embeddings"], strict=True))


class PFedHN(Generated):
    """Embeddings are a table on the server, N(0, 1) at first, of which only the rows of sampled clients move.

    With `local_head`, `theta` and `delta` are the body's alone, and memory has a `head`.
    """

    Settings = Settings

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        if options.local_head:
            self.made = task.model.body

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name != "novel"}

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        state.facts["step"] = step
        for k in cards:
            state[f"e/{k}"] = torch.randn(hypernet.EMBEDDING, generator=torch_stream(self.task.seed, "table", k))

    def weights(self, message: Message, memory: Memory) -> Tensor:
        if not self.settings.local_head:
            return message["theta"]
        return torch.cat([message["theta"], memory.tensors.get("head", self.task.theta0[self.model.head])])

    def reply(self, message: Message, theta: Tensor, facts: dict[str, Any], memory: Memory) -> tuple[Message, Memory]:
        upload, memory = super().reply(message, theta, facts, memory)
        head = {"head": theta[self.model.head].clone()} if self.settings.local_head else {}
        return upload, Memory({**memory.tensors, **head}, memory.facts)

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        if self.settings.novel == "embed_only" and state.facts["step"] > 1:
            for k, upload in uploads.items():
                state[f"e/{k}"].sub_(best_step(state.tensors, state[f"e/{k}"], upload["delta"]))
        else:
            for k, slope in self.descend(state, uploads).items():
                state[f"e/{k}"].sub_(slope, alpha=self.settings.embedding_rate)


def best_step(params: dict[str, Tensor], embedding: Tensor, delta: Tensor) -> Tensor:
    """Along the gradient, as far as brings the served weights closest to the trained ones, to first order.

    Where the embedding alone learns, any fixed rate is idle for one client and unstable for another. No step is longer
    than half the embedding: the first order does not reach further.
    """
    at_key = hypernet.pull(params, delta[None])
    slope = hypernet.trunk_gradient(params, embedding[None], at_key)["embeddings"][0]
    before = torch.mv(params["W1"], embedding) + params["b1"]
    fired = torch.where(before > 0, torch.mv(params["W1"], slope), 0.0)
    h = hypernet.key(params, embedding)
    turned = (fired - h * torch.dot(h, fired)) / torch.relu(before).norm().clamp_min(hypernet.SILENT)
    moved = torch.mv(params["W2"], turned)
    best = torch.dot(moved, delta) / moved.square().sum().clamp_min(hypernet.SILENT)
    longest = 0.5 * embedding.norm() / slope.norm().clamp_min(hypernet.SILENT)
    return slope * best.clamp(0, float(longest))
