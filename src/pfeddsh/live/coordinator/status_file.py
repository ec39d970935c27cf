"""`status.json`: what the coordinator is doing, for `pfeddsh status`, its page, and whoever else wants to know."""

import json
import re
import time
from collections import deque
from pathlib import Path
from typing import Any

from pfeddsh.live.coordinator.admission import Admission, now
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.live.coordinator.pulse import Phase, Pulse
from pfeddsh.live.security.listed import sites
from pfeddsh.live.security.refusals import Watcher
from pfeddsh.results.ledger import Ledger
from pfeddsh.results.metrics import proactive_adaptation, retroactive_improvement
from pfeddsh.storage.files import replacing, write_text

SCHEMA = 1
NOTICES = 20  # that are kept
SHARE = 9  # times as long as writing it took, it is left alone


class StatusFile:
    """Rewritten when something happens; readers see the old content or the new one.

    Of thousands of sites it is large: it takes a tenth of the time at most, but for a new round or phase.
    """

    def __init__(self, path: Path, admission: Admission, offers: Offers, watcher: Watcher) -> None:
        self._watcher = watcher
        self._path, self._admission, self._offers = path, admission, offers
        self._pulse = Pulse(path)
        self.phase: Phase = "waiting"
        self.step = self.round = self.rounds = 0
        self.eta: float | None = None
        self.refused: deque[dict[str, str]] = deque(maxlen=50)
        self.notices: deque[dict[str, str]] = deque(_told_before(path), maxlen=NOTICES)
        self.refusals: dict[int, int] = {}  # replies refused, by client
        self._place: tuple[object, ...] = ()  # where the federation was when it was written
        self._again = 0.0  # when it may be written again, if it still is there
        self._due = False

    def begin(self, phase: Phase, step: int, rounds: int) -> None:
        self.phase, self.step, self.round, self.rounds, self.eta = phase, step, 0, rounds, None

    def round_done(self, facts: dict[str, Any], rounds: int) -> None:
        self.step, self.round, self.rounds = facts["step"], facts["round"] + 1, rounds
        self.eta = facts["seconds"] * (rounds - self.round)
        self.phase = "training" if self.round < rounds else "replaying"

    def notice(self, text: str) -> None:
        """Something the operator should know."""
        self.notices.append({"time": now(), "text": text})

    def forget(self, name: str | None) -> None:
        """A site has left: what was said of it is not told any more."""
        if name is not None:
            named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
            kept = [notice for notice in self.notices if not named.search(notice["text"])]
            self.notices = deque(kept, maxlen=NOTICES)
            self.refused = deque((one for one in self.refused if one["client"] != name), maxlen=self.refused.maxlen)

    def refuse(self, name: str, reason: str, client: int | None = None) -> None:
        """Note a refusal; those of clients that were taken in are counted."""
        self.refused.append({"time": now(), "client": name, "reason": reason})
        if client is not None:
            self.refusals[client] = self.refusals.get(client, 0) + 1

    def show(self, ledger: Ledger) -> None:
        self._due = True
        place = self.phase, self.step, self.round
        if place != self._place or time.monotonic() >= self._again:
            self._write(ledger)
            self._place = place

    def catch_up(self, ledger: Ledger) -> None:
        """Show what has not been shown yet."""
        if self._due and time.monotonic() >= self._again:
            self._write(ledger)

    def _write(self, ledger: Ledger) -> None:
        began = time.monotonic()
        self.refused += self._watcher.new()
        with replacing(self._path, durable=False) as temporary:
            temporary.write_text(json.dumps(self.content(ledger)) + "\n")
        self._due, self._again = False, time.monotonic() + SHARE * (time.monotonic() - began)

    def revoked(self) -> set[str]:
        """Keys that the operator has taken the permission from."""
        return {site.key for site in sites(self._path.parent) if site.state == "revoked"}

    def content(self, ledger: Ledger) -> dict[str, Any]:
        online, roster = self._admission.online(), self._admission.roster
        gone = self.revoked()
        counts, moment = self._offers.counts(), now()
        zero_shot = {k: value for row in ledger.zero_shot[1:] for k, value in enumerate(row) if value is not None}
        clients = []
        for c in roster.clients:
            if c.released:
                continue
            told = [row[c.id] for row in ledger.acc if row[c.id] is not None]
            state = "served" if c.batch <= len(ledger.acc) else "training"
            state = "revoked" if c.key in gone else "quarantined" if c.id in ledger.absent else state
            state = state if c.key else "left"
            clients.append(
                {
                    "id": c.id, "name": c.name, "key": c.key, "batch": c.batch,
                    "state": state,
                    "online": c.key in online, "last_seen": self._admission.last_seen.get(c.key),
                    "refused": self.refusals.get(c.id, 0), "offer": self._offers.last(c.id),
                    "accuracy": told[-1] if told else None, "accuracy_first": told[0] if told else None,
                    "accuracy_zero_shot": zero_shot.get(c.id), "accuracy_alone": ledger.local[c.id],
                }
            )  # fmt: skip
        return {
            "schema": SCHEMA,
            "time": moment,
            "moved": self._pulse.note(
                moment, self.step, self.phase, self.round, counts["accepted"] + counts["declined"]
            ),
            "phase": self.phase,
            "step": self.step,
            "round": self.round,
            "rounds": self.rounds,
            "eta_seconds": self.eta,
            "queue": [{"name": w.name, "since": w.since} for w in roster.queue.values()],
            "clients": clients,
            "offers": counts,
            "refused": list(self.refused),
            "notices": list(self.notices),
            "bytes": {"down": int(ledger.totals["down"]), "up": int(ledger.totals["up"])},
            "pa": proactive_adaptation(ledger.acc, ledger.batch, ledger.local),
            "ri": retroactive_improvement(ledger.acc, ledger.batch) if ledger.acc else [],
        }


def add_notice(path: Path, text: str) -> None:
    """Add to a status that nobody writes any more."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    content["notices"] = [*_told_before(path), {"time": now(), "text": text}][-NOTICES:]
    write_text(path, json.dumps(content, indent=1) + "\n")


def _told_before(path: Path) -> list[dict[str, str]]:
    """Notices outlive the coordinator that wrote them: some are about its end."""
    try:
        return [{"time": str(one["time"]), "text": str(one["text"])} for one in json.loads(path.read_text())["notices"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
