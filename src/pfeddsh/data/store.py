"""The decoded copy of a dataset: memory-mapped arrays in the user's cache, made once and checked at every start.

A copy is written beside its place and renamed, so a killed or second builder never leaves or sees half of one.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from pfeddsh.data.fitting import Wanted, write_images
from pfeddsh.data.sources import Source
from pfeddsh.data.splits import Raw, in_order
from pfeddsh.errors import UserError

VERSION = 2  # of the decoder: a change of pixels, splits or of the files here must raise it
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
OWNERS = ("clients_train", "clients_test")  # beside them, where the data name clients

logger = logging.getLogger(__name__)


class Altered(Exception):
    """A decoded copy that does not agree with what was written."""


class Unwritable(UserError):
    """A cache that keeps nothing: what it would save is lost, no more."""


@dataclass(frozen=True)
class Decoded:
    """A decoded copy as opened: the images mapped from disk, labels and owners in memory."""

    arrays: dict[str, npt.NDArray[Any]]
    meta: dict[str, Any]


def cache_root() -> Path:
    return Path(os.environ.get("PFEDDSH_CACHE") or platformdirs.user_cache_dir("pfeddsh")).expanduser().absolute()


def open_or_build(source: Source, wanted: Wanted) -> Decoded:
    """The decoded copy of the source, built where there is none, rebuilt (with a warning) where it is damaged."""
    folder = cache_root() / "decoded" / f"{source.name}-{_identity(source, wanted)}"
    try:
        return _kept(source, wanted, folder)
    except Unwritable as error:
        warnings.warn(f"{error}; decoding for this process alone", RuntimeWarning, stacklevel=3)
    with tempfile.TemporaryDirectory(prefix="pfeddsh-") as scratch:  # the maps outlive the names of their files
        _build(source, wanted, Path(scratch) / folder.name)
        return _open(Path(scratch) / folder.name)


def _kept(source: Source, wanted: Wanted, folder: Path) -> Decoded:
    for _ in range(3):  # another process may set a copy aside between our building and our opening it
        try:
            return _open(folder)
        except FileNotFoundError:
            pass
        except Altered as error:
            warnings.warn(f"decoded copy {folder} is damaged ({error}); making it again", RuntimeWarning, stacklevel=3)
            _discard(folder)
        _build(source, wanted, folder)
    return _open(folder)


def _identity(source: Source, wanted: Wanted) -> str:
    """Cheap: where the files are, their sizes and times, never their contents."""
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in source.files for stat in [path.stat()]]
    depends = [VERSION, files, source.class_names, source.natural, asdict(wanted)]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]


def _open(folder: Path) -> Decoded:
    if not folder.exists():
        raise FileNotFoundError(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta.pop("checksum") != _checksum(meta):
            raise Altered("meta.json was altered")
        names = ARRAYS + (OWNERS if meta["client_names"] else ())
        for name in names:
            if (folder / f"{name}.npy").stat().st_size != meta["files"][f"{name}.npy"]:
                raise Altered(f"{name}.npy has the wrong size")
        arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r" if name[0] == "x" else None, allow_pickle=False)
            for name in names
        }
        for split in ("train", "test"):
            x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
            numbers = [y] + ([arrays[f"clients_{split}"]] if meta["client_names"] else [])
            good = x.dtype in (np.uint8, np.float32) and x.shape[1:] == tuple(meta["shape"])
            if not good or any(n.dtype != np.int64 or n.shape != x.shape[:1] for n in numbers):
                raise Altered(f"the {split} arrays have the wrong type or shape")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Altered(str(error) or type(error).__name__) from error
    return Decoded(arrays, meta)


def _checksum(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _discard(folder: Path) -> None:
    """Renamed first: whoever looks meanwhile finds a whole folder or none."""
    aside = folder.with_name(f".{folder.name}.damaged-{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _build(source: Source, wanted: Wanted, folder: Path) -> None:
    """Decode beside the final place, then rename; where another process was first, its copy is as good as ours."""
    logger.info("decoding %s once into %s", source.name, folder)
    raw = source.read()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir(mode=0o700)  # decoded images are as private as the files they come from
            _write(raw, whole, source, wanted)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    except OSError as error:
        raise Unwritable(f"cannot write the cache {folder.parent} ({error}); set PFEDDSH_CACHE to a folder") from error


def _write(raw: Raw, folder: Path, source: Source, wanted: Wanted) -> None:
    kept, notes = write_images(raw, folder, wanted, source.shape)
    names: list[str] = []
    if raw.train.clients is not None and raw.test.clients is not None:
        names = in_order({*raw.train.clients.tolist(), *raw.test.clients.tolist()})
    for name, split in (("train", raw.train), ("test", raw.test)):
        np.save(folder / f"y_{name}.npy", split.labels[kept[name]], allow_pickle=False)
        if split.clients is not None:
            number = {client: at for at, client in enumerate(names)}
            owners = np.array([number[client] for client in split.clients[kept[name]].tolist()], dtype=np.int64)
            np.save(folder / f"clients_{name}.npy", owners, allow_pickle=False)
    files = [f"{name}.npy" for name in ARRAYS + (OWNERS if names else ())]
    x_train = np.load(folder / "x_train.npy", mmap_mode="r", allow_pickle=False)
    mean, std = _moments(x_train)
    meta = {
        "classes": len(raw.class_names),
        "class_names": list(raw.class_names),
        "client_names": names,
        "shape": x_train.shape[1:],
        "mean": mean,
        "std": std,
        "notes": [*notes, *raw.notes],
        "fingerprint": _fingerprint([folder / file for file in files], names),
        "files": {file: (folder / file).stat().st_size for file in files},
    }
    (folder / "meta.json").write_text(json.dumps({**meta, "checksum": _checksum(meta)}, indent=1), "utf-8")


def _moments(images: npt.NDArray[Any]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel: of pixels in 0..1, exact from counts of the 256 values; of features.

    A feature that is always the same gets the deviation 1: it is no use, and must not be divided by nothing.
    """
    if images.dtype == np.float32:
        values = images.reshape(len(images), -1).astype(np.float64)
        std = values.std(0)
        return values.mean(0).tolist(), np.where(std > 0, std, 1).tolist()
    counts = np.zeros((images.shape[1], 256))
    for at in range(0, len(images), 1000):
        for channel in range(images.shape[1]):
            counts[channel] += np.bincount(images[at : at + 1000, channel].ravel(), minlength=256)
    levels, share = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = share @ levels
    std = np.sqrt(np.maximum(share @ levels**2 - mean**2, 0))
    return mean.tolist(), std.tolist()


def _fingerprint(files: Sequence[Path], client_names: Sequence[str]) -> str:
    """sha256 of the arrays as stored: the same images, labels and owners give the same text on every machine."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    if client_names:
        digest.update(json.dumps(list(client_names)).encode())
    return digest.hexdigest()
