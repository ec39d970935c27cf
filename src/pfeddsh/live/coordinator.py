"""The coordinator: the federation loop, with batches that arrive, clients that stay away and offers that wait.

It runs as Flower's ServerApp, knows Flower only as a `Transport`, and can be killed at any moment: clients, cards,
rounds and reports are on disk before they are acted upon.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pfeddsh.errors import UserError
from pfeddsh.federation.engines import Reply
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.observers import EventLog
from pfeddsh.federation.workbench import CONTROL, Call
from pfeddsh.live.board import Board
from pfeddsh.live.config import LiveConfig, load
from pfeddsh.live.engine import LiveBench, LiveEngine
from pfeddsh.live.exchange import Absent, Exchange
from pfeddsh.live.offers import Offers
from pfeddsh.live.reception import Reception
from pfeddsh.live.refusals import Watcher
from pfeddsh.live.registry import Registry
from pfeddsh.live.transport import Transport
from pfeddsh.live.wire import HELLO, encode
from pfeddsh.messages import BadMessage, Memory, Message, Record
from pfeddsh.results.checkpoint import Checkpoints
from pfeddsh.results.files import locked, write_text
from pfeddsh.results.ledger import Ledger
from pfeddsh.results.metrics import summary

PAUSE = 0.25  # between two looks while waiting
FIXED = ("method", "options", "classes", "seed", "mean", "std")  # of the configuration, once there is a state
ENOUGH = 3  # uploads from which on a cohort has a median worth comparing with


class LiveFederation(Federation):
    """A federation whose steps open when newcomers have come."""

    def __init__(
        self, config: LiveConfig, bench: LiveBench, engine: LiveEngine, exchange: Exchange, reception: Reception,
        checkpoints: Checkpoints, offers: Offers, board: Board,
    ) -> None:  # fmt: skip
        self.config, self.exchange, self.reception = config, exchange, reception
        self.offers, self.board = offers, board
        self.strikes: dict[int, int] = {}  # refused replies in a row
        self.missing: dict[int, str] = {}  # who did not answer the last question, and why
        self.unreadable: dict[int, str] = {}
        self.cardless: tuple[dict[int, str], dict[int, str]] = {}, {}  # both, when cards were asked for
        self.unsettled: dict[int, int] = {}  # who was away at the end of its step, and which that was
        self.settling: dict[int, tuple[int, Future[Reply]]] = {}
        self.deliveries: dict[int, tuple[int, Future[Reply]]] = {}
        self.checking: dict[int, tuple[int, Future[Reply]]] = {}
        super().__init__(bench, engine, checkpoints, [])
        self._grow()

    def run(self) -> Ledger:
        """From wherever the checkpoints say we are, until stopped or as many steps as the configuration asks for."""
        step, done = self.moment
        while self.config.steps is None or step <= self.config.steps:
            if step > len(self.plan.steps):
                self._await_batch(step)
            self._step(step, done)
            step, done = step + 1, 0
        self._phase("offering", step - 1)
        while any(self._online(k) for k in self.offers.pending) or self.deliveries or self.checking:
            self._deliver()
            time.sleep(PAUSE)
        self._phase("done", step - 1)
        return self.ledger

    # Batches

    def _await_batch(self, step: int) -> None:
        """Wait until enough newcomers are here, or some have waited long enough; meanwhile offers are delivered."""
        self._phase("waiting", step)
        seen: set[str] = set()
        while True:
            waiting = self.reception.waiting()
            if set(waiting) != seen:
                seen = set(waiting)
                self._show()
            if len(waiting) >= self.config.batch_min or max(waiting.values(), default=-1.0) >= self.config.batch_wait:
                break
            self._deliver()
            time.sleep(PAUSE)
        batch = self.reception.take(list(waiting))
        self._grow(batch)
        self._tell("batch", {"step": step, "clients": [self._name(k) for k in batch]})

    def _grow(self, batch: tuple[int, ...] = ()) -> None:
        """Make room in the ledger for a new batch."""
        if batch:
            self.bench.plan.taken.append(batch)  # type: ignore[attr-defined]  # a LivePlan
        ledger, clients = self.ledger, self.plan.clients
        ledger.batch = [next(t for t in self.plan.steps if k in self.plan.batch(t)) for k in range(clients)]
        rows = [*ledger.acc, *ledger.before, ledger.local, *getattr(ledger, "zero_shot", [])]
        for row in rows + [row for sibling in ledger.siblings.values() for row in sibling]:
            row += [None] * (clients - len(row))

    def _open(self, step: int) -> None:
        self._phase("training", step)
        super()._open(step)
        missing, unreadable = self.cardless
        for client, reason in missing.items():
            self.ledger.turn_away(client, f"gave no card: {reason}")
            self.reception.release(client)
            self._tell("absent", {"step": step, "client": client, "reason": reason})
        for client, reason in unreadable.items():
            self.ledger.turn_away(client, f"card refused: {reason}")

    # Rounds

    def _train(self, step: int, round: int) -> dict[str, Record]:
        """A round counts if enough answered well, or nobody is missing; else it is repeated, which costs little."""
        while True:
            gone = self.board.revoked()
            for client in (c.id for c in self.reception.registry.clients if c.key in gone):
                self.ledger.turn_away(client, "revoked")
                self.offers.drop(client)
            recorded = super()._train(step, round)
            facts = recorded["facts"].facts
            facts["refused"] |= {str(k): reason for k, reason in self.unreadable.items()}
            facts["absent"] = {str(k): reason for k, reason in self.missing.items()}
            self._bound(recorded)
            good = sum(key.startswith("upload/") for key in recorded)
            if good >= self.config.min_cohort or not facts["absent"]:
                return recorded
            self._tell("repeat", {"step": step, "round": round, "good": good, "absent": facts["absent"]})
            time.sleep(PAUSE)

    def _bound(self, recorded: dict[str, Record]) -> None:
        """Refuse uploads that are absurdly long beside the others of the round."""
        norms = {key: _norm(part) for key, part in recorded.items() if key.startswith("upload/")}
        if len(norms) < ENOUGH:
            return
        median = statistics.median(norms.values())
        for key, norm in norms.items():
            if norm > self.config.norm_bound * median:
                client = key[7:]
                del recorded[key], recorded[f"memory/{client}"]
                facts = recorded["facts"].facts
                facts["refused"][client] = f"norm {norm:.3g}, {norm / median:.0f} times the cohort's median"

    def _discipline(self, facts: dict[str, Any]) -> None:
        """Count refused replies in a row; who keeps sending them is left out from now on."""
        for client in facts["clients"]:
            if str(client) in facts["refused"]:
                self.strikes[client] = self.strikes.get(client, 0) + 1
            elif str(client) not in facts["absent"]:
                self.strikes.pop(client, None)
            if self.strikes.get(client, 0) >= self.config.quarantine_after:
                self.ledger.turn_away(client, f"quarantined after {self.strikes[client]} refused replies in a row")
                self.offers.drop(client)
                self._tell("quarantine", {"step": facts["step"], "round": facts["round"], "client": client})

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
            replies = self._ask(job, messages, step, round)
            while job == "card" and step == 1 and self.missing and not replies:
                replies = self._ask(job, messages, step, round)
            if at is not None:
                parts = {f"reply/{k}": message for k, (message, _) in replies}
                parts |= {"missing": _noted(self.missing), "unreadable": _noted(self.unreadable)}
                self.checkpoints.round((step, at), parts)
        else:
            replies = [(int(key[6:]), (part, Memory())) for key, part in kept.items() if key.startswith("reply/")]
            self.missing, self.unreadable = (_by_client(kept[name]) for name in ("missing", "unreadable"))
        if job == "card":
            self.cardless = self.missing, self.unreadable
        elif job == "settle":
            self.unsettled |= dict.fromkeys([*self.missing, *self.unreadable], step)
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
            self._deliver()  # rounds are long
        replies = []
        for client, future in futures.items():
            try:
                reply = future.result()
                _check_facts(job, reply[0])
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

    # Offers that wait

    def _deliver(self) -> None:
        """Hand pending offers to clients that are online again; measure those that have answered.

        A client that was away at the end of its own step is told first that it is over, and so gets its model.
        """
        self.exchange.check()
        for client, step in self.unsettled.items():
            if client not in self.settling and self._online(client):
                self.settling[client] = step, self._call("settle", step, client, self._served([client])[client])
        for client, _, _ in _arrived("settle", self.settling):
            del self.unsettled[client]
        for client, (step, message) in self.offers.pending.items():
            if client not in self.deliveries and self._online(client):
                self.deliveries[client] = step, self._call("receive", step, client, message)
        for client, step, reply in _arrived("receive", self.deliveries):
            if self.offers.answer(step, client, reply.facts["accepted"]):
                self._tell("offer", {"step": step, "client": client, "accepted": reply.facts["accepted"]})
                self.checking[client] = step, self._call("score", step, client, self._served([client])[client])
        for client, step, reply in _arrived("score", self.checking):
            if step <= len(self.ledger.acc):
                self.ledger.acc[step - 1][client] = 100.0 * reply.facts["correct"]["acc"] / reply.facts["count"]
                self._show()

    def _call(self, job: str, step: int, client: int, message: Message, round: int = 0) -> "Future[Reply]":
        return self.engine.submit(Call(job, self.bench.visit(step, round, client), message))

    # Telling

    def _name(self, client: int) -> str:
        return self.reception.registry.clients[client].name

    def _online(self, client: int) -> bool:
        return self.reception.node_of(self.reception.registry.clients[client].key) is not None

    def _phase(self, phase: str, step: int) -> None:
        self.board.phase, self.board.step, self.board.eta = phase, step, None
        self.board.round, self.board.rounds = 0, self.plan.rounds(step)
        self._show()

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "round":
            board, rounds = self.board, self.plan.rounds(facts["step"])
            board.step, board.round, board.rounds = facts["step"], facts["round"] + 1, rounds
            board.eta = facts["seconds"] * (rounds - board.round)
            board.phase = "training" if board.round < rounds else "replaying"
            self._discipline(facts)
        elif kind == "refused":
            client = facts["client"]
            self.board.refuse(self._name(client), facts["reason"])
            self.board.refusals[client] = self.board.refusals.get(client, 0) + 1
        super()._tell(kind, facts)
        self._show()

    def _show(self) -> None:
        self.board.show(self.ledger)

    # Checkpoints

    def _parts(self) -> dict[str, Record]:
        own = {"strikes": self.strikes, "unsettled": self.unsettled, "refusals": self.board.refusals}
        return {**super()._parts(), **{name: _noted(about) for name, about in own.items()}}

    def _adopt(self, parts: dict[str, Record]) -> None:
        super()._adopt(parts)
        self.strikes, self.unsettled = _by_client(parts["strikes"]), _by_client(parts["unsettled"])
        self.board.refusals = _by_client(parts["refusals"])


def _noted(about: Mapping[int, int | str]) -> Record:
    return Record(facts={str(client): note for client, note in about.items()})


def _by_client(record: Record) -> dict[int, Any]:
    return {int(client): note for client, note in record.facts.items()}


def _arrived(job: str, waiting: dict[int, tuple[int, Future[Reply]]]) -> list[tuple[int, int, Message]]:
    """Take out what is answered: client, step and reply. Who did not answer properly is asked again some time."""
    replies = []
    for client, (step, future) in list(waiting.items()):
        if future.done():
            del waiting[client]
            with suppress(Absent, BadMessage):
                message = future.result()[0]
                _check_facts(job, message)
                replies.append((client, step, message))
    return replies


def _check_facts(job: str, reply: Message) -> None:
    """Refuse an answer or a score that cannot be read; tensors are checked by the loop."""
    if job == "receive" and not isinstance(reply.facts.get("accepted"), bool):
        raise BadMessage("the answer to an offer is neither yes nor no")
    if job == "score":
        count, correct = reply.facts.get("count"), reply.facts.get("correct")
        if not (isinstance(count, int) and isinstance(correct, dict) and "acc" in correct):
            raise BadMessage("not a score")
        told = [*correct.values(), reply.facts.get(CONTROL, 0)]
        if count < 1 or not all(isinstance(value, int) and 0 <= value <= count for value in told):
            raise BadMessage(f"a score of {told} in {count}")


def _norm(upload: Record) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in upload.tensors.values() if t.is_floating_point()))


def coordinate(folder: Path, transport: Transport, authenticated: bool) -> None:
    """Run the federation of a folder until it is done; what is done is in results.json."""
    config = load(folder)
    state = folder / "state"
    state.mkdir(exist_ok=True)
    with locked(state):
        write_text(folder / "coordinator.pid", f"{os.getpid()}\n")
        _check_unchanged(config, state / "federation.json")
        torch.set_num_threads(1)
        registry = Registry.load(folder / "clients.json")
        offers = Offers(state / "offers.safetensors")
        exchange = Exchange(transport)
        hello = encode({"job": HELLO, "settings": config.for_sites()}, Message())
        reception = Reception(
            exchange, registry, hello, min(60.0, config.round_timeout), authenticated,
            lambda name, reason: board.refuse(name, reason),
        )  # fmt: skip
        board = Board(folder / "status.json", reception, offers, Watcher(folder))
        exchange.on_nodes = reception.on_nodes
        bench = LiveBench(config, registry.batches())
        engine = LiveEngine(bench, config, exchange, reception)
        exchange.start()
        try:
            _let_everyone_in(reception, exchange)
            checkpoints = Checkpoints(state)
            federation = LiveFederation(config, bench, engine, exchange, reception, checkpoints, offers, board)
            federation.observers.append(EventLog(folder / "events.jsonl", federation.moment))
            ledger = federation.run()
        finally:
            engine.close()
        write_text(folder / "results.json", json.dumps(results(config, ledger, offers), indent=1) + "\n")


def results(config: LiveConfig, ledger: Ledger, offers: Offers) -> dict[str, Any]:
    """As results.json of a simulated run, as far as a live one knows."""
    return {
        "schema": 1,
        "method": config.method,
        "seed": config.seed,
        "clients": ledger.plan.clients,
        "steps": len(ledger.acc),
        "batch": ledger.batch,
        "acc": ledger.acc,
        "acc_before_replay": ledger.before,
        "local": ledger.local,
        **summary(ledger.acc, ledger.batch, ledger.local),
        "offers": offers.counts(),
        "accepted": ledger.accepted,
        "bytes": {name: int(ledger.totals[name]) for name in ("down", "up")},
        "refused": {"uploads": int(ledger.totals["refused"]), "clients": {str(k): v for k, v in ledger.absent.items()}},
    }


def _check_unchanged(config: LiveConfig, path: Path) -> None:
    """The settings a state was made with cannot change under it."""
    fixed = {name: value for name, value in config.for_sites().items() if name in FIXED}
    if not path.exists():
        write_text(path, json.dumps(fixed, indent=1) + "\n")
        return
    before = json.loads(path.read_text())
    changed = [name for name in fixed if before.get(name) != fixed[name]]
    if changed:
        raise UserError(
            f"federation.toml: {', '.join(changed)} cannot change in a federation that has begun; set it back to "
            + ", ".join(f"{name} = {before.get(name)}" for name in changed)
        )


def _let_everyone_in(reception: Reception, exchange: Exchange, patience: float = 60.0) -> None:
    """After a restart, hear who is there before anyone is taken for absent."""
    deadline = time.monotonic() + patience
    while not reception.settled() and time.monotonic() < deadline:
        exchange.check()
        time.sleep(0.1)
