"""`audit.jsonl`: a line for every message of ours that left a site, written before it does. Lines are only added.

Each line carries the checksum of the one before it: a line that was changed or taken out shows.
"""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"
PURPOSES = {
    "hello": "introduce the site",
    "card": "join, with what the method asks for",
    "local": "upload what was trained",
    "settle": "report the end of the site's step",
    "keep": "confirm that the model is kept",
    "judge": "say how far to follow a step",
    "receive": "answer an offer",
    "score": "tell the accuracy",
    "farewell": "confirm that the site has left",
}


class Audit:
    """Appends, and waits for the disk: what cannot be written down does not leave."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._last = b""
        if self._path.exists():
            content = self._path.read_bytes()
            if content and not content.endswith(b"\n"):  # cut off when the site was killed
                self._append(b"\n")
            lines = content.splitlines()
            self._last = lines[-1] if lines else b""

    def note(self, about: dict[str, Any], body: bytes, details: dict[str, Any]) -> None:
        """Write down one message that is about to leave."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            **about,
            "purpose": PURPOSES.get(str(about.get("job")), "tell that something went wrong"),
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            **details,
            "previous": hashlib.sha256(self._last).hexdigest(),
        }
        text = json.dumps(line).encode()
        self._append(text + b"\n")
        self._last = text

    def _append(self, data: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        before = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        except OSError:  # a line is there as a whole or not at all
            os.ftruncate(file, before)
            raise
        finally:
            os.close(file)


def verify(home: Path) -> tuple[int, int | None]:
    """How many lines there are, and the first, counted from 1, that does not follow from the one before it."""
    try:
        lines = (home / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return 0, None
    last = b""
    for number, line in enumerate(lines, start=1):
        try:
            follows = json.loads(line)["previous"] == hashlib.sha256(last).hexdigest()
        except (ValueError, KeyError, TypeError):
            follows = False
        if not follows:
            return len(lines), number
        last = line
    return len(lines), None
