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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from pfeddsh.data.decode import Chunk, fill
from pfeddsh.data.images import SHAPE, Pixels, from_array
from pfeddsh.data.sources import Raw, Source
from pfeddsh.errors import UserError

VERSION = 1  # of the decoder: a change of pixels, splits or of the files here must raise it
ARRAYS = ("x_train", "y_train", "x_test", "y_test")

logger = logging.getLogger(__name__)


class Damaged(Exception):
    """A decoded copy that does not agree with what was written."""


@dataclass(frozen=True)
class Decoded:
    """A decoded copy as opened: the images mapped from disk, the labels in memory."""

    x_train: Pixels
    y_train: npt.NDArray[np.int64]
    x_test: Pixels
    y_test: npt.NDArray[np.int64]
    meta: dict[str, Any]


def cache_root() -> Path:
    return Path(os.environ.get("PFEDDSH_CACHE") or platformdirs.user_cache_dir("pfeddsh")).expanduser().absolute()


def open_or_build(source: Source) -> Decoded:
    """The decoded copy of the source, built where there is none, rebuilt (with a warning) where it is damaged."""
    folder = cache_root() / "decoded" / f"{source.name}-{_identity(source)}"
    for _ in range(3):  # another process may set a copy aside between our building and our opening it
        try:
            return _open(folder)
        except FileNotFoundError:
            pass
        except Damaged as error:
            warnings.warn(f"decoded copy {folder} is damaged ({error}); making it again", RuntimeWarning, stacklevel=3)
            _discard(folder)
        _build(source, folder)
    return _open(folder)


def _identity(source: Source) -> str:
    """Cheap: where the files are, their sizes and times, never their contents."""
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in source.files for stat in [path.stat()]]
    return hashlib.sha256(json.dumps([VERSION, files, *source.class_names]).encode()).hexdigest()[:16]


def _open(folder: Path) -> Decoded:
    if not folder.exists():
        raise FileNotFoundError(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta.pop("checksum") != _checksum(meta):
            raise Damaged("meta.json was altered")
        for name in ARRAYS:
            if (folder / f"{name}.npy").stat().st_size != meta["files"][f"{name}.npy"]:
                raise Damaged(f"{name}.npy has the wrong size")
        arrays = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r" if name[0] == "x" else None, allow_pickle=False)
            for name in ARRAYS
        }
        for split in ("train", "test"):
            x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
            if x.dtype != np.uint8 or x.shape[1:] != SHAPE or y.dtype != np.int64 or y.shape != x.shape[:1]:
                raise Damaged(f"the {split} arrays have the wrong type or shape")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(str(error) or type(error).__name__) from error
    return Decoded(**arrays, meta=meta)


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


def _build(source: Source, folder: Path) -> None:
    """Decode beside the final place, then rename; where another process was first, its copy is as good as ours."""
    logger.info("decoding %s once into %s", source.name, folder)
    raw = source.read()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            _write(raw, whole)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    except OSError as error:
        raise UserError(f"cannot write the cache {folder.parent} ({error}); set PFEDDSH_CACHE to a folder") from error


def _write(raw: Raw, folder: Path) -> None:
    encoded: list[tuple[Path, tuple[Chunk, ...]]] = []
    for name, split in (("train", raw.train), ("test", raw.test)):
        np.save(folder / f"y_{name}.npy", split.labels, allow_pickle=False)
        if isinstance(split.images, tuple):
            encoded.append((folder / f"x_{name}.npy", split.images))
        else:
            np.save(folder / f"x_{name}.npy", from_array(split.images), allow_pickle=False)
    fill(encoded)
    x_train = np.load(folder / "x_train.npy", mmap_mode="r", allow_pickle=False)
    mean, std = _moments(x_train)
    meta = {
        "classes": len(raw.class_names),
        "class_names": list(raw.class_names),
        "mean": mean,
        "std": std,
        "fingerprint": _fingerprint(folder),
        "files": {f"{name}.npy": (folder / f"{name}.npy").stat().st_size for name in ARRAYS},
    }
    (folder / "meta.json").write_text(json.dumps({**meta, "checksum": _checksum(meta)}, indent=1), "utf-8")


def _moments(images: Pixels) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of pixels in 0..1, exact from counts of the 256 values."""
    counts = np.zeros((3, 256))
    for at in range(0, len(images), 1000):
        for channel in range(3):
            counts[channel] += np.bincount(images[at : at + 1000, channel].ravel(), minlength=256)
    values, share = np.arange(256) / 255, counts / counts.sum(1, keepdims=True)
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
    return mean.tolist(), std.tolist()


def _fingerprint(folder: Path) -> str:
    """sha256 of the four arrays as stored: the same images and labels give the same text on every machine."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        with (folder / f"{name}.npy").open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
