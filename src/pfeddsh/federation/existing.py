"""What existing clients are asked and offered, once a step: they judge a version, and take it or keep their model."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from pfeddsh.federation.serving import Serving
from pfeddsh.messages import Message, Record
from pfeddsh.rng import numpy_stream
from pfeddsh.schedule import Schedule
from pfeddsh.storage.store import Own, Store


class Existing:
    """Offers of the versions, and those that wait for clients who were not looked at since."""

    def __init__(self, serving: Serving, plan: Schedule, store: Store) -> None:
        self._serving, self._method, self._ledger, self._plan = serving, serving.method, serving.ledger, plan
        self._waiting: MutableMapping[int, Message] = Own(store, "offer")  # by step: some have not seen it
        self._answered: dict[int, int] = {}  # the last such step whose offer a client has answered

    def at(self, step: int) -> list[int]:
        own, absent = set(self._plan.batch(step)), self._ledger.absent
        return [k for k in self._plan.onboarded(step) if k not in own and k not in absent]

    def consult(self, step: int, reports: dict[int, Message]) -> dict[str, Any]:
        """A few say, by a forward pass, what the method wants to know before it closes the step; what came of it."""
        state, method = self._serving.state, self._method
        question = method.question(state, reports)
        existing = [] if question is None else self.at(step)
        if question is None or not existing:
            return {}
        count = min(method.judges, len(existing))
        drawn = numpy_stream(self._plan.seed, "judges", step).choice(len(existing), size=count, replace=False)
        judges = [existing[i] for i in sorted(drawn)]
        self._hand_over(step, judges)
        answers = {}
        for client, (answer, _) in self._serving.ask("judge", dict.fromkeys(judges, question), step):
            self._ledger.add_transfer(down=question.nbytes, up=answer.nbytes)
            if "share" in answer.facts:  # else its own policy withholds it
                answers[client] = answer
        if 2 * len(answers) < len(judges):
            answers = {}  # too few to speak for the others: most of them could be lying
        return method.decide(state, answers)

    def due(self, step: int, shown: list[int], offers: Mapping[int, Message]) -> list[int]:
        """Who is offered the step's version now: everyone, unless a sample is looked at and all are offered the same.

        Then the offer is kept, and waits for whoever is looked at later; the answer is the same whenever it is given.
        """
        existing = self.at(step)
        common = self._method.offer(self._serving.state) if len(shown) < len(existing) else None
        if common is not None:
            self._waiting[step] = common
        return [k for k in (existing if common is None else shown) if k not in offers]

    def offer(self, step: int, due: list[int], offers: Mapping[int, Message]) -> dict[int, bool]:
        """Hand over this step's offers, after those that clients have waited for; what was said of this one."""
        self._hand_over(step, due)
        accepted = {}
        for client, (answer, memory) in self._serving.ask_served("receive", due, step, offers):
            accepted[client] = bool(answer.facts["accepted"])
            self._serving.remember(client, memory)
        return accepted

    def _hand_over(self, step: int, clients: Iterable[int]) -> None:
        """Offers of earlier steps that these clients were not asked about yet, in order."""
        seen = {k: max(self._ledger.last_seen(k), self._answered.get(k, 0)) for k in clients}
        for missed in range(min(seen.values(), default=step) + 1, step):
            late = [k for k in seen if seen[k] < missed] if missed in self._waiting else []
            kept = dict.fromkeys(late, self._waiting[missed]) if late else {}
            for client, (_, memory) in self._serving.ask_served("receive", late, missed, kept):
                self._serving.remember(client, memory)
                self._answered[client] = missed

    def save(self) -> Record:
        return Record(facts={str(client): step for client, step in self._answered.items()})

    def restore(self, saved: Record) -> None:
        self._answered = {int(k): step for k, step in saved.facts.items()}
