"""Everything that is sent or stored is a `Record`: named tensors plus JSON facts.

Messages, server state and client memory share this one form, so bytes are counted from the tensors, checkpoints cost
nothing, and the same method runs in this process, on a pool, or over a network.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor


@dataclass
class Record:
    """Named tensors and JSON-compatible facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self.tensors[name] = tensor

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def under(self, kind: str) -> dict[str, Tensor]:
        """The tensors `kind/name`, by name: those of single clients, or of a part."""
        found = ((parted(name), tensor) for name, tensor in self.tensors.items())
        return {rest: tensor for (own, rest), tensor in found if rest and own == kind}

    @property
    def nbytes(self) -> int:
        """Payload of the tensors; facts are a few bytes and not counted."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def same(self, other: "Record") -> bool:
        """Whether both say the same, to the bit."""
        if self.facts != other.facts or self.tensors.keys() != other.tensors.keys():
            return False
        pairs = ((tensor, other.tensors[name]) for name, tensor in self.tensors.items())
        return all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)

    def to(self, device: torch.device) -> "Record":
        """The same record with its tensors on this device."""
        return Record({name: tensor.to(device) for name, tensor in self.tensors.items()}, self.facts)

    def encode(self) -> bytes:
        return safetensors.torch.save(separate(self.tensors), {"facts": json.dumps(self.facts)})

    @staticmethod
    def decode(data: bytes) -> "Record":
        """Rebuild a record; every tensor gets memory of its own, aligned alike wherever it is decoded."""
        try:
            length = int.from_bytes(data[:8], "little")
            header = parsed(data[8 : 8 + length])
            facts = parsed(header.get("__metadata__", {}).get("facts", "{}"))
            tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(data).items()}
        except Exception as error:  # of whatever kind: the sender caused it
            raise BadMessage(f"not a readable record: {str(error)[:200]}") from error
        return Record(tensors, facts)

    def describe(self) -> str:
        """One line for error messages: names, shapes and norms."""
        parts = [f"{name}{list(t.shape)} |{t.double().norm():.3g}|" for name, t in self.tensors.items()]
        return ", ".join(parts + [f"{key}={str(value)[:40]}" for key, value in self.facts.items()]) or "nothing"


def parsed(text: str | bytes) -> Any:
    """JSON from outside; whatever is wrong with it, however deep it is nested, is a `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors that share no memory, as safetensors wants them."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return result


Message = Record
State = Record
Memory = Record


class Compute(Protocol):
    """Runs one of the method's server jobs for each message, wherever there is a free core; results in order."""

    def __call__(self, job: str, messages: list[Message]) -> list[Message]: ...


class BadMessage(Exception):
    """A message that must not touch any state; the text says why."""


def check(message: Message, like: Message) -> None:
    """Refuse a message whose names, shapes or types are not those of the template `like`, or whose values are absurd.

    A number among the template's facts is the least that is accepted: `samples` 1 asks for one sample or more.
    """
    if missing := like.tensors.keys() - message.tensors.keys():
        raise BadMessage(f"missing tensor {', '.join(sorted(missing))}")
    if surplus := message.tensors.keys() - like.tensors.keys():
        raise BadMessage(f"unexpected tensor {', '.join(sorted(surplus))}")
    if missing := like.facts.keys() - message.facts.keys():
        raise BadMessage(f"missing fact {', '.join(sorted(missing))}")
    for name, expected in like.tensors.items():
        tensor = message.tensors[name]
        if tensor.dtype != expected.dtype:
            raise BadMessage(f"{name} has type {tensor.dtype}, expected {expected.dtype}")
        if tensor.shape != expected.shape:
            raise BadMessage(f"{name} has shape {list(tensor.shape)}, expected {list(expected.shape)}")
        if tensor.is_floating_point() and not _finite(tensor):
            raise BadMessage(f"{name} has values that are not finite")
    for name, expected in like.facts.items():
        value = message.facts[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(expected, int | float) and not (number and expected <= value < 1e12):
            raise BadMessage(f"fact {name} is {value!r}, expected a number, at least {expected}")


def _finite(tensor: Tensor) -> bool:
    """Infinite and undefined values show in the sum; only a sum that is too large asks for a look at each value."""
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())


def withheld(message: Message) -> set[str]:
    """What the sender says it keeps to itself by its own policy."""
    names = message.facts.get("withheld")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def parted(key: str) -> tuple[str, str]:
    """The kind of a key such as `memory/3`, and whose it is; nothing if it is nobody's."""
    kind, _, whose = key.partition("/")
    return kind, whose


Parts = dict[str, Record]  # what one file holds: records by name, such as `state` or, for a client's own, `memory/3`


def per_client(name: str, records: Mapping[int, Record]) -> Parts:
    """One record for each of several clients, as parts of a file."""
    return {f"{name}/{client}": record for client, record in records.items()}


def by_client(parts: Mapping[str, Record], name: str) -> dict[int, Record]:
    """What `per_client` has put there under this name."""
    found = ((parted(key), part) for key, part in parts.items())
    return {int(client): part for (kind, client), part in found if client and kind == name}


def bundle(parts: Mapping[str, Record]) -> Record:
    """Several records as one, for a file: `{"state": s, "memory/3": m}` keeps every name under its prefix."""
    tensors = {f"{key}:{name}": tensor for key, part in parts.items() for name, tensor in part.tensors.items()}
    return Record(tensors, {key: part.facts for key, part in parts.items()})


def unbundle(record: Record) -> Parts:
    parts = {key: Record(facts=facts) for key, facts in record.facts.items()}
    for path, tensor in record.tensors.items():
        key, _, name = path.partition(":")
        parts[key][name] = tensor
    return parts
