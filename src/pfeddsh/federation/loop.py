"""The federation loop: step { round { download -> local -> aggregate } settle, close, replay, evaluate everyone }.

It knows neither what a method does nor where calls run. Everything it holds can be rebuilt from a snapshot and the
journal, so a resumed run takes the same path through this file as one that was never interrupted.
"""

import math
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

from pfeddsh.errors import UserError
from pfeddsh.federation.alone import LocalOnly
from pfeddsh.federation.clients import Clients, Round, Simulated
from pfeddsh.federation.engines import Engine
from pfeddsh.federation.existing import Existing
from pfeddsh.federation.observers import Observer
from pfeddsh.federation.panel import panel
from pfeddsh.federation.serving import Serving
from pfeddsh.federation.workbench import SERVER, Call, Workbench
from pfeddsh.messages import BadMessage, Compute, Message, Parts, Record, State, check, withheld
from pfeddsh.results.ledger import Ledger
from pfeddsh.storage.checkpoint import Checkpoints, Moment
from pfeddsh.storage.store import Own


class Federation:
    """One run in progress."""

    def __init__(
        self,
        bench: Workbench,
        engine: Engine,
        checkpoints: Checkpoints,
        observers: Iterable[Observer],
        clients: Clients | None = None,
    ) -> None:
        self.bench, self.method, self.plan = bench, bench.method, bench.plan
        self.engine, self.checkpoints, self.observers = engine, checkpoints, list(observers)
        self.clients = clients or Simulated(bench, engine)
        self.ledger = Ledger(self.plan)
        self.ledger.sampled = bench.config.evaluate != "all"
        self.serving = Serving(self.method, self.clients, self.ledger, checkpoints.store)
        self.existing = Existing(self.serving, self.plan, checkpoints.store)
        self.controls = LocalOnly(bench, engine, self.ledger, self.tell)
        self.rows: MutableMapping[int, Record] = Own(checkpoints.store, "rows")  # of the ledger, by step
        self.moment = self._restore()

    def run(self) -> Ledger:
        """From wherever the checkpoints say we are to the end, with every client's local-only control."""
        self.train()
        self.ledger.local = [self.controls.wait(client) for client in range(self.plan.clients)]
        return self.ledger

    def train(self) -> None:
        """All steps; controls are only begun."""
        first, done = self.moment
        self.controls.start()
        for step in range(first, len(self.plan.steps) + 1):
            self.step(step, done)
            done = 0

    @property
    def state(self) -> State:
        return self.serving.state

    # One step

    def step(self, step: int, done: int) -> None:
        """One step, of which so many rounds are already done."""
        if done == 0:
            self._open(step)
        for round in range(done, self.plan.rounds(step)):
            if not self._round(step, round):
                break
            if self.checkpoints.due((step, round + 1)):
                self._snapshot(step, round + 1)
        self._close(step)
        self._snapshot(step + 1, 0)

    def _open(self, step: int) -> None:
        """Newcomers tell of themselves; one with a malformed card is refused, and the step goes on without it."""
        greeting = self.method.greeting(self.state)
        cards = {}
        for client, (card, memory) in self.serving.ask("card", dict.fromkeys(self.plan.batch(step), greeting), step):
            self.ledger.add_transfer(down=greeting.nbytes, up=card.nbytes)
            try:
                self.method.check_card(card)
            except BadMessage as error:
                self.ledger.turn_away(client, f"card refused: {error}")
                self.tell("refused", {"step": step, "client": client, "reason": str(error)})
                continue
            cards[client] = card
            self.serving.remember(client, memory)
        if step == 1 and not cards:
            raise UserError("every client of the first batch was turned away; events.jsonl says why")
        self.method.open_step(self.state, step, self.plan.rounds(step), cards)
        if (reason := self.method.trouble(self.state)) is not None:
            self.ledger.warn(step, reason)
            self.tell("warning", {"step": step, "reason": reason})
        self.ledger.add_zero_shot(
            self.serving.row(self.serving.evaluate(step, list(cards) if self.method.zero_shot else [])["acc"])
        )

    def _round(self, step: int, round: int) -> bool:
        """One round, from the journal if it was already computed before an interruption; False if it is the last."""
        recorded = self.checkpoints.recorded((step, round + 1))
        if recorded is None:
            brought = self.clients.train(lambda: self._attempt(step, round))
            self.checkpoints.round((step, round + 1), brought.parts())
        else:
            brought = Round.read(recorded)
        for client, memory in brought.memories.items():
            self.serving.remember(client, memory)
        began = time.perf_counter()
        if self._frozen(step):
            downloads = self.serving.downloads(list(brought.uploads))
            self.serving.private.update({k: self.method.alone(downloads[k], up) for k, up in brought.uploads.items()})
        elif brought.uploads:
            self.method.aggregate(self.state, brought.uploads)
        facts = dict(brought.facts)  # a copy: the journal may still be writing what the round brought
        facts["server_seconds"] += time.perf_counter() - began
        self.ledger.add_round(facts)
        for client, reason in facts["refused"].items():
            self.tell("refused", {"step": step, "round": round, "client": int(client), "reason": reason})
        self.tell("round", facts)
        return not facts.get("abandoned")

    def _attempt(self, step: int, round: int) -> Round:
        """Send the sampled clients their downloads, and collect the uploads that pass the checks."""
        began = time.perf_counter()
        cohort = [k for k in self.plan.cohort(step, round) if k not in self.ledger.absent]
        if self.method.pools_data:
            cohort = cohort[:1]
        downloads = self.serving.downloads(cohort)
        generated = time.perf_counter() - began
        facts: dict[str, Any] = {"step": step, "round": round, "clients": cohort, "refused": {}}
        brought = Round(facts)
        up = once_up = samples = 0
        losses = []
        for client, (upload, memory) in self.serving.ask("local", downloads, step, round):
            up += upload.nbytes
            once_up += self._once(upload)
            brought.memories[client] = memory  # the client's own, whatever becomes of what it sent
            try:
                self.method.check_upload(downloads[client], upload)
            except BadMessage as error:
                facts["refused"][str(client)] = str(error)
                continue
            brought.uploads[client] = upload
            samples += upload.facts["samples"]
            loss = upload.facts.get("loss")
            losses += [loss] if isinstance(loss, float) and math.isfinite(loss) else []  # told, not trusted
        facts |= {
            "loss": sum(losses) / len(losses) if losses else None,
            "samples": samples,
            "down": sum(download.nbytes for download in downloads.values()),
            "up": up,
            "once_down": sum(self._once(download) for download in downloads.values()),
            "once_up": once_up,
            "seconds": time.perf_counter() - began,
            "server_seconds": generated,
        }
        return brought

    def _close(self, step: int) -> None:
        """Participants settle, the method closes the step and may replay; everyone is evaluated before and after."""
        settling = [k for k in self.plan.participants(step) if k not in self.ledger.absent]
        reports = {}
        for client, (report, memory) in self.serving.ask("settle", self.serving.personal(settling), step):
            self.serving.remember(client, memory)
            self.ledger.add_transfer(up=report.nbytes)
            try:
                check(report, self.method.expected_report())
                reports[client] = report
            except BadMessage as error:
                if not withheld(report):  # by the client's own policy: then it is as if it had been away
                    self.tell("refused", {"step": step, "client": client, "reason": f"report refused: {error}"})
        if not self._frozen(step):
            if told := self.existing.consult(step, reports):
                self.tell("version", {"step": step, **told})
            self.method.close_step(self.state, reports)
        newcomers = [k for k in self.plan.batch(step) if k not in self.ledger.absent]
        existing = self.existing.at(step)
        if self.bench.config.existing != "follow":
            for client, (_, memory) in self.serving.ask_served("keep", newcomers, step):
                self.serving.remember(client, memory)
        guarded = self.bench.config.existing == "guard"
        shown = existing if (count := self.bench.config.evaluate) == "all" else panel(self.plan.seed, existing, count)
        found = self.serving.evaluate(step, newcomers if guarded else newcomers + shown)
        if guarded and step > 1:  # until they are offered another model, they are where they were
            last = self.ledger.acc[-1]
            found["acc"] |= {k: a for k in shown if (a := last[k]) is not None}
        before = {rule: self.serving.row(row) for rule, row in found.items()}
        began = time.perf_counter()
        offers = {} if self._frozen(step) else self.method.replay(self.state, self._computer(step))
        seconds = time.perf_counter() - began
        due = list(offers)
        if guarded and not self._frozen(step):
            due += self.existing.due(step, shown, offers)
        accepted = self.existing.offer(step, due, offers)
        looked_at = {*newcomers, *shown}
        found = self.serving.evaluate(step, [k for k in due if k in looked_at])
        after = {rule: self.serving.row(found.get(rule, {}), before.get(rule)) for rule in before | found}
        self.ledger.add_step(before, after, seconds, accepted, self.method.capacity(self.state))
        self.controls.take_over()
        self.tell("step", {"step": step, **self.ledger.step_facts(step)})

    # Helpers

    def _frozen(self, step: int) -> bool:
        return step > 1 and self.bench.config.later in ("frozen", "frozen-head")

    def _once(self, message: Message) -> int:
        """Bytes of a message that do not travel in every round."""
        return Message({name: part for name, part in message.tensors.items() if name in self.method.once}).nbytes

    def _computer(self, step: int) -> Compute:
        """Runs a server job of the method on every message, in parallel."""

        def compute(job: str, messages: list[Message]) -> list[Message]:
            visits = [self.bench.visit(step, i, SERVER) for i in range(len(messages))]
            futures = [self.engine.submit(Call(job, v, m)) for v, m in zip(visits, messages, strict=True)]
            return [future.result()[0] for future in futures]

        return compute

    def _snapshot(self, step: int, done: int) -> None:
        self.controls.collect()
        self.checkpoints.snapshot((step, done), self._parts())

    def rewrite(self, moment: Moment) -> None:
        """A snapshot in place of all others, after something was deleted from the state."""
        self.checkpoints.rewrite(moment, self._parts())

    def _parts(self) -> Parts:
        """Everything that a resumed run needs."""
        if self.checkpoints.whole:
            facts = self.ledger.facts()
        else:
            facts = self.ledger.brief()
            self.rows.update(self.ledger.changed())
            self.checkpoints.settle(self.state, self.method.settled(self.state))
        parts = {"state": self.state, "ledger": Record(facts=facts), "answered": self.existing.save()}
        return parts | self.clients.save()

    def _restore(self) -> Moment:
        found = self.checkpoints.latest()
        if found is None:
            return 1, 0
        moment, parts = found
        self._adopt(parts)
        return moment

    def _adopt(self, parts: Parts) -> None:
        """Continue from a snapshot; one that another form of the method left is refused before anything is written."""
        found, fresh = parts["state"], self.state
        if lacking := (fresh.tensors.keys() - found.tensors.keys()) | (fresh.facts.keys() - found.facts.keys()):
            raise UserError(
                f"{self.checkpoints.folder}: this state is from another version of pfeddsh, whose method kept other "
                f"things (here {', '.join(sorted(lacking))} is missing); continue it with that version"
            )
        self.serving.state = found
        self.existing.restore(parts.get("answered", Record()))
        self.clients.restore(parts)
        self.ledger.restore(parts["ledger"].facts, self.rows)

    def tell(self, kind: str, facts: dict[str, Any]) -> None:
        for observer in self.observers:
            observer.event(kind, facts)
