"""The coordinator of a folder, from its configuration to its results.

It runs as Flower's ServerApp and knows Flower only as a `Transport`.
"""

import json
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfeddsh.data.datasets import Dataset
from pfeddsh.errors import UserError
from pfeddsh.federation.observers import EventLog
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.config import LiveConfig, begun, check_unchanged, fix, load
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.federation import LiveFederation
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.roster import Roster
from pfeddsh.live.coordinator.status_file import StatusFile, add_notice
from pfeddsh.live.exchange import Exchange
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.live.transport import Transport, TransportError
from pfeddsh.live.wire import HELLO, encode
from pfeddsh.messages import Message
from pfeddsh.results.ledger import Ledger
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import locked, write_text

ERROR = "coordinator.error"  # why the last coordinator ended before its work was done


def coordinate(folder: Path, transport: Transport, authenticated: bool) -> None:
    """Run the federation of a folder until it is done; what is done is in results.json.

    If it ends before that, coordinator.error and the status say why.
    """
    state = folder / "state"
    state.mkdir(exist_ok=True)
    with locked(state):
        write_text(folder / "coordinator.pid", f"{os.getpid()}\n")
        (folder / ERROR).unlink(missing_ok=True)
        try:
            _coordinate(folder, state, transport, authenticated)
        except Exception as error:
            tell_end(folder, error)
            raise


def _coordinate(folder: Path, state: Path, transport: Transport, authenticated: bool) -> None:
    config = load(folder)
    check_unchanged(folder, config)
    roster = Roster.load(folder / "clients.json")
    if roster.clients and not begun(folder):
        raise UserError(f"{state} is empty, but {roster.path} has clients; restore both from a backup")
    fix(folder, config)
    torch.set_num_threads(1)
    if len(roster.batches()) > 1 and not any(state.glob("snapshot-*")):
        raise UserError(
            f"{state} has no snapshot, but {roster.path} knows of later batches; restore both from a backup"
        )
    offers = Offers(state / "offers")
    exchange = Exchange(transport)
    hello = encode({"job": HELLO, "settings": config.for_sites()}, Message())
    admission = Admission(
        exchange, roster, hello, min(60.0, config.round_timeout), authenticated,
        lambda name, reason: status.refuse(name, reason),
    )  # fmt: skip
    status = StatusFile(folder / "status.json", admission, offers, Watcher(folder))
    exchange.on_nodes = admission.on_nodes
    bench = LiveBench(config, roster.batches())
    engine = LiveEngine(bench, config, exchange, admission)
    exchange.start()
    try:
        _let_everyone_in(admission, exchange)
        checkpoints = Checkpoints(state, strict=True)
        federation = LiveFederation(config, bench, engine, exchange, admission, checkpoints, offers, status)
        federation.loop.observers.append(EventLog(folder / "events.jsonl", federation.loop.moment))
        ledger = federation.run()
    finally:
        engine.close()
    write_text(folder / "results.json", json.dumps(results(config, ledger, offers), indent=1) + "\n")


def results(config: LiveConfig, ledger: Ledger, offers: Offers) -> dict[str, Any]:
    """As results.json of a simulated run (schema 1); what nobody here can know, such as the data, says so."""
    nothing, none = np.zeros((0, *(config.shape or (0, 0, 0))), dtype=np.uint8), np.zeros(0, dtype=np.int64)
    mean, std = (np.array(values, dtype=np.float32) for values in (config.mean, config.std))
    elsewhere = Dataset(
        "live", len(config.classes), config.classes, nothing, none, nothing, none, mean, std,
        fingerprint="unknown: it stays at the sites",
    )  # fmt: skip
    seconds = ledger.totals["seconds"] + ledger.totals["server"] + sum(ledger.replay_seconds)
    known = ledger.results(config.training(), elsewhere, total_seconds=seconds)
    done = len(ledger.acc)
    return known | {
        "schedule": "+".join(str(ledger.batch.count(step)) for step in ledger.plan.steps),
        "steps": done,
        "zero_shot": ledger.zero_shot,
        "offers": offers.counts(),
        "bytes": {name: int(ledger.totals[name]) for name in ("down", "up")},
    }


def tell_end(folder: Path, error: Exception) -> None:
    """Why the coordinator ended, for `serve`, the status and whoever mends it."""
    expected = isinstance(error, UserError | TransportError)
    text = str(error) if expected else "".join(traceback.format_exception(error))
    told = str(error) if expected else f"{type(error).__name__}: {error}"
    with suppress(OSError, UserError):  # a full disk may be why
        write_text(folder / ERROR, text.rstrip() + "\n")
        add_notice(folder / "status.json", f"the coordinator ended: {told[:300]}; {folder / ERROR} has it all")


def _let_everyone_in(admission: Admission, exchange: Exchange, patience: float = 60.0) -> None:
    """After a restart, hear who is there before anyone is taken for absent."""
    deadline = time.monotonic() + patience
    while not admission.settled() and time.monotonic() < deadline:
        exchange.check()
        time.sleep(0.1)
