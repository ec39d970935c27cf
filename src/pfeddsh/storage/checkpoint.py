"""Snapshots and a journal: what a killed run continues from, to the same bits.

A snapshot is the whole state at a moment; the journal holds what the clients sent in each round since. Aggregation is
deterministic, so state = snapshot + journal, and a round costs a write of its uploads, not of a 127 MB hypernetwork.
A simulation writes them while the next round trains: killed, it loses that round and perhaps the one before.
The last two snapshots stay, with the journal since the older, so that a damaged one does not matter. What clients
keep lies in a store beside them, of which a snapshot names the files: it costs what changed, however many there are.
"""

import re
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pfeddsh.errors import UserError
from pfeddsh.messages import Parts, Record, State, bundle, parted, unbundle
from pfeddsh.storage.records import Damaged, read_facts, read_record, write_record
from pfeddsh.storage.settled import Settled
from pfeddsh.storage.store import Store

STORE = "store"  # the part of a snapshot that names the packs of the store, and the files of settled tensors
NOTHING: dict[str, Any] = {"packs": [], "settled": {}}  # what a snapshot that holds everything names
OWN = ("memory", "private", "offer", "rows")  # kinds of records that lie there
Moment = tuple[int, int]  # (step, rounds of it that are done); (t, 0) means step t-1 is closed and t not yet open


@dataclass
class Checkpoints:
    """The `state/` folder of a run."""

    folder: Path
    interval: float = 60.0  # seconds between snapshots within a step
    strict: bool = False  # wait for the journal; refuse to begin anew where every snapshot is damaged, and gaps
    whole: bool = False  # snapshots hold the store's records themselves, for others to take
    _last: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store, self._settled = Store(self.folder / "clients"), Settled(self.folder / "settled")
        self._files_of: dict[str, str] = {}  # of settled tensors of the state, by name
        self._named: dict[Path, list[str]] = {}  # the files beside it that each snapshot needs
        self._writer = ThreadPoolExecutor(1, "journal")
        self._pending: Future[None] | None = None
        self._writing: tuple[Path, list[tuple[Tensor, int]]] = self.folder, []  # that, with each tensor's version
        for left in self.folder.rglob(".*.tmp"):  # half-written when a process was killed; we hold the folder's lock
            left.unlink()
        self._last = time.monotonic()

    def _path(self, kind: str, moment: Moment) -> Path:
        return self.folder / f"{kind}-{moment[0]:03d}-{moment[1]:05d}.safetensors"

    def _files(self, kind: str) -> dict[Moment, Path]:
        found = {}
        for path in self.folder.glob(f"{kind}-*.safetensors"):
            if match := re.fullmatch(rf"{kind}-(\d+)-(\d+)", path.stem):
                found[int(match[1]), int(match[2])] = path
        return dict(sorted(found.items()))

    def due(self, moment: Moment) -> bool:
        """Whether to write a snapshot at this moment within a step."""
        return time.monotonic() - self._last > self.interval

    def snapshot(self, moment: Moment, parts: Parts) -> None:
        """Write the state and what changed in the store; forget what is older than the snapshot before."""
        self.wait()
        path = self._path("snapshot", moment)
        if self.whole:
            write_record(path, bundle({**parts, **self.store}))
        else:
            moving = self._moving(parts["state"])
            told = {"packs": self.store.flush(), "settled": self._files_of}
            write_record(path, bundle({**parts, "state": moving, STORE: Record(facts=told)}))
            self._named[path] = _files(told)
        keep = list(self._files("snapshot"))[-2:]
        for kind in ("snapshot", "round"):
            for old, path in self._files(kind).items():
                if old < keep[0]:
                    self._remove(path)
        self._sweep()
        self._last = time.monotonic()

    def settle(self, state: State, names: Iterable[str]) -> None:
        """These tensors will not change again: they move out of memory and of the snapshots to come."""
        for name in [] if self.whole else names:
            if name not in self._files_of:
                self._files_of[name], state[name] = self._settled.write(state[name])

    def _moving(self, state: State) -> State:
        """The state without what is settled; what has been deleted from it is forgotten here too."""
        self._files_of = {name: file for name, file in self._files_of.items() if name in state}
        return State({name: part for name, part in state.tensors.items() if name not in self._files_of}, state.facts)

    def _remove(self, path: Path) -> None:
        path.unlink()
        self._named.pop(path, None)

    def _sweep(self) -> None:
        """Remove what no snapshot refers to."""
        named = {file for files in self._named.values() for file in files}
        self.store.sweep(named)
        self._settled.sweep(named | set(self._files_of.values()))

    def rewrite(self, moment: Moment, parts: Parts) -> None:
        """Write the whole state and keep nothing else: what was deleted in it must not stay in an older file."""
        self.store.purge()
        self.snapshot(moment, parts)
        self.thin()

    def thin(self) -> None:
        """Keep the last snapshot alone: of a run that is over, nothing else will be asked for."""
        self.wait()
        last = max(self._files("snapshot"), default=None)
        for kind in ("snapshot", "round"):
            for moment, path in self._files(kind).items():
                if kind == "round" or moment != last:
                    path.unlink()
        self._named = {path: _named(path) for path in self._files("snapshot").values()}
        self._sweep()

    def round(self, moment: Moment, parts: Parts) -> None:
        """Write what one round brought; `moment` is the one after it. One lost to a power cut is computed again."""
        if self.strict:
            for later, path in self._files("round").items():
                if later > moment:  # of a copy that was taken while we worked: they follow from another round than this
                    path.unlink()
        self.wait()
        record, path = bundle(parts), self._path("round", moment)
        self._writing = path, [(t, t._version) for t in record.tensors.values() if not t.is_inference()]
        self._pending = self._writer.submit(write_record, path, record, durable=False)
        if self.strict:
            self.wait()

    def wait(self) -> None:
        """Until the round before is in the journal; what kept it out, a full disk perhaps, is raised here."""
        if (pending := self._pending) is None:
            return
        try:
            pending.result()
        finally:
            if pending.done():  # if not, whoever is interrupted here has to wait again
                self._pending = None
        path, tensors = self._writing
        self._writing = path, []
        if any(tensor._version != version for tensor, version in tensors):
            path.unlink(missing_ok=True)
            raise UserError("the method has changed an upload in place, which the journal of the round still needs")

    def latest(self) -> tuple[Moment, Parts] | None:
        """The newest snapshot that is whole; damaged ones are named in a warning and passed over."""
        self.wait()
        files = self._files("snapshot")
        self._named = {path: _named(path) for path in files.values()}
        for moment, path in reversed(files.items()):
            older = next((self._named[other] for at, other in files.items() if at < moment), [])
            try:
                return moment, self._opened(path, older)
            except Damaged as error:
                where = "" if str(path) in str(error) else f"{path}: "
                warnings.warn(f"{where}{error}; using the checkpoint before it", stacklevel=2)
        self.store.adopt([])
        self._files_of = {}
        if self.strict and self._files("snapshot"):
            raise UserError(
                f"{self.folder}: every snapshot is damaged, so nobody knows what was served; restore the folder from a "
                "backup (to begin anew, use a new folder)"
            )
        return None

    def _opened(self, path: Path, older: list[str]) -> Parts:
        """The parts of a snapshot; its store is ours now. Packs that the snapshot before had too are not read again."""
        parts = _parts(path)
        told = parts.pop(STORE, Record(facts=NOTHING)).facts
        self.store.adopt(told["packs"], sure=older)
        self._files_of = dict(told["settled"])
        for name, file in self._files_of.items():
            parts["state"][name] = self._settled.read(file)
        for key in [key for key in parts if parted(key)[0] in OWN]:
            self.store[key] = parts.pop(key)
        self._sweep()
        return parts

    def recorded(self, moment: Moment) -> Parts | None:
        """What the journal has of the round that led to `moment`; None if it is to be computed again."""
        path = self._path("round", moment)
        if not path.exists():
            return None
        try:
            return _parts(path)
        except Damaged as error:
            warnings.warn(f"{error}; computing that round again", stacklevel=2)
            return None


def _named(path: Path) -> list[str]:
    """The files that a snapshot needs; none if it is damaged."""
    try:
        return _files(read_facts(path).get(STORE, NOTHING))
    except (Damaged, KeyError, TypeError, AttributeError):
        return []


def _files(told: Mapping[str, Any]) -> list[str]:
    return [*told["packs"], *told["settled"].values()]


def _parts(path: Path) -> Parts:
    try:
        return unbundle(read_record(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} is no checkpoint: {type(error).__name__}") from error
