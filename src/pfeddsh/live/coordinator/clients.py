"""Clients over the network: they stay away, come back, send what cannot be used, and are asked again.

Cards and reports are on disk before they are acted upon, as uploads are: the coordinator can be killed at any moment.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from pfeddsh.federation.clients import Round
from pfeddsh.federation.engines import Reply
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import CONTROL, Call
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.attendance import Attendance
from pfeddsh.live.coordinator.catch_up import CatchUp
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.live.coordinator.door import Door, change
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.pulse import Phase
from pfeddsh.live.coordinator.screening import Screening
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.exchange import Absent, Exchange
from pfeddsh.messages import BadMessage, Memory, Message, Parts, Record, by_client, per_client, withheld

TELLERS = 3  # of statistics, without whom none are pooled: among fewer, one could say what it likes
RECORDED = ("card", "settle", "judge")  # what these bring enters the state, so it is in the journal first
PAUSE = 0.25  # between two looks while waiting
LONGEST = 60.0  # seconds between two attempts at a round


class NobodyJoined(Exception):
    """No client of a batch gave a card that could be used; `refused` are those whose card was at fault."""

    def __init__(self, refused: set[int]) -> None:
        super().__init__("nobody of the batch could be onboarded")
        self.refused = refused


class LiveClients:
    """The sites of a live federation, as its loop sees them."""

    federation: Federation  # that asks us; it is made with us, so it comes after us

    def __init__(
        self, config: LiveConfig, bench: LiveBench, engine: LiveEngine, exchange: Exchange, admission: Admission,
        offers: Offers, status: StatusFile,
    ) -> None:  # fmt: skip
        self.config, self.bench, self.engine, self.exchange = config, bench, engine, exchange
        self.admission, self.offers, self.status = admission, offers, status
        self.screening, self.door = Screening(config), Door(bench.method, config.norm_limit)
        self.catch_up = CatchUp(offers, self._call, self._online, self._personal, self._admit)
        self.late: dict[int, Message] = {}  # reports of clients that have settled since, not yet recorded
        self.missing: dict[int, str] = {}  # who did not answer the last question, and why
        self.unreadable: dict[int, str] = {}
        self.contributed: set[int] = set()  # of the step: whose uploads have counted
        self._changes: dict[int, float] = {}  # norms of what the uploads of this round change
        self.departures: Callable[[], None] = lambda: None  # looks for sites that leave, where a round begins
        self.attendance = Attendance(config.round_timeout, self._node)
        self._opening = False  # a step has cards and nothing else yet

    # What the loop wants of them

    def ask(
        self, job: str, messages: Mapping[int, Message], memories: Mapping[int, Memory], step: int, round: int
    ) -> list[tuple[int, Reply]]:
        """As in simulation, without those who do not answer; sites keep their memories themselves."""
        federation = self.federation
        if job == "card":
            self.contributed = set()
            self.attendance.opened()
            self.begin("training", step)
        elif job == "receive" and messages:
            self.begin("offering", step)
            messages = {k: message for k, message in messages.items() if k not in federation.ledger.absent}
            self.offers.make(step, dict(messages))
        elif job == "local" and round == 0:
            self.status.show(federation.ledger)  # how newcomers are served before their first round
        if job in RECORDED:
            replies = self._recorded(job, messages, step)
        elif job == "score" and self._opening:
            replies = self._recorded_zero_shot(messages, step)
        else:
            replies = self._question(job, messages, step, round)
        self._opening = job == "card" or (self._opening and job == "score")  # of which there may be several windows
        if job == "settle":
            federation.method.quorum = quorum(len(replies) + len(self.missing) + len(self.unreadable))
        if job == "card":
            self._turn_away_cardless(step)
        elif job in ("settle", "keep"):
            self.catch_up.unsettled |= dict.fromkeys([*self.missing, *self.unreadable], step)
        for client, (message, _) in replies:
            if job == "receive":
                self.offers.answer(step, client, message.facts["accepted"])
            elif job == "score":
                self._note_control(client, step, message)
        return replies

    def train(self, attempt: Callable[[], Round]) -> Round:
        """A round counts if enough answered well, or nobody is missing; else it is repeated, ever more rarely.

        After `abandon_after` seconds of that it counts as it is; and if too few of the step's clients are even
        connected, nobody waits for them any longer: the step is abandoned. Who has said when it trains again is
        waited for until then.
        """
        short_since: float | None = None
        pause = PAUSE
        while True:
            self._drop_revoked()
            self.departures()
            brought = attempt()
            facts = brought.facts
            facts["refused"] |= {str(k): reason for k, reason in self.unreadable.items()}
            facts["absent"] = {str(k): reason for k, reason in self.missing.items()}
            self.screening.bound(brought, self._changes)
            good = len(brought.uploads)
            if good >= self.config.min_cohort or not facts["absent"]:
                return brought
            until = self.attendance.promised(self.missing)
            short_since = None if until else short_since or time.monotonic()
            if short_since and time.monotonic() - short_since >= self.config.abandon_after:
                self._give_up(facts)
                return brought
            told = {"step": facts["step"], "round": facts["round"], "good": good, "absent": facts["absent"]}
            self.federation.tell("repeat", told)
            self._rest(until or time.monotonic() + min(pause, self.config.abandon_after))
            pause = min(LONGEST, 2 * pause)

    def _rest(self, until: float) -> None:
        """Wait before a round is repeated; not any longer once somebody is back that was missing."""
        away = [client for client in self.missing if not self._online(client)]
        while True:
            self.serve_returned()
            self.departures()
            time.sleep(max(0.0, min(PAUSE, until - time.monotonic())))
            if time.monotonic() >= until or any(self._online(client) for client in away):
                return

    def _give_up(self, facts: dict[str, Any]) -> None:
        """Whoever has left before it could contribute anything will be a newcomer again."""
        out = {*self.federation.ledger.absent, *self.attendance.finished}
        everyone = [k for k in self.federation.plan.participants(facts["step"]) if k not in out]
        away = [k for k in everyone if not self._online(k) or self.attendance.silent(k)]
        if len(everyone) - len(away) < min(self.config.min_cohort, len(everyone)):
            contributed = {*self.contributed, *map(int, facts["norms"])}
            facts |= {"abandoned": True, "left": [k for k in away if k not in contributed]}

    def heard(self, facts: dict[str, Any]) -> None:
        """A round is over: who contributed, and, if its step is abandoned, who is let go."""
        self.contributed |= set(map(int, facts["norms"]))
        for client in facts.get("left", []):
            self.federation.ledger.turn_away(client, "left before it had trained; it may join again")
            self.admission.release(client)

    def save(self) -> Parts:
        own = {"unsettled": _noted(self.catch_up.unsettled), "refusals": _noted(self.status.refusals)}
        own["contributed"] = Record(facts={"clients": sorted(self.contributed)})
        own["roster"] = Record(facts=self.admission.roster.facts())
        return {**own, **per_client("late", self.late), "screening": self.screening.save()}

    def restore(self, parts: Parts) -> None:
        if "roster" in parts:
            self.admission.roster.agree(parts["roster"].facts)
            self.bench.plan.taken[:] = self.admission.roster.batches()
        self.screening.restore(parts["screening"])
        self.catch_up.unsettled, self.late = _notes(parts["unsettled"]), by_client(parts, "late")
        self.status.refusals = _notes(parts["refusals"])
        self.contributed = set(parts["contributed"].facts["clients"]) if "contributed" in parts else set()

    # Asking

    def _recorded(self, job: str, messages: Mapping[int, Message], step: int) -> list[tuple[int, Reply]]:
        """Cards, reports and verdicts, from the journal if they had come before an interruption."""
        federation = self.federation
        at = (step, 0 if job == "card" else federation.plan.rounds(step) + RECORDED.index(job))
        kept = federation.checkpoints.recorded(at)
        if kept is None:
            if job == "settle":
                self._hear_the_late()
            replies = self._question(job, messages, step)
            if job == "card" and not replies:
                raise NobodyJoined(set(self.unreadable))
            parts = per_client("reply", {k: message for k, (message, _) in replies})
            parts |= per_client("late", self.late) if job == "settle" else {}
            parts |= {"missing": _noted(self.missing), "unreadable": _noted(self.unreadable)}
            federation.checkpoints.round(at, parts)
        else:
            replies = [(client, (message, Memory())) for client, message in by_client(kept, "reply").items()]
            self.missing, self.unreadable = _notes(kept["missing"]), _notes(kept["unreadable"])
            self.late = by_client(kept, "late")
        if job == "settle":
            for client, report in self.late.items():
                federation.method.keep_report(federation.state, client, report)
            self.late = {}
        return replies

    def _recorded_zero_shot(self, messages: Mapping[int, Message], step: int) -> list[tuple[int, Reply]]:
        """How newcomers are served before their first round; once they have trained, it cannot be measured again."""
        checkpoints = self.federation.checkpoints
        kept = checkpoints.recorded((step, 0)) or {}
        asked = set(kept["measured"].facts.get("clients", messages)) if "measured" in kept else set()
        new = {client: message for client, message in messages.items() if client not in asked}
        if new and checkpoints.recorded((step, 1)) is None:
            replies = self._question("score", new, step)
            kept |= per_client("score", {k: message for k, (message, _) in replies})
            kept["measured"] = Record(facts={"clients": sorted(asked | new.keys())})
            checkpoints.round((step, 0), kept)
        scores = by_client(kept, "score")
        return [(client, (scores[client], Memory())) for client in messages if client in scores]

    def _question(
        self, job: str, messages: Mapping[int, Message], step: int, round: int = 0
    ) -> list[tuple[int, Reply]]:
        self.missing, self.unreadable = {}, {}
        if job == "local":
            messages = self._attending(messages)
        futures = {k: self._call(job, step, k, message, round) for k, message in messages.items()}
        while job == "local" and wait(futures.values(), timeout=PAUSE).not_done:
            self.serve_returned()  # rounds are long
        replies = []
        for client, future in futures.items():
            try:
                message, memory = future.result()
                replies.append((client, (self._admit(job, client, messages[client], message), memory)))
                if job == "local":
                    self._changes[client] = change(messages[client], message)
                    self.attendance.uploaded(client)
            except Absent as error:
                self._missed(job, client, error)
            except BadMessage as error:
                self.unreadable[client] = str(error)
                if job != "local":
                    self.federation.tell("refused", {"step": step, "client": client, "reason": f"{job}: {error}"})
        return replies

    def _attending(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        """Without those who train no more; those who are passed over for a while are missing."""
        asked = {}
        for client, message in messages.items():
            if reason := self.attendance.passed_over(client):
                self.missing[client] = reason
            elif client not in self.attendance.finished:
                asked[client] = message
        return asked

    def _missed(self, job: str, client: int, error: Absent) -> None:
        news = self.attendance.missed(client, error) if job == "local" else None
        if job != "local" or client not in self.attendance.finished:
            self.missing[client] = str(error)
        if news:
            self.status.notice(f"{self.admission.roster.clients[client].name} {news}")
            self.status.show(self.federation.ledger)

    def _admit(self, job: str, client: int, sent: Message, reply: Message) -> Message:
        return self.door.admit(job, self.admission.roster.clients[client], sent, reply)

    def _personal(self, client: int) -> Message:
        return self.federation.serving.personal([client])[client]

    def _call(self, job: str, step: int, client: int, message: Message, round: int = 0) -> "Future[Reply]":
        return self.engine.submit(Call(job, self.bench.visit(step, round, client), message))

    def _node(self, client: int) -> int | None:
        return self.admission.node_of(self.admission.roster.clients[client].key)

    def _online(self, client: int) -> bool:
        return self._node(client) is not None

    def _note_control(self, client: int, step: int, score: Message) -> None:
        """A site that has trained alone as well, on the visits of its own step, tells how far that got it."""
        ledger = self.federation.ledger
        if CONTROL in score.facts and ledger.batch[client] == step:
            ledger.add_alone(client, 100.0 * float(score.facts[CONTROL]) / float(score.facts["count"]))

    # Who does not take part

    def forget(self, client: int) -> None:
        """A client has left: nothing about it is kept here."""
        self.offers.forget(client)
        self.catch_up.forget(client)
        self.late.pop(client, None)
        self.status.refusals.pop(client, None)
        self.screening.strikes.pop(client, None)
        self.contributed.discard(client)

    def _turn_away_cardless(self, step: int) -> None:
        for client, reason in self.missing.items():
            self.federation.ledger.turn_away(client, f"gave no card: {reason}")
            self.admission.release(client)
            self.federation.tell("absent", {"step": step, "client": client, "reason": reason})
        for client, reason in self.unreadable.items():
            self.federation.ledger.turn_away(client, f"card refused: {reason}")

    def _drop_revoked(self) -> None:
        gone = self.status.revoked()
        for client in (member.id for member in self.admission.roster.clients if member.key in gone):
            self.federation.ledger.turn_away(client, "revoked")
            self.offers.drop(client)

    # Those who were away

    def serve_returned(self) -> None:
        """End steps and hand over offers to clients that are online again; measure those that have answered."""
        self.exchange.check()
        self.status.catch_up(self.federation.ledger)
        federation, acc = self.federation, self.federation.ledger.acc
        for job, client, step, reply in self.catch_up.run():
            if isinstance(reply, str):
                federation.tell("refused", {"step": step, "client": client, "reason": f"{job}: {reply}"})
            elif job == "settle":
                self._settled(client, step, reply)
                if self.bench.config.existing != "follow":
                    self.catch_up.ask("keep", client, step)
            elif job == "receive":
                if self.offers.answer(step, client, reply.facts["accepted"]):
                    federation.tell("offer", {"step": step, "client": client, "accepted": reply.facts["accepted"]})
                    self.catch_up.ask("score", client, step)
            elif job == "score" and step <= len(acc):
                correct = 100.0 * reply.facts["correct"]["acc"] / reply.facts["count"]
                federation.ledger.correct(step, client, correct)
                self.status.show(federation.ledger)

    def _hear_the_late(self) -> None:
        """Whoever is back by the end of this step, and still owes the report of its own, counts from now on."""
        self.serve_returned()
        wait(self.catch_up.under_way("settle"), timeout=self.config.round_timeout)
        self.serve_returned()

    def _settled(self, client: int, step: int, report: Message) -> None:
        """A late report counts from the end of the step under way, where it is recorded."""
        del self.catch_up.unsettled[client]
        if not withheld(report):
            self.late[client] = report

    def begin(self, phase: Phase, step: int) -> None:
        """Show what the federation turns to."""
        self.status.begin(phase, step, self.federation.plan.rounds(step))
        self.status.show(self.federation.ledger)


def quorum(asked: int) -> int:
    """How many must tell their statistics: half of those asked, as those who withhold them are no part of a median.

    >>> quorum(2), quorum(20)
    (3, 10)
    """
    return max(TELLERS, (asked + 1) // 2)


def _noted(about: Mapping[int, int | str]) -> Record:
    return Record(facts={str(client): note for client, note in about.items()})


def _notes(record: Record) -> dict[int, Any]:
    return {int(client): note for client, note in record.facts.items()}
