"""Who is let in: who is connected under which key, who is known, who waits to be onboarded."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime

from pfeddsh.live.coordinator.roster import Newcomer, Roster
from pfeddsh.live.exchange import Exchange
from pfeddsh.live.transport import Node
from pfeddsh.live.wire import decode
from pfeddsh.messages import BadMessage

AGAIN = 30.0  # seconds before a node that gave no proper answer is asked again who it is


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(name: str) -> str:
    """A name as anyone may see it on a screen."""
    return "".join(character for character in name if character.isprintable())[:64]


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
        self._waiting_since: dict[str, float] = {}
        self._lock = threading.RLock()

    # From the exchange

    def on_nodes(self, nodes: list[Node]) -> None:
        """Ask nodes that are new who they are; forget those that left."""
        with self._lock:
            present = {node.id for node in nodes}
            self._keys = {node: key for node, key in self._keys.items() if node in present}
            self._asked = {node: at for node, at in self._asked.items() if node in present}
            self.last_seen |= dict.fromkeys(self._keys.values(), now())
            fresh = [
                n for n in nodes if n.id not in self._keys and time.monotonic() - self._asked.get(n.id, -AGAIN) >= AGAIN
            ]
            self._asked |= {node.id: time.monotonic() + self._timeout for node in fresh}
        for node in fresh:
            future = self._exchange.ask(lambda node=node: node.id, self._hello, self._timeout, 0.0)  # type: ignore[misc]
            future.add_done_callback(lambda future, node=node: self._introduced(node, future))  # type: ignore[misc]

    def _introduced(self, node: Node, future: "Future[bytes]") -> None:
        with self._lock:
            self._asked[node.id] = time.monotonic()
            if future.exception() is not None:
                return
            try:
                header, message = decode(future.result())
                if header.get("status") != "ok":
                    raise BadMessage(str(header.get("reason"))[:200])
                facts = message.facts
                claimed, name, samples = str(facts["key"]), _plain(str(facts["name"])), int(facts["train"])
            except (BadMessage, KeyError, TypeError, ValueError) as error:
                self._refuse(node.name or node.key, f"introduction refused: {error}")
                return
            if self._authenticated and claimed != node.key:
                self._refuse(node.name or node.key, "introduction refused: it claims the key of another node")
                return
            self._keys = {n: key for n, key in self._keys.items() if key != claimed}  # a restart gave it a new node
            self._keys[node.id] = claimed
            self.last_seen[claimed] = now()
            if self.roster.known(claimed) is None and claimed not in self.roster.dismissed:
                self._queue(claimed, node.name or name, samples)

    def _queue(self, key: str, name: str, samples: int) -> None:
        self.roster.wait(Newcomer(key, name, now(), samples))
        self._waiting_since.setdefault(key, time.monotonic())

    # For the coordinator

    def node_of(self, key: str) -> int | None:
        with self._lock:
            return next((node for node, own in self._keys.items() if own == key), None)

    def online(self) -> set[str]:
        with self._lock:
            return set(self._keys.values())

    def settled(self) -> bool:
        """Whether every node that is online has been heard, so that nobody is taken for absent by mistake."""
        with self._lock:
            return all(
                node in self._keys or self._asked.get(node, 0) < time.monotonic() for node in self._exchange.online
            )

    def waiting(self) -> dict[str, float]:
        """Newcomers that are connected, and for how many seconds they have waited."""
        with self._lock:
            here = self.online()
            for key in self.roster.queue:
                self._waiting_since.setdefault(key, time.monotonic())
            return {k: time.monotonic() - self._waiting_since[k] for k in self.roster.queue if k in here}

    def take(self, keys: list[str]) -> tuple[int, ...]:
        with self._lock:
            return self.roster.take(keys)

    def dismiss(self, batch: tuple[int, ...]) -> None:
        with self._lock:
            self.roster.dismiss(batch)

    def release(self, client: int) -> None:
        """A newcomer that did not tell of itself in time goes back to the queue."""
        with self._lock:
            entry = self.roster.clients[client]
            if entry.released:  # before an interruption
                return
            self.roster.release(client)
            self._waiting_since.pop(entry.key, None)
            self._queue(entry.key, entry.name, 0)
