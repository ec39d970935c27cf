"""The sites that a coordinator's folder names, read anew only when the folder has changed.

The status is written after every event, and asks for them each time: ten thousand keys cannot be parsed that often.
"""

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.security.certs import fingerprint

PLACES = (("nodes", "allowed"), ("revoked", "revoked"))
SETTLED = 2_000_000_000  # nanoseconds after which a folder's time tells of every change: clocks tick coarsely


@dataclass(frozen=True)
class ListedSite:
    """A site as the operator sees it. `state` is Flower's (registered, online, offline), allowed, revoked, damaged."""

    name: str
    key: str
    state: str


_known: dict[Path, tuple[tuple[int, ...], list[ListedSite]]] = {}


def sites(folder: Path) -> list[ListedSite]:
    """All sites that were ever allowed, by the folder alone. Keys come and go as whole files, never rewritten."""
    times = tuple(_time(folder / "tls" / place) for place, _ in PLACES)
    known = _known.get(folder)
    if known is not None and known[0] == times:
        return list(known[1])
    found = [_listed(entry, state) for place, state in PLACES for entry in _keys(folder / "tls" / place)]
    if time.time_ns() - max(times) > SETTLED:
        _known[folder] = times, found
    return list(found)


def _time(place: Path) -> int:
    try:
        return place.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _keys(place: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(place) as entries:
            return sorted((e for e in entries if e.name.endswith(".pub")), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _listed(entry: "os.DirEntry[str]", state: str) -> ListedSite:
    try:
        return ListedSite(*_read(entry.path, entry.stat().st_mtime_ns, entry.stat().st_ino), state)
    except (OSError, UserError, ValueError, IndexError):
        return ListedSite(entry.name.removesuffix(".pub"), f"{entry.name} is damaged", "damaged")


@lru_cache(maxsize=1 << 17)
def _read(path: str, _time: int, _file: int) -> tuple[str, str]:
    """Name and fingerprint; the file's time and number are there for the cache alone."""
    line = Path(path).read_bytes()
    return line.split()[-1].decode(), fingerprint(line)
