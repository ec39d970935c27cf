"""Who is asked to train: not those who say that they do not now, or no more, nor those who never answer.

They are passed over and served all the same. A site that names a time is waited for, once for each upload; one that is
connected and stays silent is asked ever more rarely, so that it cannot make every round as long as the longest.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pfeddsh.live.coordinator.pulse import duration
from pfeddsh.live.exchange import Absent, NotNow

SILENT = 3  # times in a row without an answer after which a client is passed over


@dataclass(frozen=True)
class Pause:
    """Until when a client is passed over, and on which node it was: one that has connected anew is asked again."""

    until: float
    node: int | None
    reason: str
    promised: bool  # by the client itself


class Attendance:
    """Of the step under way; nothing of it outlives the coordinator, which then asks once more."""

    def __init__(self, patience: float, node_of: Callable[[int], int | None]) -> None:
        self._patience, self._node_of = patience, node_of
        self.opened()

    def opened(self) -> None:
        """A step begins: its clients are new."""
        self.finished: set[int] = set()  # who trains no more
        self._silent: dict[int, int] = {}
        self._pauses: dict[int, Pause] = {}
        self._promised: set[int] = set()  # who has named a time since its last upload

    def passed_over(self, client: int) -> str | None:
        """Why a client is not asked now; None if it is."""
        pause = self._pauses.get(client)
        if pause is None or pause.until <= time.monotonic() or self._node_of(client) not in (pause.node, None):
            return None
        return pause.reason

    def uploaded(self, client: int) -> None:
        for noted in (self._silent, self._pauses):
            noted.pop(client, None)
        self._promised.discard(client)

    def missed(self, client: int, error: Absent) -> str | None:
        """A client was asked and sent no upload; what is new about it, in words for people."""
        node = self._node_of(client)
        if isinstance(error, NotNow) and error.seconds is None:
            self.finished.add(client)
            return f"is served and trains no more: {error}"
        if isinstance(error, NotNow) and error.seconds is not None and client not in self._promised:
            self._promised.add(client)
            self._pauses[client] = Pause(time.monotonic() + error.seconds, node, str(error), True)
            return f"trains again in {duration(error.seconds)}: {error}"
        if node is None:
            return None
        times = self._silent[client] = self._silent.get(client, 0) + 1
        if times < SILENT:
            return None
        until = time.monotonic() + self._patience * 2 ** min(times - SILENT, 10)
        self._pauses[client] = Pause(until, node, f"passed over: {times} times in a row no upload ({error})", False)
        return f"is passed over: {times} times in a row it sent no upload ({error})" if times == SILENT else None

    def promised(self, clients: Iterable[int]) -> float | None:
        """When the first of these trains again that have named a time, on the monotonic clock; None if none has."""
        pauses = [self._pauses[k] for k in clients if self.passed_over(k)]
        return min((pause.until for pause in pauses if pause.promised), default=None)

    def silent(self, client: int) -> bool:
        """Whether a client is passed over because it does not answer: it is as good as away."""
        return self.passed_over(client) is not None and not self._pauses[client].promised
