"""A federation whose steps open when newcomers have come, for as long as it is wanted."""

import time
from typing import Any

from pfeddsh.federation.loop import Federation
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.clients import PAUSE, LiveClients, NobodyJoined
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.exchange import Exchange
from pfeddsh.results.ledger import Ledger
from pfeddsh.storage.checkpoint import Checkpoints


class LiveFederation:
    """Takes in batch after batch, has the loop run a step with each, and shows how it goes."""

    def __init__(
        self, config: LiveConfig, bench: LiveBench, engine: LiveEngine, exchange: Exchange, admission: Admission,
        checkpoints: Checkpoints, offers: Offers, status: StatusFile,
    ) -> None:  # fmt: skip
        self.config, self.plan, self.admission, self.status = config, bench.plan, admission, status
        self.clients = LiveClients(config, bench, engine, exchange, admission, offers, status)
        self.loop = self.clients.federation = Federation(bench, engine, checkpoints, [self], self.clients)
        self.loop.ledger.grow()

    def run(self) -> Ledger:
        """From wherever the checkpoints say we are, until stopped or as many steps as the configuration asks for."""
        step, done = self.loop.moment
        while self.config.steps is None or step <= self.config.steps:
            if step > len(self.plan.steps):
                self._await_batch(step)
            try:
                self.loop.step(step, done)
            except NobodyJoined:
                self._dismiss()
                continue
            step, done = step + 1, 0
        self.clients.begin("offering", step - 1)
        while self.clients.catch_up.left():
            self.clients.serve_returned()
            time.sleep(PAUSE)
        self.clients.begin("done", step - 1)
        return self.loop.ledger

    def _await_batch(self, step: int) -> None:
        """Wait until enough newcomers are here, or some have waited long enough; meanwhile offers are delivered."""
        self.clients.begin("waiting", step)
        seen: set[str] = set()
        while True:
            waiting = self.admission.waiting()
            if set(waiting) != seen:
                seen = set(waiting)
                self.status.show(self.loop.ledger)
            if len(waiting) >= self.config.batch_min or max(waiting.values(), default=-1.0) >= self.config.batch_wait:
                break
            self.clients.serve_returned()
            time.sleep(PAUSE)
        batch = self.admission.take(list(waiting))
        self.plan.taken.append(batch)
        self.loop.ledger.grow()
        self.loop.tell("batch", {"step": step, "clients": [self._name(k) for k in batch]})

    def _dismiss(self) -> None:
        """Nothing has begun yet: the next newcomers are the first batch."""
        self.admission.dismiss(self.plan.batch(1))
        self.plan.taken.clear()
        self.loop.ledger = Ledger(self.plan)
        self.status.refusals.clear()

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """As an observer of the loop: keep the status up to date, and leave out who sends too much that is refused."""
        if kind == "round":
            self.status.round_done(facts, self.plan.rounds(facts["step"]))
            screening = self.clients.screening
            for client in screening.note(facts):
                strikes = screening.strikes[client]
                self.loop.ledger.turn_away(client, f"quarantined after {strikes} refused replies in a row")
                self.clients.offers.drop(client)
                self.loop.tell("quarantine", {"step": facts["step"], "round": facts["round"], "client": client})
        elif kind == "refused":
            self.status.refuse(self._name(facts["client"]), facts["reason"], facts["client"])
        self.status.show(self.loop.ledger)

    def _name(self, client: int) -> str:
        return self.admission.roster.clients[client].name
