"""What a run has measured so far, and the public contract `results.json` made of it."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pfeddsh.config import Config
from pfeddsh.data.datasets import Dataset
from pfeddsh.messages import Record
from pfeddsh.results import rows
from pfeddsh.results.metrics import changes, mean, proactive_adaptation, sampled_adaptation, summary
from pfeddsh.results.privacy import spent
from pfeddsh.results.sampled import estimate, evaluated
from pfeddsh.results.visits import visits
from pfeddsh.schedule import Schedule

SCHEMA = 1
REASONS = 5  # that are kept, of refused uploads; events.jsonl has them all


Rows = rows.Rows


class Ledger:
    """Accuracies per step, bytes and seconds. Everything in it survives in the snapshots."""

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.batch = _batches(plan)
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
        self.sampled = False  # whether only some of the existing clients are evaluated
        self._changed: set[int] = set()  # steps whose rows are not stored as they are

    def grow(self) -> None:
        """Make room for clients that the plan has taken in since; forget those it has let go again."""
        clients = self.plan.clients
        self.absent = {k: why for k, why in self.absent.items() if k < clients}
        self.batch = _batches(self.plan)
        every = [*self.acc, *self.before, self.local, *self.zero_shot]
        for row in every + [row for sibling in self.siblings.values() for row in sibling]:
            row += [None] * (clients - len(row))
            del row[clients:]

    def turn_away(self, client: int, reason: str) -> None:
        self.absent[client] = reason

    def forget(self, client: int, reason: str) -> None:
        """A client has left: it takes part in nothing, and what was measured of it goes."""
        self.turn_away(client, reason)
        every = [*self.acc, *self.before, self.local, *self.zero_shot]
        for row in every + [row for sibling in self.siblings.values() for row in sibling]:
            row[client] = None
        self._changed |= set(self.plan.steps)

    def add_alone(self, client: int, accuracy: float) -> None:
        """The accuracy of a client's local-only control."""
        self.local[client] = accuracy
        self._changed.add(self.batch[client])

    def correct(self, step: int, client: int, accuracy: float) -> None:
        """A client that was away when its step was evaluated has been since."""
        self.acc[step - 1][client] = accuracy
        self._changed.add(step)

    def last_seen(self, client: int) -> int:
        """The last step after which this client was evaluated; 0 if none was."""
        return next((step for step in range(len(self.acc), 0, -1) if self.acc[step - 1][client] is not None), 0)

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
        self._changed.add(len(self.zero_shot))

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
            if rule not in self.siblings:  # before there was a choice, all rules were one
                self.siblings[rule] = [list(row) for row in self.acc[:-1]]
                self._changed |= set(range(1, len(self.acc)))
            self.siblings[rule].append(after.get(rule, after["acc"]))
        step = len(self.acc)
        self._changed.add(step)
        answers = [yes for k, yes in accepted.items() if self.batch[k] < step]
        self.accepted.append(sum(answers) / len(answers) if answers else None)
        self.capacity.append(capacity)
        self.replay_seconds.append(replay_seconds)

    def step_facts(self, step: int) -> dict[str, Any]:
        """What the step just closed came to, in its newcomers, in everyone, in RI and in channels taken."""
        row = self.acc[step - 1]
        everyone = mean([a for a in row if a is not None])
        if self.sampled:
            everyone, _ = estimate(row, self.batch, step, self.absent)
        own = [a for k in self.plan.batch(step) if (a := row[k]) is not None]
        return {
            "accuracy": sum(own) / len(own) if own else None,
            "accuracy_everyone": everyone,
            "ri": mean(changes(self.acc, self.batch, step)) if step > 1 else None,
            "accepted": self.accepted[-1],
            "capacity": self.capacity[-1],
            "replay_seconds": self.replay_seconds[-1],
        }

    def facts(self) -> dict[str, Any]:
        """All of it."""
        rows = {"acc": self.acc, "before": self.before, "local": self.local}
        return {**rows, "siblings": self.siblings, "zero_shot": self.zero_shot, **self.brief()}

    def brief(self) -> dict[str, Any]:
        """All but the rows, which have an entry for each client; `changed` has those."""
        return {
            "absent": [[k, why] for k, why in self.absent.items()],
            "totals": self.totals,
            "replay_seconds": self.replay_seconds,
            "accepted": self.accepted,
            "capacity": self.capacity,
            "refusals": self.refusals,
            "warnings": self.warnings,
        }

    def changed(self) -> dict[int, Record]:
        """The rows of each step that are not stored as they are; it is up to the caller to store them."""
        found = {step: Record(rows.pack(self._rows(step))) for step in sorted(self._changed)}
        self._changed = set()
        return found

    def _rows(self, step: int) -> dict[str, dict[int, float]]:
        """What was measured in one step, and the controls of its batch."""
        named = {"acc": self.acc, "before": self.before, "zero_shot": self.zero_shot}
        named |= {f"siblings/{rule}": one for rule, one in self.siblings.items()}
        found = {name: rows.told(each[step - 1]) for name, each in named.items() if len(each) >= step}
        own = self.plan.batch(step) if step in self.plan.steps else ()
        return {**found, "local": {k: a for k in own if (a := self.local[k]) is not None}}

    def restore(self, facts: dict[str, Any], stored: Mapping[int, Record]) -> None:
        self.totals = facts["totals"]
        self.absent = {k: why for k, why in facts["absent"]}
        self.replay_seconds = facts["replay_seconds"]
        self.accepted, self.capacity = facts["accepted"], facts["capacity"]
        self.refusals, self.warnings = facts.get("refusals", {}), facts.get("warnings", [])  # not in older snapshots
        if "acc" in facts:  # whole
            self.acc, self.before, self.local = facts["acc"], facts["before"], facts["local"]
            self.siblings, self.zero_shot = facts["siblings"], facts["zero_shot"]
            self._changed = set(range(1, len(self.zero_shot) + 1)) | set(self.batch)
            return
        self.acc, self.before, self.zero_shot, self.siblings = [], [], [], {}
        self.local = [None] * self.plan.clients
        for step in sorted(stored):
            found = rows.unpack(stored[step].tensors, self.plan.clients)
            for k, a in rows.told(found.pop("local")).items():
                self.local[k] = a
            for name, row in found.items():
                kind, _, rule = name.partition("/")
                (self.siblings.setdefault(rule, []) if rule else getattr(self, kind)).append(row)

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
            **self._sampled(config),
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

    def _sampled(self, config: Config) -> dict[str, Any]:
        """Where not every existing client is evaluated: everyone's accuracy is estimated."""
        if config.evaluate == "all":
            return {}
        found = evaluated(self.acc, self.batch, self.absent, config.evaluate)
        return {"evaluated": found, "acc_end_mean": found["acc_everyone"][-1]}


def _batches(plan: Schedule) -> list[int]:
    """The step in which each client joins."""
    joined = {k: step for step in plan.steps for k in plan.batch(step)}
    return [joined[k] for k in range(plan.clients)]


def environment(dataset: Dataset) -> dict[str, Any]:
    """What a number depends on besides the configuration."""
    packages = ("pfeddsh", "torch", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "revision": revision(),
        "data": dataset.fingerprint,
        "shape": list(dataset.shape),
        "images": list(dataset.notes),
    }


def revision() -> str | None:
    """The git revision of the source tree, if it is one; dirty if the package was changed since, whatever else was."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, timeout=10)

    try:
        name = git("describe", "--always", "--abbrev=12").stdout.strip()
        changed = bool(name) and git("diff", "--quiet", "HEAD", "--", ".").returncode != 0
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}{'-dirty' * changed}" or None
