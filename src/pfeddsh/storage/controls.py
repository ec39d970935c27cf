"""Local-only accuracies, kept across runs: the control of a client is the same for every method.

They depend on the data, the seed, the local training, and the schedule up to the step in which a client joins; the key
of an entry is a hash of exactly that. An entry grows by one client at a time, under a lock: processes side by side do
not compute the same control twice, and one that is killed loses at most one client.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from pfeddsh import devices
from pfeddsh.config import Config
from pfeddsh.data.store import cache_root
from pfeddsh.errors import UserError
from pfeddsh.models import registry as networks
from pfeddsh.storage.files import replacing

VERSION = 1  # of the local training: a change of its arithmetic must raise it
# What a client that trains alone does not depend on, and what the key tells in another way (data, schedule, network).
EXCLUDED = frozenset({
    "method", "options", "later", "existing", "evidence", "engine", "workers", "dataset", "data_dir", "schedule",
    "model", "init", "device",
})  # fmt: skip
# Keys that came later; at these values an entry from before them is the same control.
ADDED = {
    "hold_out": 0.0, "sampling": "random", "order": "seed", "image_size": 0, "resize": "pad", "skip_unreadable": False,
    "evaluate": "all",
}  # fmt: skip

UPLOADS = "privacy"  # of which a client alone has none


def relevant(config: Config) -> dict[str, Any]:
    """Every key of the configuration but those that are known to stand apart: a forgotten one can only save less."""
    return {name: value for name, value in config.model_dump(mode="json").items() if name not in EXCLUDED}


def path(config: Config, fingerprint: str, step: int) -> Path:
    """Where the controls of a step's batch are kept."""
    plan = config.plan()
    known = {name: value for name, value in relevant(config).items() if value != ADDED.get(name) and name != UPLOADS}
    network, device = networks.identity(config.model, config.init), devices.find(config.device).type
    other = [part for part in (network, device) if part not in (None, "cpu")]
    key = json.dumps([VERSION, fingerprint, plan.clients, plan.sizes[:step], known, *other])
    return cache_root() / "controls" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def load(config: Config, fingerprint: str) -> dict[int, float]:
    """The local-only accuracies already known for this configuration; an unreadable entry counts as unknown."""
    steps = config.plan().steps
    return {client: value for step in steps for client, value in _read(config, fingerprint, step).items()}


def complete(
    config: Config, fingerprint: str, steps: Iterable[int], compute: Callable[[int], float]
) -> dict[int, float]:
    """The controls of these steps' clients: known ones are read, the others computed and kept.

    A cache that cannot be written is only a missed saving.
    """
    found: dict[int, float] = {}
    for step in steps:
        with _turn(path(config, fingerprint, step)) as own:
            batch = _read(config, fingerprint, step)
            for client in config.plan().batch(step):
                if client not in batch:
                    batch[client] = compute(client)
                    own = own and _write(path(config, fingerprint, step), batch)
        found |= batch
    return found


def book(config: Config, fingerprint: str, step: int, seconds: float) -> None:
    """Note what a control of this step's batch cost; not knowing it is no harm."""
    with suppress(OSError), path(config, fingerprint, step).with_suffix(".seconds").open("a") as file:
        file.write(f"{seconds:.4f}\n")


def cost(entry: Path) -> float:
    """Seconds that the controls of an entry took, as far as they were noted."""
    try:
        return sum(map(float, entry.with_suffix(".seconds").read_text().split()))
    except (OSError, ValueError):
        return 0.0


def _read(config: Config, fingerprint: str, step: int) -> dict[int, float]:
    try:
        values = json.loads(path(config, fingerprint, step).read_text())
        batch = {int(k): float(v) for k, v in values.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return batch if batch.keys() <= set(config.plan().batch(step)) else {}


def _write(entry: Path, batch: dict[int, float]) -> bool:
    try:
        with replacing(entry, durable=False) as temporary:
            temporary.write_text(json.dumps({str(k): value for k, value in batch.items()}))
    except UserError:
        return False
    return True


@contextmanager
def _turn(entry: Path) -> Iterator[bool]:
    """Wait until no other process works on this entry; False where the cache cannot be written."""
    lock = FileLock(entry.with_suffix(".lock"))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
