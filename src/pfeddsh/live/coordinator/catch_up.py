"""What clients that were away are owed: the end of their step, an offer, a look at how it serves them."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from pfeddsh.federation.engines import Reply
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.exchange import Absent
from pfeddsh.messages import BadMessage, Message

FIRST, LONGEST = 1.0, 600.0  # seconds after which someone who gave no proper answer is asked again
Admit = Callable[[str, int, Message, Message], Message]  # job, client, what was sent, the reply
Send = Callable[[str, int, int, Message], "Future[Reply]"]  # job, step, client, message


class Asked(NamedTuple):
    """A question under way."""

    step: int
    message: Message
    future: "Future[Reply]"


class CatchUp:
    """Done while the coordinator waits for something else. Nobody is asked twice at a time for the same thing."""

    def __init__(
        self,
        offers: Offers,
        send: Send,
        online: Callable[[int], bool],
        served: Callable[[int], Message],
        admit: Admit,
    ) -> None:
        self.offers, self._send, self._online, self._served, self._admit = offers, send, online, served, admit
        self.unsettled: dict[int, int] = {}  # who was away at the end of its step, and which that was
        self._sent: dict[tuple[str, int], Asked] = {}
        self._failed: dict[tuple[str, int], tuple[int, float]] = {}  # how often in a row, and when to try again

    def forget(self, client: int) -> None:
        """Nothing is owed to a client that has left; what it was asked is not waited for."""
        self.unsettled.pop(client, None)
        self._sent = {key: asked for key, asked in self._sent.items() if key[1] != client}
        self._failed = {key: failed for key, failed in self._failed.items() if key[1] != client}

    def left(self) -> bool:
        """Whether an offer is being handed over, or could be."""
        handing = [future for job in ("keep", "receive", "score") for future in self.under_way(job)]
        return bool(handing) or any(self._online(client) for client in self.offers.pending)

    def under_way(self, job: str) -> "list[Future[Reply]]":
        return [asked.future for (sent, _), asked in self._sent.items() if sent == job]

    def ask(self, job: str, client: int, step: int, message: Message | None = None) -> None:
        """Send a client what it is served now, or this message, if it is there."""
        if self._could(job, client):
            sent = message or self._served(client)
            self._sent[job, client] = Asked(step, sent, self._send(job, step, client, sent))

    def _could(self, job: str, client: int) -> bool:
        due = self._failed.get((job, client), (0, 0.0))[1] <= time.monotonic()
        return due and (job, client) not in self._sent and self._online(client)

    def run(self) -> Iterator[tuple[str, int, int, Message | str]]:
        """Ask those who are back; job, client, step and reply of what has come, or why the reply is refused.

        Who was away at the end of its own step is told that it is over, and so gets its model. Who gave no proper
        answer is asked again, ever more patiently.
        """
        for client, step in self.unsettled.items():
            self.ask("settle", client, step)
        for client in [client for client in self.offers.pending if self._could("receive", client)]:
            self.ask("receive", client, *self.offers.of(client))
        for (job, client), (step, sent, future) in list(self._sent.items()):
            if not future.done():
                continue
            del self._sent[job, client]
            times = self._failed.pop((job, client), (0, 0.0))[0]
            answer: Message | str | None = None
            try:
                answer = self._admit(job, client, sent, future.result()[0])
            except Absent:
                pass
            except BadMessage as error:
                answer = str(error)
            if not isinstance(answer, Message):
                wait = min(LONGEST, FIRST * 2 ** min(times, 20))
                self._failed[job, client] = times + 1, time.monotonic() + wait
            if answer is not None:
                yield job, client, step, answer
