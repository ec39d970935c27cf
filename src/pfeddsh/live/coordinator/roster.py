"""`clients.json`: who has joined, under which key, in which batch, and who waits. Written before it is acted upon."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pfeddsh.errors import UserError
from pfeddsh.storage.files import write_text

SCHEMA = 1


@dataclass
class Member:
    """A client is its key; a key that came too late for its batch waits again, and its number stays unused."""

    id: int
    key: str
    name: str
    batch: int
    released: bool = False


@dataclass
class Newcomer:
    """A newcomer in the queue."""

    key: str
    name: str
    since: str
    samples: int


@dataclass
class Roster:
    """The content of clients.json."""

    path: Path
    clients: list[Member] = field(default_factory=list)
    queue: dict[str, Newcomer] = field(default_factory=dict)
    dismissed: list[str] = field(default_factory=list)  # keys of a first batch of which nobody could be onboarded

    @staticmethod
    def load(path: Path) -> "Roster":
        if not path.exists():
            return Roster(path)
        try:
            content = json.loads(path.read_text())
            clients = [Member(**entry) for entry in content["clients"]]
            queue = {entry["key"]: Newcomer(**entry) for entry in content["queue"]}
            dismissed = list(content.get("dismissed", []))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); restore it from a backup") from error
        return Roster(path, clients, queue, dismissed)

    def save(self) -> None:
        content: dict[str, Any] = {"schema": SCHEMA, "clients": [asdict(client) for client in self.clients]}
        content["queue"] = [asdict(waiting) for waiting in self.queue.values()]
        content["dismissed"] = self.dismissed
        write_text(self.path, json.dumps(content, indent=1) + "\n")

    def batches(self) -> list[tuple[int, ...]]:
        last = max((client.batch for client in self.clients), default=0)
        return [tuple(c.id for c in self.clients if c.batch == step) for step in range(1, last + 1)]

    def known(self, key: str) -> Member | None:
        return next((c for c in self.clients if c.key == key and not c.released), None)

    def wait(self, newcomer: Newcomer) -> None:
        if newcomer.key not in self.queue:
            self.queue[newcomer.key] = newcomer
            self.save()

    def take(self, keys: list[str]) -> tuple[int, ...]:
        """Turn these newcomers into the next batch; numbers follow their names, not who was quicker."""
        batch = max((client.batch for client in self.clients), default=0) + 1
        taken = sorted((self.queue.pop(key) for key in keys), key=lambda w: (w.name, w.key))
        first = len(self.clients)
        self.clients += [Member(first + i, w.key, w.name, batch) for i, w in enumerate(taken)]
        self.save()
        return tuple(range(first, len(self.clients)))

    def dismiss(self, batch: tuple[int, ...]) -> None:
        """Undo the first batch; its clients do not wait again."""
        self.dismissed += [self.clients[k].key for k in batch]
        self.clients.clear()
        self.save()

    def release(self, client: int) -> None:
        self.clients[client].released = True
        self.save()
