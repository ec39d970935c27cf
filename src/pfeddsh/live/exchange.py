"""Calls in flight: one thread that pushes, polls, sends again and gives up, so that nobody else has to.

Work at a site is idempotent (a call that was already done is answered from disk), so sending twice is always safe.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from pfeddsh.errors import UserError
from pfeddsh.live.transport import Node, Transport, TransportError
from pfeddsh.messages import BadMessage

LOOK = 1.0  # seconds between two looks at who is online
QUICK, SLOW = 0.05, 0.4  # between two polls: after something has happened, and when nothing does
RETRY = 2.0  # before an answer that was an error of the network is asked for again


class Absent(Exception):
    """A client that did not answer in time; the text says what is known."""


class NotNow(Absent):
    """A client that says it does no more of this for so many seconds; None: for good."""

    def __init__(self, reason: str, seconds: float | None) -> None:
        super().__init__(reason)
        self.seconds = seconds


@dataclass(eq=False)
class Parcel:
    """One call on its way."""

    address: Callable[[], int | None]
    parts: tuple[bytes, ...]  # of what is sent: calls to many sites share the largest, the model
    timeout: float
    grace: float
    limit: int = 1 << 30  # bytes of its answer
    future: "Future[bytes]" = field(default_factory=Future)
    began: float = field(default_factory=time.monotonic)
    node: int | None = None
    sent: float = 0.0
    not_before: float = 0.0
    again: bool = False
    missing: float | None = None
    trouble: str = ""

    def to_send(self, node: int, now: float) -> bool:
        """New, moved to another node, or unanswered for half its time: then the node may have forgotten it."""
        if now < self.not_before:
            return False
        return self.node != node or (not self.again and now - self.sent > self.timeout / 2)


class Exchange:
    """Everything that is on its way between coordinator and sites."""

    def __init__(self, transport: Transport, on_nodes: Callable[[list[Node]], None] = lambda _: None) -> None:
        self.online: dict[int, Node] = {}
        self.on_nodes = on_nodes
        self._transport = transport
        self._arrived: list[Parcel] = []
        self._parcels: list[Parcel] = []
        self._messages: dict[str, Parcel] = {}
        self._nodes: dict[str, int] = {}  # to whom each message went
        self._lock = threading.Lock()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._looked = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)

    def start(self) -> None:
        self._look()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def ask(
        self, address: Callable[[], int | None], parts: tuple[bytes, ...], timeout: float, grace: float, limit: int
    ) -> "Future[bytes]":
        """Deliver to whichever node `address` names by then; `Absent` after `timeout`, or `grace` without a node.

        An answer of more than `limit` bytes is not taken in: it is a `BadMessage`, as is one that cannot be read.
        """
        parcel = Parcel(address, parts, timeout, grace, limit)
        with self._lock:
            self.check()
            self._arrived.append(parcel)
        self._wake.set()
        return parcel.future

    def check(self) -> None:
        """Raise if the network is gone, or whatever else has ended the exchange."""
        if self._failure:
            raise _ended(self._failure)

    def fail(self, error: BaseException) -> None:
        """Nothing is sent or heard any more; whoever waits for an answer is told why."""
        with self._lock:
            self._failure = self._failure or error
            parcels, self._parcels, self._arrived = self._parcels + self._arrived, [], []
        self._stop.set()
        for parcel in parcels:
            parcel.future.set_exception(_ended(error))

    def _run(self) -> None:
        pause = QUICK
        while not self._stop.is_set():
            try:
                busy = self._tick()
            except Exception as error:
                self.fail(error)
                return
            pause = QUICK if busy else min(SLOW, pause * 1.3)
            self._wake.wait(pause)
            self._wake.clear()

    def _look(self) -> None:
        nodes = self._transport.nodes()
        self.online = {node.id: node for node in nodes}
        self._looked = time.monotonic()
        self.on_nodes(nodes)

    def _tick(self) -> bool:
        if time.monotonic() - self._looked > LOOK:
            self._look()
        with self._lock:
            self._parcels += self._arrived
            self._arrived = []
        sent = self._send()
        received = self._receive()
        self._give_up()
        return sent or received

    def _send(self) -> bool:
        now = time.monotonic()
        ready: list[tuple[Parcel, int]] = []
        for parcel in self._parcels:
            node = parcel.address()
            if node is None or node not in self.online:
                parcel.missing = parcel.missing or now
                continue
            if parcel.missing is not None:  # it was away, and may have forgotten what it was sent
                parcel.missing, parcel.node = None, None
            if parcel.to_send(node, now):
                ready.append((parcel, node))
        for parcel, node in ready:
            left = max(1.0, parcel.timeout - (now - parcel.began))
            (message,) = self._transport.push([(node, b"".join(parcel.parts))], ttl=left)
            parcel.again = parcel.node == node
            parcel.node, parcel.sent = node, now
            if message is None:
                parcel.node, parcel.not_before, parcel.trouble = None, now + RETRY, "Flower did not take the message"
            else:
                self._messages[message], self._nodes[message] = parcel, node
        return bool(ready)

    def _receive(self) -> bool:
        if not self._messages:
            return False
        answers = self._transport.pull({message: parcel.limit for message, parcel in self._messages.items()})
        for answer in answers:
            parcel, node = self._messages.pop(answer.message, None), self._nodes.pop(answer.message, None)
            if parcel is None or parcel not in self._parcels:
                continue
            if answer.body is not None and answer.node not in (None, node):
                continue  # nobody answers for another; the message is sent again
            if answer.refused or (answer.body is not None and len(answer.body) > parcel.limit):
                self._done(parcel)
                parcel.future.set_exception(BadMessage(answer.refused or _too_long(answer.body, parcel.limit)))
            elif answer.body is None:
                parcel.trouble, parcel.node = answer.error, None
                parcel.not_before = time.monotonic() + RETRY
            else:
                self._done(parcel)
                parcel.future.set_result(answer.body)
        return bool(answers)

    def _give_up(self) -> None:
        now = time.monotonic()
        for parcel in list(self._parcels):
            if now - parcel.began > parcel.timeout:
                reason = f"no answer within {parcel.timeout:.0f} s"
            elif parcel.missing is not None and now - parcel.missing >= parcel.grace:
                reason = "not connected"
            else:
                continue
            self._done(parcel)
            parcel.future.set_exception(Absent(reason + (f" ({parcel.trouble})" if parcel.trouble else "")))

    def _done(self, parcel: Parcel) -> None:
        self._parcels.remove(parcel)
        self._messages = {message: other for message, other in self._messages.items() if other is not parcel}
        self._nodes = {message: node for message, node in self._nodes.items() if message in self._messages}


def _ended(error: BaseException) -> Exception:
    if isinstance(error, UserError):
        return error
    ended = TransportError(f"the network is gone: {error}")
    ended.__cause__ = error
    return ended


def _too_long(body: bytes | None, limit: int) -> str:
    return f"a reply of {len(body or b''):,} bytes, at most {limit:,} expected"
