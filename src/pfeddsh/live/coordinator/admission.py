"""Who is let in: who is connected under which key, who is known, who waits to be onboarded."""

import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import Future
from datetime import UTC, datetime

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.door import introduction
from pfeddsh.live.coordinator.roster import Member, Newcomer, Roster, mark_of
from pfeddsh.live.exchange import Absent, Exchange
from pfeddsh.live.transport import Node, TransportError
from pfeddsh.live.wire import decode
from pfeddsh.messages import BadMessage

INTRODUCTION = 1 << 16  # bytes of a reply to hello
AGAIN = 30.0  # seconds before a node that gave no proper answer is asked again who it is
LONGEST = 3600.0  # seconds that a newcomer is passed over which keeps being taken and never tells of itself


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _always(node: int) -> Callable[[], int]:
    return lambda: node


class Admission:
    """Fed by the exchange's thread, read by the coordinator's."""

    def __init__(
        self,
        exchange: Exchange,
        roster: Roster,
        hello: bytes,
        timeout: float,
        authenticated: bool,
        refuse: Callable[[str, str], None],
    ) -> None:
        self.roster = roster
        self.last_seen: dict[str, str] = {}
        self._exchange, self._hello, self._timeout = exchange, hello, timeout
        self._authenticated, self._refuse = authenticated, refuse
        self._asked: dict[int, float] = {}
        self._keys: dict[int, str] = {}  # node -> key, of those that have introduced themselves
        self._nodes: dict[str, int] = {}  # the same, by key
        self._waiting_since: dict[str, float] = {}
        self._released: dict[str, tuple[int, float]] = {}  # key -> how often, and until when it is passed over
        self._lock = threading.RLock()
        self._leaving: dict[str, int] = {}  # key -> the node that waits to hear that it has left

    # From the exchange

    def on_nodes(self, nodes: list[Node]) -> None:
        """Ask nodes that are new who they are; forget those that left."""
        with self._lock:
            present = {node.id for node in nodes}
            self._keys = {node: key for node, key in self._keys.items() if node in present}
            self._nodes = {key: node for node, key in self._keys.items()}
            self._asked = {node: at for node, at in self._asked.items() if node in present}
            self.last_seen |= dict.fromkeys(self._keys.values(), now())
            fresh = [
                n for n in nodes if n.id not in self._keys and time.monotonic() - self._asked.get(n.id, -AGAIN) >= AGAIN
            ]
            self._asked |= {node.id: time.monotonic() + self._timeout for node in fresh}
        for node in fresh:
            future = self._exchange.ask(_always(node.id), (self._hello,), self._timeout, 0.0, INTRODUCTION)
            future.add_done_callback(lambda future, node=node: self._heard(node, future))  # type: ignore[misc]

    def _heard(self, node: Node, future: "Future[bytes]") -> None:
        """Who cannot be written down, as on a full disk, must not be taken in: that ends the coordinator."""
        try:
            self._introduced(node, future)
        except UserError as error:
            self._exchange.fail(error)

    def _introduced(self, node: Node, future: "Future[bytes]") -> None:
        with self._lock:
            self._asked[node.id] = time.monotonic()
            if isinstance(future.exception(), Absent | TransportError):
                return
            try:
                header, message = decode(future.result())
                if header.get("status") != "ok":
                    raise BadMessage(str(header.get("reason"))[:200])
                claimed, name, train, test = introduction(message.facts)
            except Exception as error:  # whatever it is, the sender caused it
                why = str(error) if isinstance(error, BadMessage) else type(error).__name__
                self._refuse(node.name or node.key, f"introduction refused: {why}")
                return
            if self._authenticated and claimed != node.key:
                self._refuse(node.name or node.key, "introduction refused: it claims the key of another node")
                return
            if (before := self._nodes.pop(claimed, None)) is not None:  # a restart gave it a new node
                self._keys.pop(before, None)
            if message.facts.get("leaving") is True:  # it counts as not there, and is asked again until it is gone
                self._leaving[claimed] = node.id
                return
            if mark_of(claimed) in self.roster.left:
                self._refuse(node.name or name, "introduction refused: this site has left; it joins under a new key")
                return
            self._nodes.pop(self._keys.get(node.id, ""), None)
            self._keys[node.id], self._nodes[claimed] = claimed, node.id
            self.last_seen[claimed] = now()
            if self.roster.known(claimed) is None and claimed not in self.roster.dismissed:
                self._queue(Newcomer(claimed, node.name or name, now(), train, test))
            self.roster.tell_images(claimed, train, test)

    def _queue(self, newcomer: Newcomer) -> None:
        self.roster.wait(newcomer)
        self._waiting_since.setdefault(newcomer.key, time.monotonic())

    # For the coordinator

    def node_of(self, key: str) -> int | None:
        with self._lock:
            return self._nodes.get(key)

    def online(self) -> set[str]:
        with self._lock:
            return set(self._nodes)

    def settled(self) -> bool:
        """Whether every node that is online has been heard, so that nobody is taken for absent by mistake."""
        with self._lock:
            return all(
                node in self._keys or self._asked.get(node, 0) < time.monotonic() for node in self._exchange.online
            )

    def leaving(self) -> dict[str, int]:
        """Sites that have said since the last look that they leave, and on which node they wait."""
        with self._lock:
            found, self._leaving = self._leaving, {}
            return found

    def waiting(self) -> dict[str, float]:
        """Newcomers that are connected, and for how many seconds they have waited."""
        with self._lock:
            here = self.online()
            for key in self.roster.queue:
                self._waiting_since.setdefault(key, time.monotonic())
            passed = {key for key, (_, until) in self._released.items() if until > time.monotonic()}
            return {
                k: time.monotonic() - self._waiting_since[k] for k in self.roster.queue if k in here and k not in passed
            }

    def take(self, keys: list[str]) -> tuple[int, ...]:
        with self._lock:
            return self.roster.take(keys)

    def undo(self, batch: tuple[int, ...], dismissed: Container[int]) -> None:
        """Nobody of the last batch could be onboarded: who was away waits again, who was refused does not."""
        with self._lock:
            away = [self.roster.clients[k] for k in batch if k not in dismissed and not self.roster.clients[k].released]
            self.roster.undo(batch, dismissed)
            for member in away:
                self._wait_again(member)

    def release(self, client: int) -> None:
        """A newcomer that did not tell of itself in time, or left before it had trained, goes back to the queue."""
        with self._lock:
            member = self.roster.clients[client]
            if member.released:  # before an interruption
                return
            self.roster.release(client)
            self._wait_again(member)

    def _wait_again(self, member: Member) -> None:
        """The first time at once; whoever does it again and again keeps nobody busy with it."""
        times = self._released.get(member.key, (0, 0.0))[0] + 1
        until = time.monotonic() + min(LONGEST, AGAIN * (2 ** min(times - 1, 10) - 1))
        self._released[member.key] = times, until
        self._waiting_since.pop(member.key, None)
        self._queue(Newcomer(member.key, member.name, now(), member.train, member.test))
