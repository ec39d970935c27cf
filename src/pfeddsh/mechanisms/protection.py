"""How existing clients are protected while newcomers train the hypernetwork they share.

All protections freeze the trunk and the keys of existing clients (the method does that); they differ in where newcomers
may write. State is the method's: named tensors, `joined` in the facts says in which step each client came.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from pfeddsh.mechanisms import capacity, hypernet, masks, projection
from pfeddsh.messages import State
from pfeddsh.models.base import Model
from pfeddsh.rng import torch_stream


class Unprotected:
    """No protection: the control that shows the problem."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed

    def open(self, state: State, keys: Tensor) -> None:
        """A batch with these keys joins; `step` in the facts is already theirs."""

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

    def release(self, state: State, keys: Tensor) -> None:
        """A client has left; these are the keys of the existing ones that stay."""

    def originals(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        """What the hypernetwork gave these clients in their own step, as far as the protection holds."""
        return hypernet.generate(state.tensors, keys)

    def mask(self, state: State, client: int) -> Tensor | None:
        """The channels this client's model is served with; None for all of them. Weights that reach none are zero."""
        return None

    def usage(self, state: State) -> dict[str, dict[str, int]] | None:
        """Channels in use after the step just closed."""
        return None


class Projection(Unprotected):
    """Ours: newcomers write only to directions orthogonal to the keys of existing clients, in every row.

    When those directions are exhausted the gate takes over with every channel taken: the rows are closed, and
    newcomers learn through their own embeddings alone, which moves nobody else.
    """

    def open(self, state: State, keys: Tensor) -> None:
        state.facts.pop("exhausted", None)  # each batch is judged by its own keys; bad ones cost one step
        if state.facts["step"] > 1 and (reason := projection.exhausted(state["basis"], keys)):
            text = f"projection is exhausted: {reason}. The gate takes over: newcomers learn by their embeddings only"
            state.facts["exhausted"] = text
            warnings.warn(text, stacklevel=2)

    def write(
        self, state: State, clients: Sequence[int], deltas: Tensor, keys: Tensor, rate: float, bias_rate: float
    ) -> Tensor:
        if state.facts["step"] == 1:
            return super().write(state, clients, deltas, keys, rate, bias_rate)
        if state.facts.get("exhausted"):
            return hypernet.pull(state.tensors, deltas)
        return hypernet.update(state.tensors, deltas, projection.project(state["basis"], keys), rate, bias_rate=0.0)

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        basis = state["basis"] if "basis" in state else projection.empty(len(state["b1"]))
        state["basis"] = projection.extend(basis, keys)

    def release(self, state: State, keys: Tensor) -> None:
        if "basis" in state:
            state["basis"] = projection.extend(projection.empty(len(state["b1"])), keys)
            state.facts.pop("exhausted", None)


class Snapshot(Unprotected):
    """The honest control: the server keeps every existing client's weights, whole, and protects nothing else."""

    def close(self, state: State, newcomers: Sequence[int], keys: Tensor) -> None:
        weights = super().originals(state, newcomers, keys)
        state.tensors |= {f"kept/{k}": theta for k, theta in zip(newcomers, weights.unbind(), strict=True)}

    def originals(self, state: State, clients: Sequence[int], keys: Tensor) -> Tensor:
        thetas = super().originals(state, clients, keys)
        for theta, k in zip(thetas, clients, strict=True):
            if f"kept/{k}" in state:
                theta.copy_(state[f"kept/{k}"])
        return thetas


class Gate(Unprotected):
    """The paper: each step takes channels of its own, and what lies between channels taken earlier stays as it is."""

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
