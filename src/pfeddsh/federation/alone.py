"""Every client's local-only control: the same visits, nobody else. It fills cores that the federation leaves idle."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pfeddsh.federation.engines import Engine, Reply
from pfeddsh.federation.workbench import CONTROL, Call, Workbench
from pfeddsh.messages import Message
from pfeddsh.results.ledger import Ledger


class LocalOnly:
    """The controls of one run, begun at its start and waited for at its end."""

    def __init__(
        self, bench: Workbench, engine: Engine, ledger: Ledger, tell: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._bench, self._engine, self._ledger, self._tell = bench, engine, ledger, tell
        self._under_way: dict[int, Future[Reply]] = {}

    def start(self) -> None:
        """Begin those that are not known; where clients train alone anyway, they are their own controls."""
        self.take_over()
        if not self._bench.method.control:
            everyone = (client for step in self._bench.plan.steps for client in self._bench.plan.batch(step))
            self._under_way = {k: self.begin(k) for k in everyone if self._ledger.local[k] is None}
        self._forecast()

    def begin(self, client: int) -> Future[Reply]:
        visit = self._bench.visit(self._ledger.batch[client], 0, client)
        return self._engine.submit(Call(CONTROL, visit), background=True)

    def take_over(self) -> None:
        """What clients that train alone have reached when their step ended."""
        if self._bench.method.control:
            for step, row in enumerate(self._ledger.before, 1):
                for client in self._bench.plan.batch(step):
                    self._ledger.local[client] = row[client]

    def collect(self) -> None:
        """Note those that are done."""
        for client in [client for client, future in self._under_way.items() if future.done()]:
            self._ledger.add_alone(client, accuracy(self._under_way.pop(client).result()[0]))
        self._forecast()

    def wait(self, client: int) -> float:
        """The accuracy of a client's control."""
        known = self._ledger.local[client]
        if known is None:
            self._forecast(over=True)
            known = accuracy((self._under_way.get(client) or self.begin(client)).result()[0])
            self._ledger.add_alone(client, known)
        return known

    def _forecast(self, over: bool = False) -> None:
        """Tell how many visits are left, about; `over`: they are all that is left of the run."""
        plan, visits = self._bench.plan, 0.0
        steps = Counter(self._ledger.batch[k] for k, control in self._under_way.items() if not control.done())
        for step, left in steps.items():
            batch = len(plan.batch(step))
            visits += left * plan.rounds(step) * max(1, round(plan.sample_fraction * batch)) / batch
        self._tell("controls", {"step": len(self._ledger.acc) + 1, "visits": visits, "over": over})


def accuracy(reply: Message) -> float:
    return 100.0 * float(reply.facts["correct"]["acc"]) / float(reply.facts["count"])
