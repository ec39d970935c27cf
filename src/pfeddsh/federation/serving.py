"""What each client is served, and what it is asked: the state of the method, and what clients keep to themselves."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from pfeddsh.federation.clients import Clients
from pfeddsh.federation.engines import Reply
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.results.ledger import Ledger
from pfeddsh.results.metrics import Row
from pfeddsh.storage.store import Own, Store

WINDOW = 256  # clients that are asked at once


class Serving:
    """Sends clients the messages that are theirs, so many at a time as fit into memory."""

    def __init__(self, method: Method, clients: Clients, ledger: Ledger, store: Store) -> None:
        self.method, self.clients, self.ledger = method, clients, ledger
        self.state: State = method.init()
        self.memories: MutableMapping[int, Memory] = Own(store, "memory")
        self.private: MutableMapping[int, Message] = Own(store, "private")  # of newcomers, where the rest is frozen

    def downloads(self, clients: list[int]) -> dict[int, Message]:
        sent = self.method.download(self.state, [k for k in clients if k not in self.private])
        return {k: sent[k] if k in sent else self.private[k] for k in clients}

    def personal(self, clients: list[int]) -> dict[int, Message]:
        served = self.method.personal(self.state, [k for k in clients if k not in self.private])
        return {k: served[k] if k in served else self.private[k] for k in clients}

    def ask(self, job: str, messages: dict[int, Message], step: int, round: int = 0) -> Iterable[tuple[int, Reply]]:
        return self.clients.ask(job, messages, self.memories, step, round)

    def ask_served(
        self, job: str, clients: list[int], step: int, offers: Mapping[int, Message] | None = None
    ) -> Iterator[tuple[int, Reply]]:
        """Ask clients about the models they are served, or these offers, a window after another."""
        offers = offers or {}
        for start in range(0, len(clients), WINDOW):
            window = clients[start : start + WINDOW]
            own = self.personal([k for k in window if k not in offers])
            messages = {k: offers[k] if k in offers else own[k] for k in window}
            for client, reply in self.ask(job, messages, step):
                if job == "receive":
                    self.ledger.add_transfer(down=messages[client].nbytes)
                yield client, reply

    def evaluate(self, step: int, clients: list[int]) -> dict[str, dict[int, float]]:
        """Accuracy of these clients with the model they would be served now, under each rule the method has."""
        rows: dict[str, dict[int, float]] = {"acc": {}}
        for client, (reply, _) in self.ask_served("score", clients, step):
            for rule, correct in reply.facts["correct"].items():
                rows.setdefault(rule, {})[client] = 100.0 * correct / reply.facts["count"]
        return rows

    def row(self, found: Mapping[int, float], other: Row | None = None) -> list[float | None]:
        """A row of accuracies; where there is none, that of the other row."""
        row: list[float | None] = [None] * self.ledger.plan.clients if other is None else list(other)
        for client, accuracy in found.items():
            row[client] = accuracy
        return row

    def remember(self, client: int, memory: Memory) -> None:
        """Only what changed is written; who keeps nothing takes no room."""
        if not memory.tensors and not memory.facts:
            self.memories.pop(client, None)
        elif client not in self.memories or not memory.same(self.memories[client]):
            self.memories[client] = memory

    def forget(self, client: int) -> None:
        self.method.forget(self.state, client)
        self.memories.pop(client, None)
        self.private.pop(client, None)
