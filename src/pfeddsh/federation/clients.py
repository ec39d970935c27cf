"""How the loop reaches its clients, and what one round with them brings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pfeddsh.federation.engines import Engine, Reply
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message, Parts, Record, by_client, per_client


@dataclass
class Round:
    """Uploads that passed the checks, what clients keep to themselves, and the facts of one round."""

    facts: dict[str, Any]
    uploads: dict[int, Message] = field(default_factory=dict)
    memories: dict[int, Memory] = field(default_factory=dict)

    def parts(self) -> Parts:
        """For the journal."""
        own = per_client("memory", self.memories)
        return own | per_client("upload", self.uploads) | {"facts": Record(facts=self.facts)}

    @staticmethod
    def read(parts: Parts) -> "Round":
        return Round(parts["facts"].facts, by_client(parts, "upload"), by_client(parts, "memory"))


class Clients(Protocol):
    """What a federation wants of its clients: simulated ones answer at once, live ones may be away or misbehave."""

    def ask(
        self, job: str, messages: Mapping[int, Message], memories: Mapping[int, Memory], step: int, round: int
    ) -> list[tuple[int, Reply]]:
        """Run one client function for several clients; replies in the clients' order."""

    def train(self, attempt: Callable[[], Round]) -> Round:
        """One round that counts; an attempt asks the clients, with no effect on the federation."""

    def save(self) -> Parts:
        """What a snapshot has to hold of the clients besides their memories."""

    def restore(self, parts: Parts) -> None:
        """Continue from a snapshot."""


class Simulated:
    """Clients whose work the engine does: all of them answer, and there is nothing else to remember."""

    def __init__(self, bench: Workbench, engine: Engine) -> None:
        self._bench, self._engine = bench, engine

    def ask(
        self, job: str, messages: Mapping[int, Message], memories: Mapping[int, Memory], step: int, round: int
    ) -> list[tuple[int, Reply]]:
        visits = {k: self._bench.visit(step, round, k) for k in messages}
        calls = {k: Call(job, visits[k], message, memories.get(k, Memory())) for k, message in messages.items()}
        futures = {k: self._engine.submit(call) for k, call in calls.items()}
        return [(client, future.result()) for client, future in futures.items()]

    def train(self, attempt: Callable[[], Round]) -> Round:
        return attempt()

    def save(self) -> Parts:
        return {}

    def restore(self, parts: Parts) -> None:
        pass
