"""Sites that leave for good: what is theirs alone is deleted here, and they are told so.

A site says that it leaves when it introduces itself. That is written down at once; the deletion waits for a moment that
a snapshot can name, is followed by that snapshot, and takes all older ones and the journal with it. Only then is it
confirmed. Asked again, by a restart on either side, it is done and confirmed again. The operator can ask in a
site's place (`forget.py`).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from pfeddsh.live.coordinator import forget
from pfeddsh.live.coordinator.admission import Admission, now
from pfeddsh.live.coordinator.clients import PAUSE, LiveClients
from pfeddsh.live.coordinator.roster import Left, mark_of
from pfeddsh.live.exchange import Exchange
from pfeddsh.live.wire import FAREWELL, encode
from pfeddsh.messages import Message
from pfeddsh.storage.checkpoint import Moment

REPLY = 1 << 16  # bytes of the answer to a farewell
DELETED = ["card", "embedding and key direction", "statistics", "offers", "accuracies", "uploads"]
DELETED += ["name and key in the coordinator's list, state and status"]
STAYS = (
    "what the common model has learnt from this site's uploads, and what others were served of it, cannot be undone. "
    "Until the operator runs `pfeddsh nodes forget`, the public key that admits the site stays; after it, name and key "
    "in Flower's superlink.db, lines of its and the proxy's logs, and backups, which are the operator's to delete. Its "
    "number and a digest of its key stay, by which it is known if it asks again"
)


class Departures:
    """Looked for by the coordinator's thread, at moments that a snapshot can name."""

    def __init__(self, admission: Admission, exchange: Exchange, settings: dict[str, Any], timeout: float) -> None:
        self._admission, self._exchange, self._settings, self._timeout = admission, exchange, settings, timeout
        self._confirmations: list[Future[bytes]] = []  # on their way

    def carry_out(self, clients: LiveClients, moment: Moment) -> None:
        """Delete what is to be deleted, now that a snapshot of this moment can be written; then confirm."""
        waiting, roster = self._admission.leaving(), self._admission.roster
        forgotten = forget.asked(roster.path.parent)
        for key in [*waiting, *forgotten]:
            if mark_of(key) not in roster.left:
                member = roster.known(key)
                roster.leave(mark_of(key), Left(now(), member.id if member else None))
        self._erase(clients, moment)
        for key in forgotten:
            forget.done(roster.path.parent, key)
        self._confirmations = [one for one in self._confirmations if not one.done()]
        for key, node in waiting.items():
            self._confirmations.append(self._confirm(node, roster.left[mark_of(key)]))

    def see_off(self, clients: LiveClients, moment: Moment) -> None:
        """Nobody can be asked again once the coordinator is gone: wait until the last ones have their confirmation.

        Others may say meanwhile that they leave.
        """
        deadline = time.monotonic() + self._timeout
        self.carry_out(clients, moment)
        while self._confirmations and time.monotonic() < deadline:
            wait(self._confirmations, timeout=PAUSE)
            self.carry_out(clients, moment)

    def _erase(self, clients: LiveClients, moment: Moment) -> None:
        roster, federation = self._admission.roster, clients.federation
        due = {mark: left for mark, left in roster.left.items() if not left.erased}
        for mark, left in due.items():
            clients.status.forget(roster.name_of(mark))
            if left.client is None:
                continue
            federation.serving.forget(left.client)
            federation.ledger.forget(left.client, "left the federation")
            clients.forget(left.client)
        if due:
            federation.rewrite(moment)
            roster.erased(due)
            federation.tell("left", {"step": moment[0], "clients": [left.client for left in due.values()]})

    def _confirm(self, node: int, left: Left) -> "Future[bytes]":
        """A confirmation that is lost is asked for again: the site tells once more that it leaves."""
        facts = {"since": left.since, "known": left.client is not None, "deleted": DELETED, "stays": STAYS}
        body = encode({"job": FAREWELL, "settings": self._settings}, Message(facts=facts))
        return self._exchange.ask(_always(node), (body,), self._timeout, 0.0, REPLY)


def _always(node: int) -> Callable[[], int]:
    return lambda: node
