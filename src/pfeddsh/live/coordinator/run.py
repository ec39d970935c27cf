"""The coordinator of a folder, from its configuration to its results.

It runs as Flower's ServerApp and knows Flower only as a `Transport`.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from pfeddsh.errors import UserError
from pfeddsh.federation.observers import EventLog
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.config import LiveConfig, load
from pfeddsh.live.coordinator.engine import LiveBench, LiveEngine
from pfeddsh.live.coordinator.federation import LiveFederation
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.roster import Roster
from pfeddsh.live.coordinator.status_file import StatusFile
from pfeddsh.live.exchange import Exchange
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.live.transport import Transport
from pfeddsh.live.wire import HELLO, encode
from pfeddsh.messages import Message
from pfeddsh.results.ledger import Ledger
from pfeddsh.results.metrics import summary
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import locked, write_text

FIXED = (
    "method",
    "options",
    "model",
    "shape",
    "classes",
    "seed",
    "mean",
    "std",
)  # of the configuration, once there is a state


def coordinate(folder: Path, transport: Transport, authenticated: bool) -> None:
    """Run the federation of a folder until it is done; what is done is in results.json."""
    config = load(folder)
    state = folder / "state"
    state.mkdir(exist_ok=True)
    with locked(state):
        write_text(folder / "coordinator.pid", f"{os.getpid()}\n")
        _check_unchanged(config, state / "federation.json")
        torch.set_num_threads(1)
        roster = Roster.load(folder / "clients.json")
        offers = Offers(state / "offers.safetensors")
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
            checkpoints = Checkpoints(state)
            federation = LiveFederation(config, bench, engine, exchange, admission, checkpoints, offers, status)
            federation.loop.observers.append(EventLog(folder / "events.jsonl", federation.loop.moment))
            ledger = federation.run()
        finally:
            engine.close()
        write_text(folder / "results.json", json.dumps(results(config, ledger, offers), indent=1) + "\n")


def results(config: LiveConfig, ledger: Ledger, offers: Offers) -> dict[str, Any]:
    """As results.json of a simulated run, as far as a live one knows."""
    return {
        "schema": 1,
        "method": config.method,
        "seed": config.seed,
        "clients": ledger.plan.clients,
        "steps": len(ledger.acc),
        "batch": ledger.batch,
        "acc": ledger.acc,
        "acc_before_replay": ledger.before,
        "local": ledger.local,
        **summary(ledger.acc, ledger.batch, ledger.local),
        "offers": offers.counts(),
        "accepted": ledger.accepted,
        "bytes": {name: int(ledger.totals[name]) for name in ("down", "up")},
        "refused": {"uploads": int(ledger.totals["refused"]), "clients": {str(k): v for k, v in ledger.absent.items()}},
    }


def _check_unchanged(config: LiveConfig, path: Path) -> None:
    """The settings a state was made with cannot change under it."""
    fixed = {name: value for name, value in config.for_sites().items() if name in FIXED}
    if not path.exists():
        write_text(path, json.dumps(fixed, indent=1) + "\n")
        return
    before = json.loads(path.read_text())
    changed = [name for name in fixed if before.get(name) != fixed[name]]
    if changed:
        raise UserError(
            f"federation.toml: {', '.join(changed)} cannot change in a federation that has begun; set it back to "
            + ", ".join(f"{name} = {before.get(name)}" for name in changed)
        )


def _let_everyone_in(admission: Admission, exchange: Exchange, patience: float = 60.0) -> None:
    """After a restart, hear who is there before anyone is taken for absent."""
    deadline = time.monotonic() + patience
    while not admission.settled() and time.monotonic() < deadline:
        exchange.check()
        time.sleep(0.1)
