"""Step states by what they depend on, in the user's cache: three flat files a key.

`KEY.safetensors` is the snapshot, a hard link where possible; `KEY.jsonl` the events up to there; `KEY.json` what the
way took (seconds, bytes). The last is tiny and stays when a state is removed: later plans estimate their time from it.
Seconds within a shared state are those of the run that computed it.
"""

import json
import os
import re
import shutil
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfeddsh.compare.keys import Stop
from pfeddsh.data.store import cache_root
from pfeddsh.errors import UserError
from pfeddsh.storage.files import replacing
from pfeddsh.storage.records import Damaged, read_record

ABANDONED = 3600.0  # seconds after which a file that never took its place will not


@dataclass(frozen=True)
class CachedStep:
    """A state in the cache, for listing."""

    key: str
    label: str
    bytes: int
    used: float  # seconds since the epoch


@dataclass
class StepCache:
    """The folder of step states; holds at most `limit` bytes, the least recently used go first."""

    folder: Path
    limit: int

    def _path(self, key: str, kind: str) -> Path:
        return self.folder / f"{key}.{kind}"

    def has(self, key: str) -> bool:
        return self._path(key, "safetensors").exists() and self._path(key, "jsonl").exists()

    def note(self, stop: Stop, label: str, seconds: list[float], size: int) -> None:
        """Remember what it took to get to a stop. A cache that cannot be written is only a missed saving."""
        about = {"like": stop.like, "label": label, "seconds": seconds, "bytes": size}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._path(stop.key, "json"), durable=False) as temporary:
                temporary.write_text(json.dumps(about))
        except (OSError, UserError) as error:
            warnings.warn(f"times not kept: {error}", stacklevel=2)

    def put(self, stop: Stop, snapshot: Path, events: Path) -> None:
        """Keep a state; the snapshot comes last, so whoever sees it sees all."""
        try:
            with replacing(self._path(stop.key, "jsonl"), durable=False) as temporary:
                shutil.copyfile(events, temporary)
            with replacing(self._path(stop.key, "safetensors"), durable=False) as temporary:
                link(snapshot, temporary)
        except (OSError, UserError) as error:
            warnings.warn(f"state not shared, others will compute it again: {error}", stacklevel=2)
        self.shrink(self.limit)

    def take(self, key: str, snapshot: Path, events: Path) -> dict[str, Any] | None:
        """Put a state in the place of a run's own; None if there is none, or none that is whole."""
        try:
            about: dict[str, Any] = json.loads(self._path(key, "json").read_text())
            read_record(self._path(key, "safetensors"))
            with replacing(events, durable=False) as temporary:
                shutil.copyfile(self._path(key, "jsonl"), temporary)
            with replacing(snapshot, durable=False) as temporary:
                link(self._path(key, "safetensors"), temporary)
            os.utime(self._path(key, "json"))
        except (Damaged, ValueError) as error:
            if self.has(key):  # else it went in this moment, to make room
                warnings.warn(f"cached step state: {error}; computing it again", stacklevel=2)
                self.remove(key)
            return None
        except OSError:
            return None
        except UserError:
            if self.has(key):
                raise  # the run's own disk is full
            return None
        return about

    def remove(self, key: str) -> None:
        for kind in ("safetensors", "jsonl"):
            self._path(key, kind).unlink(missing_ok=True)

    def about(self) -> dict[str, dict[str, Any]]:
        """What is known of every stop ever reached, by key."""
        known = {}
        for path in self.folder.glob("*.json"):
            try:
                about = json.loads(path.read_text())
                known[path.stem] = {name: about[name] for name in ("like", "label", "seconds", "bytes")}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return known

    def entries(self) -> list[CachedStep]:
        """The states there are, the least recently used first."""
        known, found = self.about(), []
        for path in self.folder.glob("*.safetensors"):
            try:
                about = self._path(path.stem, "json")
                used = (about if about.exists() else path).stat().st_mtime
                label = known.get(path.stem, {}).get("label", "unknown")
                found.append(CachedStep(path.stem, label, path.stat().st_size, used))
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda entry: entry.used)

    def shrink(self, limit: int) -> list[CachedStep]:
        """Remove the least recently used states until the rest fits; returns what went."""
        for left in self.folder.glob(".*.tmp"):  # of a process that was killed
            if time.time() - left.stat().st_ctime > ABANDONED:
                left.unlink(missing_ok=True)
        entries, gone = self.entries(), []
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= limit:
                break
            self.remove(entry.key)
            total -= entry.bytes
            gone.append(entry)
        return gone


def open_cache(limit: int) -> StepCache:
    return StepCache(cache_root() / "steps", limit)


def link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def parse_size(text: str) -> int:
    """Bytes of a size as people write it.

    >>> parse_size("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if not match:
        raise UserError(f"size '{text}': write for instance 500MB or 20GB")
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2] or " "))
