"""What a run has measured so far, and the public contract `results.json` made of it."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from pfeddsh.config import Config
from pfeddsh.data.datasets import Dataset
from pfeddsh.results.metrics import proactive_adaptation, retroactive_improvement, sampled_adaptation, summary
from pfeddsh.results.privacy import spent
from pfeddsh.results.visits import visits
from pfeddsh.schedule import Schedule

SCHEMA = 1
REASONS = 5  # that are kept, of refused uploads; events.jsonl has them all


Rows = dict[str, list[float | None]]


class Ledger:
    """Accuracies per step, bytes and seconds. Everything in it survives in the snapshots."""

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.batch = [next(t for t in plan.steps if k in plan.batch(t)) for k in range(plan.clients)]
        self.acc: list[list[float | None]] = []
        self.before: list[list[float | None]] = []
        self.siblings: dict[str, list[list[float | None]]] = {}  # accuracies under other rules, e.g. without the guard
        self.accepted: list[float | None] = []
        self.capacity: list[dict[str, dict[str, int]] | None] = []
        self.local: list[float | None] = [None] * plan.clients
        self.absent: dict[int, str] = {}
        counted = ("rounds", "visits", "refused", "down", "up", "once_down", "once_up", "seconds", "server")
        self.totals: dict[str, float] = dict.fromkeys(counted, 0)
        self.replay_seconds: list[float] = []
        self.zero_shot: list[list[float | None]] = []
        self.refusals: dict[str, int] = {}  # of uploads, by reason; the first few reasons
        self.warnings: list[dict[str, Any]] = []

    def grow(self) -> None:
        """Make room for clients that the plan has taken in since; forget those it has let go again."""
        clients = self.plan.clients
        self.absent = {k: why for k, why in self.absent.items() if k < clients}
        self.batch = [next(t for t in self.plan.steps if k in self.plan.batch(t)) for k in range(clients)]
        rows = [*self.acc, *self.before, self.local, *self.zero_shot]
        for row in rows + [row for sibling in self.siblings.values() for row in sibling]:
            row += [None] * (clients - len(row))
            del row[clients:]

    def turn_away(self, client: int, reason: str) -> None:
        self.absent[client] = reason

    def forget(self, client: int, reason: str) -> None:
        """A client has left: it takes part in nothing, and what was measured of it goes."""
        self.turn_away(client, reason)
        rows = [*self.acc, *self.before, self.local, *self.zero_shot]
        for row in rows + [row for sibling in self.siblings.values() for row in sibling]:
            row[client] = None

    def warn(self, step: int, reason: str) -> None:
        """The method cannot work as meant from this step on."""
        self.warnings.append({"step": step, "reason": reason})

    @property
    def nothing_accepted(self) -> bool:
        """Whether clients trained and every single upload so far was refused."""
        return 0 < self.totals["visits"] == self.totals["refused"]

    def add_round(self, facts: dict[str, Any]) -> None:
        self.totals["rounds"] += 1
        self.totals["visits"] += len(facts["clients"])
        self.totals["refused"] += len(facts["refused"])
        for reason in facts["refused"].values():
            if reason in self.refusals or len(self.refusals) < REASONS:
                self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self.totals["down"] += facts["down"] - facts["once_down"]
        self.totals["up"] += facts["up"] - facts["once_up"]
        self.add_transfer(facts["once_down"], facts["once_up"])
        self.totals["seconds"] += facts["seconds"]
        self.totals["server"] += facts["server_seconds"]

    def add_transfer(self, down: int = 0, up: int = 0) -> None:
        """Bytes outside the ordinary exchange of a round: greetings, cards, reports, offers, what is sent once."""
        self.totals["once_down"] += down
        self.totals["once_up"] += up

    def add_zero_shot(self, row: list[float | None]) -> None:
        """Accuracy of the step's newcomers before any of its rounds; None where the method cannot serve them yet."""
        self.zero_shot.append(row)

    def add_step(
        self,
        before: Rows,
        after: Rows,
        replay_seconds: float,
        accepted: dict[int, bool],
        capacity: dict[str, dict[str, int]] | None,
    ) -> None:
        """Evaluations before and after replay, each by rule; `acc` is the one the configuration chose."""
        self.before.append(before["acc"])
        self.acc.append(after["acc"])
        for rule in (self.siblings.keys() | after.keys()) - {"acc"}:
            rows = self.siblings.setdefault(rule, self.acc[:-1])  # before there was a choice, all rules were one
            rows.append(after.get(rule, after["acc"]))
        step = len(self.acc)
        answers = [yes for k, yes in accepted.items() if self.batch[k] < step]
        self.accepted.append(sum(answers) / len(answers) if answers else None)
        self.capacity.append(capacity)
        self.replay_seconds.append(replay_seconds)

    def step_facts(self, step: int) -> dict[str, Any]:
        """What the step just closed came to, in its newcomers, in everyone, in RI and in channels taken."""
        row = self.acc[step - 1]
        everyone = [a for a in row if a is not None]
        own = [a for k in self.plan.batch(step) if (a := row[k]) is not None]
        return {
            "accuracy": sum(own) / len(own) if own else None,
            "accuracy_everyone": sum(everyone) / len(everyone) if everyone else None,
            "ri": retroactive_improvement(self.acc, self.batch)[-1],
            "accepted": self.accepted[-1],
            "capacity": self.capacity[-1],
            "replay_seconds": self.replay_seconds[-1],
        }

    def facts(self) -> dict[str, Any]:
        return {
            "acc": self.acc,
            "before": self.before,
            "local": self.local,
            "absent": [[k, why] for k, why in self.absent.items()],
            "totals": self.totals,
            "replay_seconds": self.replay_seconds,
            "siblings": self.siblings,
            "accepted": self.accepted,
            "capacity": self.capacity,
            "zero_shot": self.zero_shot,
            "refusals": self.refusals,
            "warnings": self.warnings,
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.acc, self.before, self.local = facts["acc"], facts["before"], facts["local"]
        self.totals = facts["totals"]
        self.absent = {k: why for k, why in facts["absent"]}
        self.replay_seconds, self.siblings = facts["replay_seconds"], facts["siblings"]
        self.accepted, self.capacity = facts["accepted"], facts["capacity"]
        self.zero_shot = facts["zero_shot"]
        self.refusals, self.warnings = facts.get("refusals", {}), facts.get("warnings", [])  # not in older snapshots

    def results(self, config: Config, dataset: Dataset, total_seconds: float) -> dict[str, Any]:
        """The content of results.json; other programs read it."""
        calls, rounds = max(1.0, self.totals["visits"]), max(1.0, self.totals["rounds"])
        sampled = visits(self.plan)
        return {
            "schema": SCHEMA,
            "method": config.method,
            "dataset": dataset.name,
            "schedule": config.schedule,
            "seed": config.seed,
            "clients": self.plan.clients,
            "steps": len(self.plan.steps),
            "batch": self.batch,
            "acc": self.acc,
            "acc_before_replay": self.before,
            "local": self.local,
            **summary(self.acc, self.batch, self.local),
            "visits": sampled,
            "pa_sampled": sampled_adaptation(self.acc, self.batch, self.local, sampled),
            "pa_zero_shot": proactive_adaptation(self.zero_shot, self.batch, self.local),
            "payload_kib": {  # per visit, and per client what is sent outside the rounds or once
                **{name: self.totals[name] / calls / 1024 for name in ("down", "up")},
                **{name: self.totals[name] / self.plan.clients / 1024 for name in ("once_down", "once_up")},
            },
            "seconds": {
                "round_mean": self.totals["seconds"] / rounds,
                "server_round_mean": self.totals["server"] / rounds,
                "replay_per_step": self.replay_seconds,
                "total": total_seconds,
            },
            "capacity": self.capacity,
            "accepted": self.accepted,
            **self.siblings,
            "refused": {"uploads": int(self.totals["refused"]), "clients": {str(k): v for k, v in self.absent.items()}},
            "uploads": {"sent": int(self.totals["visits"]), "refused_for": self.refusals},
            "warnings": self.warnings,
            "options": config.options,
            **spent(config, self.plan),
            "protocol": config.protocol(),
            "environment": environment(dataset),
        }


def environment(dataset: Dataset) -> dict[str, Any]:
    """What a number depends on besides the configuration."""
    packages = ("pfeddsh", "torch", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "revision": _revision(),
        "data": dataset.fingerprint,
        "shape": list(dataset.shape),
        "images": list(dataset.notes),
    }


def _revision() -> str | None:
    """The git revision of the source tree, if it is one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
