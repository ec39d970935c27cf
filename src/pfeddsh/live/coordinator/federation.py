"""The federation loop with batches that arrive, clients that stay away and offers that wait.

It can be killed at any moment: clients, cards, rounds and reports are on disk before they are acted upon.
"""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from pfeddsh.federation.engines import Reply
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import CONTROL, Call
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.catch_up import CatchUp
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.screening import Screening, check_facts
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.exchange import Absent, Exchange
from pfeddsh.messages import BadMessage, Memory, Message, Record, check
from pfeddsh.results.ledger import Ledger
from pfeddsh.storage.checkpoint import Checkpoints

PAUSE = 0.25  # between two looks while waiting


class NobodyJoined(Exception):
    """No client of the first batch gave a card that could be used."""


class LiveFederation(Federation):
    """A federation whose steps open when newcomers have come."""

    def __init__(
        self, config: LiveConfig, bench: LiveBench, engine: LiveEngine, exchange: Exchange, admission: Admission,
        checkpoints: Checkpoints, offers: Offers, status: StatusFile,
    ) -> None:  # fmt: skip
        self.config, self.exchange, self.admission = config, exchange, admission
        self.offers, self.status = offers, status
        self.screening = Screening(config)
        self.catch_up = CatchUp(offers, self._call, self._online, lambda client: self._served([client])[client])
        self.late: dict[int, Message] = {}  # reports of clients that have settled since, not yet recorded
        self.missing: dict[int, str] = {}  # who did not answer the last question, and why
        self.unreadable: dict[int, str] = {}
        self.cardless: tuple[dict[int, str], dict[int, str]] = {}, {}  # both, when cards were asked for
        super().__init__(bench, engine, checkpoints, [])
        self._grow()

    def run(self) -> Ledger:
        """From wherever the checkpoints say we are, until stopped or as many steps as the configuration asks for."""
        step, done = self.moment
        while self.config.steps is None or step <= self.config.steps:
            if step > len(self.plan.steps):
                self._await_batch(step)
            try:
                self._step(step, done)
            except NobodyJoined:
                self._dismiss()
                continue
            step, done = step + 1, 0
        self._phase("offering", step - 1)
        while self.catch_up.left():
            self._catch_up()
            time.sleep(PAUSE)
        self._phase("done", step - 1)
        return self.ledger

    # Batches

    def _await_batch(self, step: int) -> None:
        """Wait until enough newcomers are here, or some have waited long enough; meanwhile offers are delivered."""
        self._phase("waiting", step)
        seen: set[str] = set()
        while True:
            waiting = self.admission.waiting()
            if set(waiting) != seen:
                seen = set(waiting)
                self._show()
            if len(waiting) >= self.config.batch_min or max(waiting.values(), default=-1.0) >= self.config.batch_wait:
                break
            self._catch_up()
            time.sleep(PAUSE)
        batch = self.admission.take(list(waiting))
        self._grow(batch)
        self._tell("batch", {"step": step, "clients": [self._name(k) for k in batch]})

    def _grow(self, batch: tuple[int, ...] = ()) -> None:
        """Make room in the ledger for a new batch."""
        if batch:
            self.bench.plan.taken.append(batch)  # type: ignore[attr-defined]  # a LiveSchedule
        ledger, clients = self.ledger, self.plan.clients
        ledger.batch = [next(t for t in self.plan.steps if k in self.plan.batch(t)) for k in range(clients)]
        rows = [*ledger.acc, *ledger.before, ledger.local, *getattr(ledger, "zero_shot", [])]
        for row in rows + [row for sibling in ledger.siblings.values() for row in sibling]:
            row += [None] * (clients - len(row))

    def _dismiss(self) -> None:
        """Nothing has begun yet: the next newcomers are the first batch."""
        self.admission.dismiss(self.plan.batch(1))
        self.bench.plan.taken.clear()  # type: ignore[attr-defined]
        self.ledger = Ledger(self.plan)
        self.status.refusals.clear()

    def _open(self, step: int) -> None:
        self._phase("training", step)
        super()._open(step)
        missing, unreadable = self.cardless
        for client, reason in missing.items():
            self.ledger.turn_away(client, f"gave no card: {reason}")
            self.admission.release(client)
            self._tell("absent", {"step": step, "client": client, "reason": reason})
        for client, reason in unreadable.items():
            self.ledger.turn_away(client, f"card refused: {reason}")

    # Rounds

    def _train(self, step: int, round: int) -> dict[str, Record]:
        """A round counts if enough answered well, or nobody is missing; else it is repeated, which costs little."""
        while True:
            gone = self.status.revoked()
            for client in (c.id for c in self.admission.roster.clients if c.key in gone):
                self.ledger.turn_away(client, "revoked")
                self.offers.drop(client)
            recorded = super()._train(step, round)
            facts = recorded["facts"].facts
            facts["refused"] |= {str(k): reason for k, reason in self.unreadable.items()}
            facts["absent"] = {str(k): reason for k, reason in self.missing.items()}
            self.screening.bound(recorded)
            good = sum(key.startswith("upload/") for key in recorded)
            if good >= self.config.min_cohort or not facts["absent"]:
                return recorded
            self._tell("repeat", {"step": step, "round": round, "good": good, "absent": facts["absent"]})
            time.sleep(PAUSE)

    # Asking clients

    def _everyone(
        self, job: str, messages: dict[int, Message], step: int, round: int = 0
    ) -> Iterable[tuple[int, Reply]]:
        """As in simulation, without those who do not answer. Cards and reports are kept, as uploads are."""
        if job == "receive" and messages:
            self._phase("offering", step)
            messages = {k: message for k, message in messages.items() if k not in self.ledger.absent}
            self.offers.make(step, messages)
        at = {"card": 0, "settle": self.plan.rounds(step) + 1}.get(job)
        kept = None if at is None else self.checkpoints.recorded((step, at))
        if kept is None:
            if job == "settle":
                self._hear_the_late()
            replies = self._ask(job, messages, step, round)
            while job == "card" and step == 1 and len(faults := self._faults(replies)) == len(replies):
                if not self.missing:
                    for client, reason in faults.items():
                        self._tell("refused", {"step": step, "client": client, "reason": reason})
                    raise NobodyJoined
                replies = self._ask(job, messages, step, round)
            if at is not None:
                parts = {f"reply/{k}": message for k, (message, _) in replies}
                parts |= {f"late/{k}": report for k, report in self.late.items() if job == "settle"}
                parts |= {"missing": _noted(self.missing), "unreadable": _noted(self.unreadable)}
                self.checkpoints.round((step, at), parts)
        else:
            replies = [(int(key[6:]), (part, Memory())) for key, part in kept.items() if key.startswith("reply/")]
            self.missing, self.unreadable = (_by_client(kept[name]) for name in ("missing", "unreadable"))
            self.late = _late(kept)
        if job == "card":
            self.cardless = self.missing, self.unreadable
        elif job == "settle":
            self.catch_up.unsettled |= dict.fromkeys([*self.missing, *self.unreadable], step)
            for client, report in self.late.items():
                self.method.keep_report(self.state, client, report)
            self.late = {}
        elif job == "keep":
            self.catch_up.unsettled |= dict.fromkeys([*self.missing, *self.unreadable], step)
        for client, (message, _) in replies:
            if job == "receive":
                self.offers.answer(step, client, message.facts["accepted"])
            elif job == "score":
                self._note_control(client, step, message)
        return replies

    def _ask(self, job: str, messages: dict[int, Message], step: int, round: int) -> list[tuple[int, Reply]]:
        self.missing, self.unreadable = {}, {}
        futures = {k: self._call(job, step, k, message, round) for k, message in messages.items()}
        while job == "local" and wait(futures.values(), timeout=PAUSE).not_done:
            self._catch_up()  # rounds are long
        replies = []
        for client, future in futures.items():
            try:
                reply = future.result()
                check_facts(job, reply[0])
                replies.append((client, reply))
            except Absent as error:
                self.missing[client] = str(error)
            except BadMessage as error:
                self.unreadable[client] = str(error)
                if job != "local":
                    self._tell("refused", {"step": step, "client": client, "reason": f"{job}: {error}"})
        return replies

    def _note_control(self, client: int, step: int, score: Message) -> None:
        """A site that has trained alone as well, on the visits of its own step, tells how far that got it."""
        if CONTROL in score.facts and self.ledger.batch[client] == step:
            self.ledger.local[client] = 100.0 * float(score.facts[CONTROL]) / float(score.facts["count"])

    def _faults(self, replies: list[tuple[int, Reply]]) -> dict[int, str]:
        """Cards that cannot be used, and why."""
        faults = {}
        for client, (card, _) in replies:
            try:
                check(card, self.method.expected_card())
            except BadMessage as error:
                faults[client] = f"card refused: {error}"
        return faults

    # For those who were away

    def _catch_up(self) -> None:
        """End steps and hand over offers to clients that are online again; measure those that have answered."""
        self.exchange.check()
        for job, client, step, reply in self.catch_up.run():
            if job == "settle":
                self._settled(client, step, reply)
                if self.bench.config.existing != "follow":
                    self.catch_up.ask("keep", client, step)
            elif job == "receive":
                if self.offers.answer(step, client, reply.facts["accepted"]):
                    self._tell("offer", {"step": step, "client": client, "accepted": reply.facts["accepted"]})
                    self.catch_up.ask("score", client, step)
            elif job == "score" and step <= len(self.ledger.acc):
                self.ledger.acc[step - 1][client] = 100.0 * reply.facts["correct"]["acc"] / reply.facts["count"]
                self._show()

    def _hear_the_late(self) -> None:
        """Whoever is back by the end of this step, and still owes the report of its own, counts from now on."""
        self._catch_up()
        wait(self.catch_up.under_way("settle"), timeout=self.config.round_timeout)
        self._catch_up()

    def _settled(self, client: int, step: int, report: Message) -> None:
        """A late report counts from the end of the step under way, where it is recorded."""
        del self.catch_up.unsettled[client]
        try:
            check(report, self.method.expected_report())
            self.late[client] = report
        except BadMessage as error:
            self._tell("refused", {"step": step, "client": client, "reason": f"report refused: {error}"})

    def _call(self, job: str, step: int, client: int, message: Message, round: int = 0) -> "Future[Reply]":
        return self.engine.submit(Call(job, self.bench.visit(step, round, client), message))

    # Telling

    def _name(self, client: int) -> str:
        return self.admission.roster.clients[client].name

    def _online(self, client: int) -> bool:
        return self.admission.node_of(self.admission.roster.clients[client].key) is not None

    def _phase(self, phase: str, step: int) -> None:
        self.status.phase, self.status.step, self.status.eta = phase, step, None
        self.status.round, self.status.rounds = 0, self.plan.rounds(step)
        self._show()

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "round":
            status, rounds = self.status, self.plan.rounds(facts["step"])
            status.step, status.round, status.rounds = facts["step"], facts["round"] + 1, rounds
            status.eta = facts["seconds"] * (rounds - status.round)
            status.phase = "training" if status.round < rounds else "replaying"
            for client in self.screening.note(facts):
                strikes = self.screening.strikes[client]
                self.ledger.turn_away(client, f"quarantined after {strikes} refused replies in a row")
                self.offers.drop(client)
                super()._tell("quarantine", {"step": facts["step"], "round": facts["round"], "client": client})
        elif kind == "refused":
            client = facts["client"]
            self.status.refuse(self._name(client), facts["reason"])
            self.status.refusals[client] = self.status.refusals.get(client, 0) + 1
        super()._tell(kind, facts)
        self._show()

    def _show(self) -> None:
        self.status.show(self.ledger)

    # Checkpoints

    def _parts(self) -> dict[str, Record]:
        own = {"unsettled": self.catch_up.unsettled, "refusals": self.status.refusals}
        noted = {name: _noted(about) for name, about in own.items()}
        late = {f"late/{client}": report for client, report in self.late.items()}
        return {**super()._parts(), **noted, **late, "screening": self.screening.save()}

    def _adopt(self, parts: dict[str, Record]) -> None:
        super()._adopt(parts)
        self.screening.adopt(parts["screening"])
        self.catch_up.unsettled, self.late = _by_client(parts["unsettled"]), _late(parts)
        self.status.refusals = _by_client(parts["refusals"])


def _noted(about: Mapping[int, int | str]) -> Record:
    return Record(facts={str(client): note for client, note in about.items()})


def _by_client(record: Record) -> dict[int, Any]:
    return {int(client): note for client, note in record.facts.items()}


def _late(parts: Mapping[str, Record]) -> dict[int, Message]:
    return {int(key[5:]): part for key, part in parts.items() if key.startswith("late/")}
