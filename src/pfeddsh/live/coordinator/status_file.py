"""`status.json`: what the coordinator is doing, for `pfeddsh status`, its page, and whoever else wants to know."""

import json
from collections import deque
from pathlib import Path
from typing import Any

from pfeddsh.live.coordinator.admission import Admission, now
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.security.nodes import sites
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.results.ledger import Ledger
from pfeddsh.results.metrics import proactive_adaptation, retroactive_improvement
from pfeddsh.storage.files import replacing

SCHEMA = 1


class StatusFile:
    """Rewritten after every event; readers see the old content or the new one."""

    def __init__(self, path: Path, admission: Admission, offers: Offers, watcher: Watcher) -> None:
        self._watcher = watcher
        self._path, self._admission, self._offers = path, admission, offers
        self.phase, self.step, self.round, self.rounds = "waiting", 0, 0, 0
        self.eta: float | None = None
        self.refused: deque[dict[str, str]] = deque(maxlen=50)
        self.refusals: dict[int, int] = {}  # replies refused, by client

    def begin(self, phase: str, step: int, rounds: int) -> None:
        self.phase, self.step, self.round, self.rounds, self.eta = phase, step, 0, rounds, None

    def round_done(self, facts: dict[str, Any], rounds: int) -> None:
        self.step, self.round, self.rounds = facts["step"], facts["round"] + 1, rounds
        self.eta = facts["seconds"] * (rounds - self.round)
        self.phase = "training" if self.round < rounds else "replaying"

    def refuse(self, name: str, reason: str, client: int | None = None) -> None:
        """Note a refusal; those of clients that were taken in are counted."""
        self.refused.append({"time": now(), "client": name, "reason": reason})
        if client is not None:
            self.refusals[client] = self.refusals.get(client, 0) + 1

    def show(self, ledger: Ledger) -> None:
        self.refused += self._watcher.new()
        with replacing(self._path, durable=False) as temporary:
            temporary.write_text(json.dumps(self.content(ledger), indent=1) + "\n")

    def revoked(self) -> set[str]:
        """Keys that the operator has taken the permission from."""
        return {site.key for site in sites(self._path.parent) if site.state == "revoked"}

    def content(self, ledger: Ledger) -> dict[str, Any]:
        online, roster = self._admission.online(), self._admission.roster
        gone = self.revoked()
        clients = []
        for c in roster.clients:
            if c.released:
                continue
            told = [row[c.id] for row in ledger.acc if row[c.id] is not None]
            state = "served" if c.batch <= len(ledger.acc) else "training"
            clients.append(
                {
                    "id": c.id, "name": c.name, "key": c.key, "batch": c.batch,
                    "state": "revoked" if c.key in gone else "quarantined" if c.id in ledger.absent else state,
                    "online": c.key in online, "last_seen": self._admission.last_seen.get(c.key),
                    "refused": self.refusals.get(c.id, 0), "offer": self._offers.last(c.id),
                    "accuracy": told[-1] if told else None, "accuracy_first": told[0] if told else None,
                }
            )  # fmt: skip
        return {
            "schema": SCHEMA,
            "time": now(),
            "phase": self.phase,
            "step": self.step,
            "round": self.round,
            "rounds": self.rounds,
            "eta_seconds": self.eta,
            "queue": [{"name": w.name, "since": w.since} for w in roster.queue.values()],
            "clients": clients,
            "offers": self._offers.counts(),
            "refused": list(self.refused),
            "bytes": {"down": int(ledger.totals["down"]), "up": int(ledger.totals["up"])},
            "pa": proactive_adaptation(ledger.acc, ledger.batch, ledger.local),
            "ri": retroactive_improvement(ledger.acc, ledger.batch) if ledger.acc else [],
        }
