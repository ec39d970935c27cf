"""Local-only accuracies, kept across runs: the control of a client is the same for every method.

They depend on the data, the seed, the network, the local training, and the schedule up to the step in which a client
joins; the key of an entry is a hash of exactly that. An entry grows by one client at a time, under a lock: processes
side by side do not compute the same control twice, and one that is killed loses at most one client.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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

VERSION = 2  # of the local training: a change of its arithmetic must raise it
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
    other = [part for part in (network, *networks.code(config.model), device) if part not in (None, "cpu")]
    key = json.dumps([VERSION, fingerprint, plan.clients, plan.sizes[:step], known, *other])
    return cache_root() / "controls" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def load(config: Config, fingerprint: str) -> dict[int, float]:
    """The local-only accuracies already known for this configuration; an unreadable entry counts as unknown."""
    plan = config.plan()
    known = [_read(path(config, fingerprint, step), plan.batch(step)) for step in plan.steps]
    return {client: value for batch in known for client, value in batch.items()}


def complete(
    config: Config, fingerprint: str, steps: Iterable[int], compute: Callable[[int], float]
) -> dict[int, float]:
    """The controls of these steps' clients: known ones are read, the others computed and kept.

    A cache that cannot be written is only a missed saving.
    """
    found: dict[int, float] = {}
    for step in steps:
        entry, clients = path(config, fingerprint, step), config.plan().batch(step)
        with _turn(entry) as own:
            batch = _read(entry, clients)
            for client in clients:
                if client not in batch:
                    batch[client] = compute(client)
                    own = own and _write(entry, batch)
        found |= batch
    return found


def keep(config: Config, fingerprint: str, step: int, batch: dict[int, float]) -> bool:
    """Take over what these clients reached alone in runs made elsewhere; not what is known already."""
    entry = path(config, fingerprint, step)
    with _turn(entry) as own:
        return own and not _read(entry, sorted(batch)) and _write(entry, batch)


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


def _read(entry: Path, clients: Sequence[int]) -> dict[int, float]:
    try:
        values = json.loads(entry.read_text())
        batch = {int(k): float(v) for k, v in values.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return batch if batch.keys() <= set(clients) else {}


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
