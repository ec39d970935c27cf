"""What the state of a run depends on, moment by moment: runs that agree in that can share it.

A run is cut at its stops: when the rounds of step 1 are done, then after every step. The key of a stop is a hash of all
that the state there may depend on: the code, the data, the schedule up to that step, the method's class and settings
(for the rounds of step 1 only those that act there), and every other key of the configuration that is not known to make
no difference, as engines, workers and folders are. Before step 1 is closed there are no accuracies yet, so what closes
a step may still differ.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pfeddsh import devices
from pfeddsh.config import Config
from pfeddsh.methods import registry
from pfeddsh.models import registry as networks
from pfeddsh.plugins import foreign_code
from pfeddsh.storage.checkpoint import Moment
from pfeddsh.storage.controls import relevant

ROOT = Path(__file__).parents[1]
# What a state cannot depend on, in the code and, but for what `_stop` names itself, in the configuration.
FRONT = (
    "__init__.py",
    "__main__.py",
    "cli.py",
    "commands",
    "pace.py",
    "progress.py",
    "compare",
    "live",
    "report",
    "tracking",
)


@dataclass(frozen=True)
class Stop:
    """A moment at which a run's state may be shared."""

    moment: Moment
    rounds: int  # of all steps, done by then
    key: str
    like: str  # the same for every seed and revision of the code: what it took once, it will take again

    @property
    def step(self) -> int:
        """The step whose rounds are done here."""
        return self.moment[0] - (self.moment[1] == 0)


def stops(config: Config, fingerprint: str) -> list[Stop]:
    """The stops of a run, in order."""
    plan = config.plan()
    found = [_stop(config, fingerprint, (1, plan.rounds(1)), plan.rounds(1))]
    for step in plan.steps:
        found.append(_stop(config, fingerprint, (step + 1, 0), sum(plan.rounds(t) for t in range(1, step + 1))))
    return found


def _stop(config: Config, fingerprint: str, moment: Moment, rounds: int) -> Stop:
    step, closed = (moment[0] - 1, True) if moment[1] == 0 else (moment[0], False)
    plan, method = config.plan(), registry.find(config.method).method
    protocol = {name: value for name, value in relevant(config).items() if name != "seed"}
    if step == 1:
        del protocol["rounds_later"]
    depends = [
        moment, fingerprint, plan.clients, plan.sizes[:step], protocol, config.existing if closed else None,
        [config.later, config.evidence] if step > 1 else None,
        networks.identity(config.model, config.init), devices.find(config.device).type,
        method.__module__, method.__qualname__, config.options if closed else method.first_rounds(config.options),
    ]  # fmt: skip
    own = [code(), foreign_code(method), networks.code(config.model)]
    return Stop(moment, rounds, _hash([*depends, config.seed, *own]), _hash(depends))


def _hash(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@cache
def code() -> str:
    """A digest of the code that computes states: whoever edits a method must not meet its old states again."""
    sources = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in FRONT]
    sha = hashlib.sha256(torch.__version__.encode())
    for path in sorted(sources):
        sha.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return sha.hexdigest()
