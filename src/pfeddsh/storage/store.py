"""A store of many small records, of which a snapshot writes only those that changed: what each client keeps to itself.

Records lie in packs, files that are written once. A snapshot names its packs in order; the last one that holds a key
has its record. Of a pack that is mostly outdated the rest moves on, and packs that no snapshot names are removed. So a
snapshot costs what changed since the last, a resumed run reads what it needs, and the rest lies on disk.
"""

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pfeddsh.errors import UserError
from pfeddsh.messages import BadMessage, Record, parsed, parted
from pfeddsh.storage.records import Damaged, write_record

PACK = 256  # records in a file
ROOM = 64_000_000  # bytes of records kept in memory


class Store(MutableMapping[str, Record]):
    """Records by key. What was read or written last stays in memory, as far as there is room."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self._folder, self._room = folder, room
        self._place: dict[str, str] = {}  # key -> the pack that has it
        self._packs: dict[str, int] = {}  # in order -> how many records it was written with
        self._live: dict[str, set[str]] = {}  # pack -> keys whose records it has
        self._recent: OrderedDict[str, Record] = OrderedDict()
        self._changed: dict[str, Record] = {}
        self._size = {"recent": 0, "changed": 0}
        self._stale: set[str] = set()  # packs with a record of a key that was deleted

    def __getitem__(self, key: str) -> Record:
        if key in self._changed:
            return self._changed[key]
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        try:
            record = read(self._folder / self._place[key], key)
        except Damaged as error:
            raise UserError(f"{error}; restore the folder from a backup, or start the run anew elsewhere") from error
        self._remember(key, record)
        return record

    def __setitem__(self, key: str, record: Record) -> None:
        self._leave(key)
        self._changed[key] = record
        self._size["changed"] += record.nbytes
        if self._size["changed"] > self._room:
            self._write()

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._leave(key)
        self._stale |= {pack for pack in self._packs if key in _sums(self._folder / pack)}

    def __contains__(self, key: object) -> bool:
        return key in self._place or key in self._changed

    def __iter__(self) -> Iterator[str]:
        yield from [*self._place, *self._changed]

    def __len__(self) -> int:
        return len(self._place) + len(self._changed)

    def _leave(self, key: str) -> None:
        """Whatever there was of a key is outdated."""
        if (pack := self._place.pop(key, None)) is not None:
            self._live[pack].discard(key)
        for kind, records in (("changed", self._changed), ("recent", self._recent)):
            if (old := records.pop(key, None)) is not None:
                self._size[kind] -= old.nbytes

    def _remember(self, key: str, record: Record) -> None:
        self._recent[key] = record
        self._size["recent"] += record.nbytes
        while self._size["recent"] > self._room:
            self._size["recent"] -= self._recent.popitem(last=False)[1].nbytes

    # On disk

    def purge(self) -> None:
        """With the next flush nothing outdated stays, not even on disk."""
        self._stale |= {pack for pack, count in self._packs.items() if len(self._live[pack]) < count}

    def flush(self) -> list[str]:
        """Write what changed; the packs that now hold everything, in order."""
        for pack, count in list(self._packs.items()):
            if pack in self._stale or 2 * len(self._live[pack]) < count:
                for key in sorted(self._live[pack]):
                    self[key] = self[key]
        self._write()
        self._packs = {pack: count for pack, count in self._packs.items() if self._live[pack]}
        self._live = {pack: self._live[pack] for pack in self._packs}
        self._stale.clear()
        return list(self._packs)

    def _write(self) -> None:
        keys = list(self._changed)
        if keys:
            self._folder.mkdir(exist_ok=True)
        for start in range(0, len(keys), PACK):
            own = keys[start : start + PACK]
            pack = write(self._folder, {key: self._changed[key] for key in own})
            self._packs.pop(pack, None)
            self._packs[pack], self._live[pack] = len(own), set(own)
            for key in own:
                self._place[key] = pack
                self._size["changed"] -= self._changed[key].nbytes
                self._remember(key, self._changed.pop(key))

    def sums(self) -> dict[str, str]:
        """The checksum of every record that is written."""
        found = {pack: _sums(self._folder / pack) for pack in self._packs}
        return {key: found[pack][key] for key, pack in self._place.items()}

    def adopt(self, packs: Iterable[str], sure: Iterable[str] = ()) -> None:
        """Continue with these packs; one that is not whole is `Damaged`. Those that are `sure` are read when asked."""
        self.__init__(self._folder, self._room)  # type: ignore[misc]
        trusted = set(sure)
        for pack in packs:
            keys = listed(self._folder / pack, whole=pack not in trusted)
            for key in keys:
                self._leave(key)
                self._place[key] = pack
            self._packs[pack], self._live[pack] = len(keys), set(keys)

    def sweep(self, named: Iterable[str]) -> None:
        """Remove packs that no snapshot names, and that hold nothing written since."""
        keep = {*named, *self._packs}
        for name in os.listdir(self._folder) if self._folder.exists() else ():
            if name.endswith(".pack") and name not in keep:
                (self._folder / name).unlink()


class Own(MutableMapping[int, Record]):
    """The records of one kind, by client."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store, self._kind = store, kind

    def __getitem__(self, client: int) -> Record:
        return self._store[f"{self._kind}/{client}"]

    def __setitem__(self, client: int, record: Record) -> None:
        self._store[f"{self._kind}/{client}"] = record

    def __delitem__(self, client: int) -> None:
        del self._store[f"{self._kind}/{client}"]

    def __contains__(self, client: object) -> bool:
        return f"{self._kind}/{client}" in self._store

    def __iter__(self) -> Iterator[int]:
        return (int(client) for kind, client in map(parted, self._store) if kind == self._kind)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def write(folder: Path, records: dict[str, Record]) -> str:
    """A pack of these records, named by its content."""
    bodies = {key: torch.frombuffer(bytearray(record.encode()), dtype=torch.uint8) for key, record in records.items()}
    sums = {key: hashlib.sha256(body.numpy().data).hexdigest() for key, body in bodies.items()}
    name = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:32] + ".pack"
    write_record(folder / name, Record(bodies, {"sums": sums}))
    return name


def listed(path: Path, whole: bool) -> list[str]:
    """The keys of a pack, whose name is the checksum of their checksums; `whole`: every record is read, and sound."""
    sums = _sums(path)
    name = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:32]
    if name != path.stem:
        raise Damaged(f"{path} does not match its name")
    for key in sums if whole else ():
        _body(path, key)
    return list(sums)


def read(path: Path, key: str) -> Record:
    try:
        return Record.decode(_body(path, key))
    except BadMessage as error:
        raise Damaged(f"{path}, {key}: {error}") from error


def _opened(path: Path) -> tuple[Any, dict[str, str]]:
    """A pack, mapped into memory, and its checksums."""
    try:
        found = path.stat()
        return _mapped(path, found.st_mtime_ns, found.st_ino)
    except Exception as error:  # of whatever kind: the file is not what was written
        raise Damaged(f"{path} cannot be read: {str(error)[:200]}") from error


@lru_cache(maxsize=64)
def _mapped(path: Path, _time: int, _file: int) -> tuple[Any, dict[str, str]]:
    opened: Any = safe_open(path, "pt")
    file = opened.__enter__()  # it stays open until nobody uses it
    sums: dict[str, str] = parsed(file.metadata()["facts"])["sums"]
    if set(sums) != set(file.keys()):
        raise ValueError("it lists other records than it has")
    return file, sums


def _sums(path: Path) -> dict[str, str]:
    return _opened(path)[1]


def _body(path: Path, key: str) -> bytes:
    file, sums = _opened(path)
    try:
        body: bytes = file.get_tensor(key).numpy().tobytes()
    except Exception as error:
        raise Damaged(f"{path} cannot be read: {str(error)[:200]}") from error
    if hashlib.sha256(body).hexdigest() != sums[key]:
        raise Damaged(f"{path}: {key} does not match its checksum")
    return body
