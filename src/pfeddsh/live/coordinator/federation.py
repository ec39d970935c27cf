"""A federation whose steps open when newcomers have come, for as long as it is wanted."""

import time
from typing import Any

from pfeddsh.federation.loop import Federation
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.clients import PAUSE, LiveClients, NobodyJoined
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.live.coordinator.departures import Departures
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.exchange import Exchange
from pfeddsh.mechanisms import robust
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
        self._left_out = set(robust.left_out(self.loop.state))
        self._departures = Departures(admission, exchange, config.for_sites(), config.round_timeout)
        self.clients.departures = self._between_rounds

    def run(self) -> Ledger:
        """From wherever the checkpoints say we are, until stopped or as many steps as the configuration asks for."""
        step, done = self.loop.moment
        while self.config.steps is None or step <= self.config.steps:
            if step > len(self.plan.steps):
                self._await_batch(step)
            try:
                self.loop.step(step, done)
            except NobodyJoined as nobody:
                self._undo(step, nobody.refused)
                continue
            step, done = step + 1, 0
        self.clients.begin("offering", step - 1)
        deadline = time.monotonic() + self.config.abandon_after
        while self.clients.catch_up.left() and time.monotonic() < deadline:
            self.clients.serve_returned()
            self._departures.carry_out(self.clients, (step, 0))
            time.sleep(PAUSE)
        self._departures.see_off(self.clients, (step, 0))
        self.clients.begin("done", step - 1)
        return self.loop.ledger

    def _await_batch(self, step: int) -> None:
        """Wait until enough newcomers are here, or some have waited long enough; meanwhile offers are delivered."""
        self.clients.begin("waiting", step)
        seen: set[str] = set()
        while True:
            self._departures.carry_out(self.clients, (step, 0))
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
        self.loop.tell("batch", {"step": step, "clients": list(batch)})  # events name nobody: they are kept for ever

    def _between_rounds(self) -> None:
        """No snapshot can name the moment after the cards and before the first round: then it waits for the second."""
        if self.status.phase == "training" and self.status.round:
            self._departures.carry_out(self.clients, (self.status.step, self.status.round))

    def _undo(self, step: int, refused: set[int]) -> None:
        """Nothing of the step has begun yet: the next newcomers are its batch."""
        batch = self.plan.taken.pop()
        self.admission.undo(batch, refused)
        self.loop.ledger.grow()
        for client in batch:
            self.status.refusals.pop(client, None)
        self.loop.tell("nobody", {"step": step, "clients": list(batch)})

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """As an observer of the loop: keep the status up to date, and leave out who sends too much that is refused."""
        if kind == "round":
            self.status.round_done(facts, self.plan.rounds(facts["step"]))
            self.clients.heard(facts)
            self._say_left_out(facts)
            if facts.get("abandoned"):
                self._say_abandoned(facts)
            screening = self.clients.screening
            for client in screening.note(facts):
                strikes = screening.strikes[client]
                self.loop.ledger.turn_away(client, f"quarantined after {strikes} refused replies in a row")
                self.clients.offers.drop(client)
                self.loop.tell("quarantine", {"step": facts["step"], "round": facts["round"], "client": client})
        elif kind == "refused":
            self.status.refuse(self._name(facts["client"]), facts["reason"], facts["client"])
        self.status.show(self.loop.ledger)

    def _say_abandoned(self, facts: dict[str, Any]) -> None:
        left = "".join(f"; {self._name(k)} left before it had trained" for k in facts["left"])
        self.status.notice(
            f"step {facts['step']} was abandoned in round {facts['round'] + 1}: too few clients were connected for "
            f"{self.config.abandon_after:.0f} s; it is closed with what it had{left}"
        )

    def _say_left_out(self, facts: dict[str, Any]) -> None:
        """Who has begun to go against the others, or goes with them again."""
        before, self._left_out = self._left_out, set(robust.left_out(self.loop.state))
        for client in sorted(before ^ self._left_out):
            out, at = client in self._left_out, f"step {facts['step']}, round {facts['round'] + 1}"
            if out or client in facts["clients"]:  # a step that ends lets go of all
                says = "goes against what most others send: its uploads do not count" if out else "counts again"
                self.status.notice(f"{self._name(client)} {says} ({at})")
                told = {"step": facts["step"], "round": facts["round"], "client": client, "left_out": out}
                self.loop.tell("left_out", told)

    def _name(self, client: int) -> str:
        return self.admission.roster.clients[client].name
