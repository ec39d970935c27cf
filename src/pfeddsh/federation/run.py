"""Start a run, or continue one: the run directory, the lock, the engine around the federation loop."""

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.observers import Divergence, EventLog, Observer
from pfeddsh.federation.workbench import Workbench
from pfeddsh.messages import Record
from pfeddsh.plugins import not_while_importing
from pfeddsh.storage import controls
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import locked, make_folder, writable, write_text
from pfeddsh.storage.records import digest
from pfeddsh.values import read

CHANGED = {"data": "the data have changed", "weights": "the weights it started from have changed"}


def run(config: Config, out: Path, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run a configuration into a new folder and return the content of its results.json."""
    not_while_importing()
    writable(out)
    bench = Workbench(config)  # before anything is written: a mistake in the configuration leaves no trace
    make_folder(out)
    with locked(out):
        if (out / "config.toml").exists():
            go_on = shlex.join(["pfeddsh", "resume", str(out)])
            raise UserError(f"{out} already holds a run; continue it with `{go_on}` or choose another --out")
        begin(bench.config, bench, out)
        return complete(bench, out, observers, Checkpoints(out / "state"))


def begin(config: Config, bench: Workbench, out: Path) -> None:
    """Note what the run depends on besides its configuration; a run that was begun before must still depend on it."""
    now = {"data": bench.dataset.fingerprint, "weights": digest(Record({"theta0": bench.task.theta0}))}
    begun = out / "begun.json"
    if not (out / "config.toml").exists():
        write_text(begun, json.dumps(now) + "\n")
        write_text(out / "config.toml", config.toml())
        return
    then = _read_json(begun) if begun.exists() else now  # a run of an older version
    for name, words in CHANGED.items():
        if then.get(name) != now[name]:
            raise UserError(f"{out}: {words} since this run began; restore them, or start a new run in another folder")


def resume(out: Path, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Continue an interrupted run; the results are the bits an uninterrupted one would have given."""
    if not (out / "config.toml").exists():
        raise UserError(f"{out} holds no run: there is no config.toml in it")
    if (results := out / "results.json").exists():
        return _read_json(results)
    writable(out)
    bench = Workbench(build(read(out / "config.toml"), str(out / "config.toml")))
    with locked(out):
        begin(bench.config, bench, out)
        return complete(bench, out, observers, Checkpoints(out / "state"))


def complete(bench: Workbench, out: Path, observers: Sequence[Observer], checkpoints: Checkpoints) -> dict[str, Any]:
    """From the checkpoints to results.json; the caller holds the folder's lock."""
    config, fingerprint = bench.config, bench.dataset.fingerprint
    with one_thread():
        began = time.monotonic()
        engine = engines.create(config, bench)
        try:
            federation = Federation(bench, engine, checkpoints, observers)
            for client, accuracy in controls.load(config, fingerprint).items():
                federation.ledger.add_alone(client, accuracy)
            federation.observers.append(EventLog(out / "events.jsonl", federation.moment))
            federation.observers.append(Divergence(federation.ledger, config))
            federation.train()
            local = controls.complete(config, fingerprint, bench.plan.steps, federation.controls.wait)
            ledger = federation.ledger
            ledger.local = [local[client] for client in range(bench.plan.clients)]
        except BaseException:
            with suppress(Exception):
                checkpoints.wait()  # what else is wrong there must not hide the cause
            raise
        finally:
            engine.close()
        checkpoints.wait()
        results = ledger.results(config, bench.dataset, time.monotonic() - began)
        checkpoints.thin()
        write_text(out / "results.json", json.dumps(results, indent=1) + "\n")
        return results


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it, and `pfeddsh resume` makes it again") from None
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums split over threads round differently; one thread keeps the bits the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
