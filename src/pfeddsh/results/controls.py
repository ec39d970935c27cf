"""Local-only accuracies, kept across runs: the control of a client is the same for every method.

They depend on the data, the seed, the local training, and the schedule up to the step in which a client joins; the key
of an entry is a hash of exactly that.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pfeddsh.config import Config
from pfeddsh.data.store import cache_root
from pfeddsh.errors import UserError
from pfeddsh.results.files import write_text

VERSION = 1  # of the local training: a change of its arithmetic must raise it
FIELDS = (
    "seed", "partition", "alpha", "rounds_first", "rounds_later", "sample_fraction", "local_epochs", "lr", "momentum",
    "batch_size",
)  # fmt: skip


def _path(config: Config, fingerprint: str, step: int) -> Path:
    plan = config.plan()
    known = {name: getattr(config, name) for name in FIELDS}
    key = json.dumps([VERSION, fingerprint, plan.clients, plan.sizes[:step], known])
    return cache_root() / "controls" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def load(config: Config, fingerprint: str) -> dict[int, float]:
    """The local-only accuracies already known for this configuration; an unreadable entry counts as unknown."""
    found: dict[int, float] = {}
    plan = config.plan()
    for step in plan.steps:
        try:
            values = json.loads(_path(config, fingerprint, step).read_text())
            batch = {int(k): float(v) for k, v in values.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            continue
        if batch.keys() == set(plan.batch(step)):
            found |= batch
    return found


def save(config: Config, fingerprint: str, local: Sequence[float | None]) -> None:
    """Keep the accuracies of a finished run. A cache that cannot be written is only a missed saving."""
    plan = config.plan()
    for step in plan.steps:
        path = _path(config, fingerprint, step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps({str(k): local[k] for k in plan.batch(step)}))
        except (OSError, UserError):
            return
