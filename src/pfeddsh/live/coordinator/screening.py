"""What a round brought beside what others sent: uploads of plausible norm, and few replies that are refused."""

import statistics
from collections.abc import Mapping
from typing import Any

from pfeddsh.federation.clients import Round
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.messages import Record

ENOUGH = 3  # uploads from which on a median is worth comparing with
RECENT = 30  # accepted uploads of the step that make up for a small cohort


class Screening:
    """Strikes against clients, and the norms of the step's last uploads."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self.strikes: dict[int, int] = {}  # refused replies in a row
        self.norms: list[float] = []
        self.step = 0  # that the norms are of: rates, and with them norms, begin anew in each

    def bound(self, brought: Round, changes: Mapping[int, float]) -> None:
        """Refuse uploads of an absurd norm beside the others of the round; if these are few, beside the last ones."""
        facts = brought.facts
        norms = {str(client): changes[client] for client in brought.uploads}
        known = list(norms.values())
        if len(known) < ENOUGH and facts["step"] == self.step:
            known += self.norms
        if len(known) >= ENOUGH and (median := statistics.median(known)) > 0:
            for client, norm in norms.items():
                if norm > self._config.norm_bound * median:
                    del brought.uploads[int(client)]
                    facts["refused"][client] = f"norm {norm:.3g}, {norm / median:.0f} times the cohort's median"
        facts["norms"] = {client: norm for client, norm in norms.items() if client not in facts["refused"]}

    def note(self, facts: dict[str, Any]) -> list[int]:
        """Count what a round brought; those who have sent too many bad replies in a row."""
        self.norms = [*(self.norms if facts["step"] == self.step else []), *facts["norms"].values()][-RECENT:]
        self.step = facts["step"]
        for client in facts["clients"]:
            if str(client) in facts["refused"]:
                self.strikes[client] = self.strikes.get(client, 0) + 1
            elif str(client) not in facts["absent"]:
                self.strikes.pop(client, None)
        return [k for k in facts["clients"] if self.strikes.get(k, 0) >= self._config.quarantine_after]

    def save(self) -> Record:
        strikes = {str(client): count for client, count in self.strikes.items()}
        return Record(facts={"strikes": strikes, "norms": self.norms, "step": self.step})

    def restore(self, record: Record) -> None:
        self.strikes = {int(client): count for client, count in record.facts["strikes"].items()}
        self.norms, self.step = list(record.facts["norms"]), record.facts["step"]
