"""`clients.json`: who has joined, under which key, in which batch, and who waits. Written before it is acted upon."""

import hashlib
import json
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pfeddsh.errors import UserError
from pfeddsh.storage.files import write_text

SCHEMA = 1
GONE = "(left)"  # the name of whoever has


@dataclass
class Member:
    """A client is its key; a key that came too late for its batch waits again, and its number stays unused."""

    id: int
    key: str
    name: str
    batch: int
    released: bool = False
    train: int = 0  # images it has told of; 0: written before they were kept
    test: int = 0


@dataclass
class Newcomer:
    """A newcomer in the queue."""

    key: str
    name: str
    since: str
    samples: int
    test: int = 0


@dataclass
class Left:
    """What stays of a site that has left: when, and the number that nobody else gets."""

    since: str
    client: int | None  # None: it was never onboarded
    erased: bool = False


@dataclass
class Roster:
    """The content of clients.json."""

    path: Path
    clients: list[Member] = field(default_factory=list)
    queue: dict[str, Newcomer] = field(default_factory=dict)
    dismissed: list[str] = field(default_factory=list)  # keys of a first batch of which nobody could be onboarded
    left: dict[str, Left] = field(default_factory=dict)  # by a digest of the key, which is deleted
    _members: dict[str, Member] | None = None  # by key, until something changes

    @staticmethod
    def load(path: Path) -> "Roster":
        if not path.exists():
            return Roster(path)
        try:
            content = json.loads(path.read_text())
            if content["schema"] != SCHEMA:
                raise UserError(
                    f"{path} has schema {str(content['schema'])[:20]}, this version reads {SCHEMA}: "
                    "use the pfeddsh that wrote it"
                )
            clients = [Member(**entry) for entry in content["clients"]]
            queue = {entry["key"]: Newcomer(**entry) for entry in content["queue"]}
            dismissed = list(content.get("dismissed", []))
            left = {mark: Left(**entry) for mark, entry in content.get("left", {}).items()}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); restore it from a backup") from error
        return Roster(path, clients, queue, dismissed, left)

    def save(self) -> None:
        self._members = None
        content: dict[str, Any] = {"schema": SCHEMA, "clients": [asdict(client) for client in self.clients]}
        content["queue"] = [asdict(waiting) for waiting in self.queue.values()]
        content["dismissed"] = self.dismissed
        content["left"] = {mark: asdict(left) for mark, left in self.left.items()}
        write_text(self.path, json.dumps(content, indent=1) + "\n")

    def batches(self) -> list[tuple[int, ...]]:
        last = max((client.batch for client in self.clients), default=0)
        return [tuple(c.id for c in self.clients if c.batch == step) for step in range(1, last + 1)]

    def known(self, key: str) -> Member | None:
        if self._members is None:
            self._members = {c.key: c for c in reversed(self.clients) if not c.released}
        return self._members.get(key)

    def wait(self, newcomer: Newcomer) -> None:
        if newcomer.key not in self.queue:
            self.queue[newcomer.key] = newcomer
            self.save()

    def take(self, keys: list[str]) -> tuple[int, ...]:
        """Turn these newcomers into the next batch; numbers follow their names, not who was quicker."""
        batch = max((client.batch for client in self.clients), default=0) + 1
        taken = sorted((self.queue.pop(key) for key in keys), key=lambda w: (w.name, w.key))
        first = len(self.clients)
        self.clients += [
            Member(first + i, w.key, w.name, batch, train=w.samples, test=w.test) for i, w in enumerate(taken)
        ]
        self.save()
        return tuple(range(first, len(self.clients)))

    def undo(self, batch: tuple[int, ...], dismissed: Container[int]) -> None:
        """Take back the last batch, of which nobody could be onboarded; those who are dismissed do not wait again."""
        self.dismissed += [self.clients[k].key for k in batch if k in dismissed]
        del self.clients[min(batch) :]
        self.save()

    def facts(self) -> dict[str, Any]:
        """For a snapshot, which then holds all that belongs together; nothing of those who have left."""
        return {"clients": [asdict(self._without_name(client)) for client in self.clients]}

    def _without_name(self, member: Member) -> Member:
        left = mark_of(member.key) in self.left
        return replace(member, name=GONE, key="", train=0, test=0) if left else member

    def agree(self, facts: dict[str, Any]) -> None:
        """A copy of the folder that was taken at work may hold a list older than the snapshot, but never another."""
        told = [Member(**entry) for entry in facts["clients"]]
        pairs = [(own.key, other.key) for own, other in zip(self.clients, told, strict=False)]
        if any(own and other and own != other for own, other in pairs):  # keys of those who have left are deleted
            raise UserError(f"{self.path} and the state beside it are of different federations; restore both together")
        if missing := told[len(self.clients) :]:
            self.clients += missing
            for member in missing:
                self.queue.pop(member.key, None)
            self.save()

    def tell_images(self, key: str, train: int, test: int) -> None:
        """A site tells how many images it has whenever it connects."""
        member = self.known(key)
        if member is not None and (member.train, member.test) != (train, test):
            member.train, member.test = train, test
            self.save()

    def release(self, client: int) -> None:
        self.clients[client].released = True
        self.save()

    def sites(self) -> list[Member | Newcomer]:
        """Members and those who wait."""
        return [*self.clients, *self.queue.values()]

    def name_of(self, mark: str) -> str | None:
        """What a site that leaves is called, until it is erased."""
        return next((one.name for one in self.sites() if one.key and mark_of(one.key) == mark), None)

    def leave(self, mark: str, left: Left) -> None:
        """A site leaves; `mark` is by what it is known from now on."""
        self.left[mark] = left
        self.save()

    def erased(self, marks: Iterable[str]) -> None:
        """Nothing else is kept of these sites any more: their names and keys go last."""
        for mark in marks:
            self.left[mark].erased = True
            for member in self.clients:
                if mark_of(member.key) == mark:
                    member.name, member.key, member.train, member.test = GONE, "", 0, 0
            self.queue = {key: waiting for key, waiting in self.queue.items() if mark_of(key) != mark}
            self.dismissed = [key for key in self.dismissed if mark_of(key) != mark]
        self.save()


def mark_of(key: str) -> str:
    """By which a site that has left is known again when its key is deleted."""
    return hashlib.sha256(key.encode()).hexdigest()
