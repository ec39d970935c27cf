"""Start a run, or continue one: the run directory, the lock, the engine around the federation loop."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pfeddsh.config import Config, build
from pfeddsh.errors import UserError
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.observers import EventLog, Observer
from pfeddsh.federation.workbench import Workbench
from pfeddsh.plugins import not_while_importing
from pfeddsh.storage import controls
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import locked, write_text
from pfeddsh.values import read


def run(config: Config, out: Path, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run a configuration into a new folder and return the content of its results.json."""
    not_while_importing()
    bench = Workbench(config)  # before anything is written: a mistake in the configuration leaves no trace
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        if (out / "config.toml").exists():
            raise UserError(
                f"{out} already holds a run; continue it with `pfeddsh resume {out}` or choose another --out"
            )
        write_text(out / "config.toml", bench.config.toml())
        return complete(bench, out, observers, Checkpoints(out / "state"))


def resume(out: Path, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Continue an interrupted run; the results are the bits an uninterrupted one would have given."""
    if not (out / "config.toml").exists():
        raise UserError(f"{out} holds no run: there is no config.toml in it")
    if (results := out / "results.json").exists():
        finished: dict[str, Any] = json.loads(results.read_text())
        return finished
    bench = Workbench(build(read(out / "config.toml"), str(out / "config.toml")))
    with locked(out):
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
                federation.ledger.local[client] = accuracy
            federation.observers.append(EventLog(out / "events.jsonl", federation.moment))
            federation.train()
            local = controls.complete(config, fingerprint, bench.plan.steps, federation.alone)
            ledger = federation.ledger
            ledger.local = [local[client] for client in range(bench.plan.clients)]
        finally:
            engine.close()
        results = ledger.results(config, bench.dataset, time.monotonic() - began)
        write_text(out / "results.json", json.dumps(results, indent=1) + "\n")
        return results


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums split over threads round differently; one thread keeps the bits the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
