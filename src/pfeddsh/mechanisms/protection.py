"""How existing clients are protected while newcomers train the hypernetwork they share.

All protections freeze the trunk and the keys of existing clients (the method does that); they differ in where newcomers
may write. State is the method's: named tensors, `joined` in the facts says in which step each client came.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pfeddsh.mechanisms import capacity, hypernet, masks, projection
from pfeddsh.messages import State
from pfeddsh.models.base import Model
from pfeddsh.rng import torch_stream


class Unprotected:
    """No protection: the control that shows the problem.

    A protection is a subclass. One that does nothing in the rounds of step 1 says `acts_first=False`, and shares those
    rounds with the others that do nothing there.
    """

    acts_first: ClassVar[bool] = False
    protects: ClassVar[bool] = False
    masks_all: ClassVar[bool] = False  # it acts on channels, so deviations must cover the whole model

    def __init_subclass__(cls, acts_first: bool = True) -> None:
        cls.acts_first, cls.protects = acts_first, True

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed

    def open(self, state: State, keys: Tensor) -> None:
        """A batch with these keys joins; `step` and `newcomers` in the facts are already theirs."""

    def generate(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        """What the hypernetwork makes for these clients now."""
        return hypernet.generate(state.tensors, keys)

    def settled(self, state: State) -> list[str]:
        """Tensors of the state that will never change again."""
        return []

    def write(
        self, state: State, clients: Sequence[int], deltas: Tensor, keys: Tensor, rate: float, bias_rate: float
    ) -> Tensor:
        """Let the hypernetwork learn from a round: served minus trained weights, and the keys of who sent them.

        Returns the gradient at those keys, before anything is written.
        """
        return hypernet.update(state.tensors, deltas, keys, rate, bias_rate)

    def learn_masks(self, state: State, logits: Tensor) -> None:
        """Take over what clients made of the mask logits in a round (one row a client)."""

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        """The step is over: from here on its clients are existing ones."""

    def release(self, state: State, client: int, others: Sequence[int], keys: Tensor) -> None:
        """A client has left; these are the existing ones that stay, and their keys."""

    def originals(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        """What the hypernetwork gave these clients in their own step, as far as the protection holds."""
        return self.generate(state, clients, keys)

    def mask(self, state: State, client: int) -> Tensor | None:
        """The channels this client's model is served with; None for all of them. Weights that reach none are zero."""
        return None

    def usage(self, state: State) -> dict[str, dict[str, int]] | None:
        """Channels in use after the step just closed."""
        return None


class Projection(Unprotected, acts_first=False):
    """Ours: newcomers write only to directions orthogonal to the keys of existing clients, in every row.

    When those directions are exhausted a new block opens: columns of W2 and a basis of its own, for this batch and
    later ones. Clients of a block read its columns alone, so what earlier blocks serve stays the same bits, for good.
    """

    def open(self, state: State, keys: Tensor) -> None:
        if state.facts["step"] > 1 and projection.exhausted(state[_at("basis", _block(state))], keys):
            block = state.facts["block"] = _block(state) + 1
            state[_at("W2", block)] = torch.zeros_like(state["W2"])
            state[_at("basis", block)] = projection.empty(len(state["b1"]))
        if block := _block(state):
            state.facts.setdefault("blocks", {}).update(dict.fromkeys(map(str, state.facts["newcomers"]), block))

    def generate(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        blocks = [_block_of(state, k) for k in clients]
        if not any(blocks):
            return super().generate(state, clients, keys)
        thetas = keys.new_empty(len(clients), len(state["b2"]))
        for block in sorted(set(blocks)):
            own = torch.tensor([found == block for found in blocks])
            thetas[own] = hypernet.generate(_columns(state, block), keys[own])
        return thetas

    def write(
        self, state: State, clients: Sequence[int], deltas: Tensor, keys: Tensor, rate: float, bias_rate: float
    ) -> Tensor:
        if state.facts["step"] == 1:
            return super().write(state, clients, deltas, keys, rate, bias_rate)
        block = _block(state)
        written = projection.project(state[_at("basis", block)], keys)
        return hypernet.update(_columns(state, block), deltas, written, rate, bias_rate=0.0)

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        name = _at("basis", _block(state))
        basis = state[name] if name in state else projection.empty(len(state["b1"]))
        state[name] = projection.extend(basis, keys)

    def release(self, state: State, client: int, others: Sequence[int], keys: Tensor) -> None:
        """Its direction is free again in the block that newcomers write to; into earlier ones nobody writes."""
        name, block = _at("basis", _block(state)), _block(state)
        state.facts.get("blocks", {}).pop(str(client), None)
        if name in state:
            own = [i for i, k in enumerate(others) if _block_of(state, k) == block]
            state[name] = projection.extend(projection.empty(len(state["b1"])), keys[own])

    def settled(self, state: State) -> list[str]:
        return [_at(name, block) for block in range(_block(state)) for name in ("W2", "basis")]


def _block(state: State) -> int:
    """The block that newcomers write to."""
    block: int = state.facts.get("block", 0)
    return block


def _block_of(state: State, client: int) -> int:
    block: int = state.facts.get("blocks", {}).get(str(client), 0)
    return block


def _at(name: str, block: int) -> str:
    return f"{name}/{block}" if block else name


def _columns(state: State, block: int) -> dict[str, Tensor]:
    """The hypernetwork as a block has it."""
    return {**state.tensors, "W2": state[_at("W2", block)]}


class Snapshot(Unprotected, acts_first=False):
    """The honest control: the server keeps every existing client's weights, whole, and protects nothing else."""

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        weights = self.generate(state, newcomers, keys)
        state.tensors |= {f"kept/{k}": theta for k, theta in zip(newcomers, weights.unbind(), strict=True)}

    def originals(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        thetas = super().originals(state, clients, keys)
        for theta, k in zip(thetas, clients, strict=True):
            if f"kept/{k}" in state:
                theta.copy_(state[f"kept/{k}"])
        return thetas


class Gate(Unprotected):
    """The paper: each step takes channels of its own, and what lies between channels taken earlier stays as it is."""

    masks_all = True

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__(model, seed)
        self.channels = masks.channels_of(model)

    def open(self, state: State, keys: Tensor) -> None:
        step = state.facts["step"]
        if step == 1:
            state["used"] = torch.zeros(self.channels.count, dtype=torch.bool)
        state["logits"] = masks.initial_logits(state["used"], torch_stream(self.seed, step, "logits"))
        state.tensors.pop("own", None)

    def write(
        self, state: State, clients: Sequence[int], deltas: Tensor, keys: Tensor, rate: float, bias_rate: float
    ) -> Tensor:
        """The clients have gated their gradients; the server does so again, so that no upload can break the promise."""
        gate = masks.gradient_gate(self.model, state["used"], self.hard(state)) > 0
        at_keys = hypernet.update(state.tensors, deltas, keys, rate, bias_rate, gate)
        for client, delta in zip(clients, deltas, strict=True):  # remembered until the step ends, for its novelty
            state[f"moved/{client}"] = state.tensors.get(f"moved/{client}", torch.zeros_like(delta)) + delta
        return at_keys

    def learn_masks(self, state: State, logits: Tensor) -> None:
        """Logits follow the clients while masks are soft; then the best become the step's mask, once and for all."""
        if "own" in state:
            return
        state["logits"] = logits.mean(0)
        if not masks.is_soft(state.facts["round"], state.facts["rounds"]):
            state["own"] = masks.select(self.channels, state["logits"], state["used"])

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        state["own"] = self.hard(state)
        moved = [state.tensors.pop(f"moved/{k}") for k in newcomers if f"moved/{k}" in state]
        state.facts["capacity"] = capacity.usage(self.channels, state["own"], state["used"])
        for layer, rank in capacity.novelty(torch.stack(moved), state["used"], self.model).items() if moved else ():
            state.facts["capacity"].setdefault(layer, {})["novelty"] = rank
        state["used"] = masks.union(state["used"], state["own"])
        state[f"mask/{state.facts['step']}"] = state["used"].clone()

    def mask(self, state: State, client: int) -> Tensor | None:
        """That of the client's own step; while the step is going on, what it would be if it ended now."""
        settled = state.tensors.get(f"mask/{state.facts['joined'][str(client)]}")
        return masks.union(state["used"], self.hard(state)) if settled is None else settled

    def hard(self, state: State) -> Tensor:
        """The step's own mask: fixed in the last rounds, until then what the logits say at full scale."""
        return state.tensors.get("own", state["logits"] > 0)

    def usage(self, state: State) -> dict[str, dict[str, int]] | None:
        usage: dict[str, dict[str, int]] | None = state.facts.get("capacity")
        return usage


PROTECTIONS: dict[str, type[Unprotected]] = {
    "projection": Projection,
    "gate": Gate,
    "snapshot": Snapshot,
    "none": Unprotected,
}
