"""Observers hear of every round and step: the progress line, the event log, whatever tracking people already use."""

import json
from pathlib import Path
from typing import Any, Protocol

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.results.ledger import Ledger
from pfeddsh.storage.checkpoint import Moment
from pfeddsh.storage.files import write_text

PATIENCE = 10  # rounds without a single good upload


class Observer(Protocol):
    """`kind` is round, step, refused, warning, or controls: what clients' training alone still takes."""

    def event(self, kind: str, facts: dict[str, Any]) -> None: ...


class EventLog:
    """events.jsonl: a line a round. After an interruption, lines past the restored moment are written again."""

    def __init__(self, path: Path, restored: Moment) -> None:
        kept = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    event = json.loads(line)
                    moment = (event["step"], event.get("round", 10**9 if event["event"] == "step" else -1))
                except (ValueError, KeyError):
                    continue  # the line that was being written when the run was killed
                if moment < restored:
                    kept.append(line + "\n")
        write_text(path, "".join(kept))
        self._path = path

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "controls":  # a forecast, and no fact of the run
            return
        try:
            with self._path.open("a") as file:  # never left open, however the run ends
                file.write(json.dumps({"event": kind, **facts}) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror or error}; free some space") from error


class Divergence:
    """Ends a run in which nothing can be learned: every upload since its beginning was refused."""

    def __init__(self, ledger: Ledger, config: Config) -> None:
        self._ledger, self._config = ledger, config

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        ledger, rounds = self._ledger, int(self._ledger.totals["rounds"])
        if kind != "round" or not ledger.nothing_accepted or rounds < min(PATIENCE, self._config.rounds_first):
            return
        reason = next(iter(ledger.refusals), "see events.jsonl")
        raise UserError(
            f"all {int(ledger.totals['refused'])} uploads of the first {rounds} rounds were refused ({reason}): "
            f"nothing is learned; try a lower lr than {self._config.lr:g}, or look at the data and the method"
        )
