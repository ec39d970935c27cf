"""Observers hear of every round and step: the progress line, the event log, whatever tracking people already use."""

import json
from pathlib import Path
from typing import Any, Protocol

from pfeddsh.storage.checkpoint import Moment


class Observer(Protocol):
    """`kind` is round, step or refused."""

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
        path.write_text("".join(kept))
        self._file = path.open("a")

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        self._file.write(json.dumps({"event": kind, **facts}) + "\n")
        self._file.flush()
