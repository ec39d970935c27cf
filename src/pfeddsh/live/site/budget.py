"""What a site has spent of its privacy budget, and how often it has trained today: `budget.json`.

Written before the message leaves that it pays for. A crash in between spends too much, never too little.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.site.policy import NoTraining, Policy, PolicyRefusal
from pfeddsh.mechanisms import accounting
from pfeddsh.mechanisms.accounting import Event
from pfeddsh.storage.files import write_text

SCHEMA = 1


class Budget:
    """Everything this site ever spent, whatever its policy was at the time."""

    def __init__(self, home: Path, policy: Policy) -> None:
        self._path, self.policy = home / "budget.json", policy
        self.spent: dict[Event, int] = {}
        self.day, self.rounds = "", 0
        if self._path.exists():
            try:
                content = json.loads(self._path.read_text())
                if content["schema"] != SCHEMA:
                    raise ValueError(f"schema {content['schema']}, expected {SCHEMA}")
                self.spent = {(str(kind), float(noise)): int(count) for kind, noise, count in content["spent"]}
                self.day, self.rounds = str(content["day"]), int(content["rounds"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{self._path} is damaged ({error}); restore it from a backup") from error

    def check(self, job: str, asked: Iterable[str] = ()) -> None:
        """Refuse what would exceed the budget, or the rounds of the day, before any work is done."""
        policy, event = self.policy, self.policy.cost(job, asked)
        if job == "local" and policy.rounds_a_day and self.today() >= policy.rounds_a_day:
            reason = f"this site trains at most {policy.rounds_a_day} rounds a day, and has done so today"
            raise NoTraining(reason, _until_tomorrow())
        if policy.epsilon and event and self._with(event) > policy.epsilon:
            if job == "local":
                raise NoTraining("this site's privacy budget is spent", None)
            raise PolicyRefusal("this site's privacy budget is spent: it has nothing left to tell of its data")

    def spend(self, job: str, asked: Iterable[str] = ()) -> None:
        event = self.policy.cost(job, asked)
        if event:
            self.spent[event] = self.spent.get(event, 0) + 1
        if job == "local":
            self.day, self.rounds = _today(), self.today() + 1
        if event or job == "local":
            spent = [[kind, noise, count] for (kind, noise), count in self.spent.items()]
            content = {"schema": SCHEMA, "spent": spent, "day": self.day, "rounds": self.rounds}
            write_text(self._path, json.dumps(content, indent=1) + "\n")

    def today(self) -> int:
        """How often this site has trained today."""
        return self.rounds if self.day == _today() else 0

    def epsilon(self) -> float | None:
        """Spent so far, for the policy's delta; None if nothing can be said, as there is no accountant."""
        return accounting.epsilon(self.spent, self.policy.delta) if accounting.installed() else None

    def left(self) -> bool:
        """Whether the budget allows one more upload."""
        event = self.policy.cost("local")
        return not (self.policy.epsilon and event and self._with(event) > self.policy.epsilon)

    def _with(self, event: Event) -> float:
        return accounting.epsilon({**self.spent, event: self.spent.get(event, 0) + 1}, self.policy.delta)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _until_tomorrow() -> float:
    """Seconds that are left of the day."""
    now = datetime.now(UTC)
    return (datetime.combine(now.date() + timedelta(days=1), time(), UTC) - now).total_seconds()
