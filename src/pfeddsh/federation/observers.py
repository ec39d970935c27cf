"""Observers hear of every round and step: the progress line, the event log, whatever tracking people already use."""

import json
from pathlib import Path
from typing import Any, Protocol

from pfeddsh.results.checkpoint import Moment


class Observer(Protocol):
    """`kind` is round, step or refused."""

    def event(self, kind: str, facts: dict[str, Any]) -> None: ...


class EventLog:
    """events.jsonl: a line a round. After an interruption, lines past the restored moment are written again."""

    def __init__(self, path: Path, restored: Moment) -> None:
        path.write_text("".join(f"{line}\n" for line in kept(path, restored)))
        self._file = path.open("a")

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        self._file.write(json.dumps({"event": kind, **facts}) + "\n")
        self._file.flush()


def moment(event: dict[str, Any]) -> Moment:
    """Where in a run an event happened, comparable with the moment of a checkpoint."""
    return event["step"], event.get("round", 10**9 if event["event"] == "step" else -1)


def kept(path: Path, restored: Moment) -> list[str]:
    """The lines of an event log from before a moment."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            if moment(json.loads(line)) < restored:
                lines.append(line)
        except (ValueError, KeyError):
            continue  # the line that was being written when the run was killed
    return lines
