"""What clients that were away are owed: the end of their step, an offer, a look at how it serves them."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress

from pfeddsh.federation.engines import Reply
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.screening import check_facts
from pfeddsh.live.exchange import Absent
from pfeddsh.messages import BadMessage, Message

Send = Callable[[str, int, int, Message], "Future[Reply]"]  # job, step, client, message


class CatchUp:
    """Done while the coordinator waits for something else. Nobody is asked twice at a time for the same thing."""

    def __init__(
        self, offers: Offers, send: Send, online: Callable[[int], bool], served: Callable[[int], Message]
    ) -> None:
        self.offers, self._send, self._online, self._served = offers, send, online, served
        self.unsettled: dict[int, int] = {}  # who was away at the end of its step, and which that was
        self._sent: dict[tuple[str, int], tuple[int, Future[Reply]]] = {}

    def left(self) -> bool:
        """Whether an offer is being handed over, or could be."""
        handing = [future for job in ("keep", "receive", "score") for future in self.under_way(job)]
        return bool(handing) or any(self._online(client) for client in self.offers.pending)

    def under_way(self, job: str) -> "list[Future[Reply]]":
        return [future for (sent, _), (_, future) in self._sent.items() if sent == job]

    def ask(self, job: str, client: int, step: int, message: Message | None = None) -> None:
        """Send a client what it is served now, or this message, if it is there."""
        if (job, client) not in self._sent and self._online(client):
            self._sent[job, client] = step, self._send(job, step, client, message or self._served(client))

    def run(self) -> Iterator[tuple[str, int, int, Message]]:
        """Ask those who are back; job, client, step and reply of what has come.

        Who was away at the end of its own step is told that it is over, and so gets its model. Who gave no proper
        answer is asked again.
        """
        for client, step in self.unsettled.items():
            self.ask("settle", client, step)
        for client, (step, offer) in self.offers.pending.items():
            self.ask("receive", client, step, offer)
        for (job, client), (step, future) in list(self._sent.items()):
            if future.done():
                del self._sent[job, client]
                with suppress(Absent, BadMessage):
                    reply = future.result()[0]
                    check_facts(job, reply)
                    yield job, client, step, reply
