"""Readers: where a dataset's files are and how their labels and images are laid out. Decoding is left to the store."""

import gzip
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data.decode import CHUNK, Chunk
from pfeddsh.data.images import layout
from pfeddsh.errors import UserError
from pfeddsh.rng import numpy_stream

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Images as an array, or as chunks of encoded images still on disk, and one label each."""

    images: npt.NDArray[Any] | tuple[Chunk, ...]
    labels: Labels


@dataclass(frozen=True)
class Raw:
    """A dataset before decoding."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The files a dataset depends on, found but not opened, and the function that opens them."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Raw]
    class_names: tuple[str, ...] = ()  # where they come from elsewhere, and not from the files


def stratified(labels: Labels) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of a fixed 80/20 split, class by class, for data that come without a test set."""
    test: list[npt.NDArray[np.int64]] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, round(0.2 * len(members)))
        test.append(numpy_stream(0, "split", int(label)).permutation(members)[:count])
    chosen = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def read_digits() -> Raw:
    """scikit-learn's 8x8 digits: real images that need no download."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    train, test = stratified(labels)
    names = tuple(str(digit) for digit in range(10))
    return Raw(Split(images[train], labels[train]), Split(images[test], labels[test]), names)


def read_parquet(files: Sequence[Path], image: str, label: str, classes: int) -> tuple[Split, tuple[str, ...]]:
    """One split in any number of shards, and the class names if the file tells them (Hugging Face's metadata)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chunks: list[Chunk] = []
    labels: list[Labels] = []
    names: tuple[str, ...] = ()
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                schema, groups = file.schema_arrow, file.metadata
                for column in (image, label):
                    if column not in schema.names:
                        raise UserError(f"{path} has no column '{column}' (it has {', '.join(schema.names)})")
                kind = schema.field(image).type
                if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
                    raise UserError(f"{path}: column '{image}' is {kind}, expected struct<bytes: binary, path: string>")
                labels.append(checked_labels(file.read([label])[label].to_numpy(), classes, str(path)))
        except (pa.ArrowException, OSError) as error:
            first_line = str(error).partition("\n")[0]
            raise UserError(f"{path} is not a readable parquet file ({first_line}); download it again") from error
        names = names or _names_in(schema.metadata, label)
        start = 0
        for group in range(groups.num_row_groups):
            rows = groups.row_group(group).num_rows
            for first in range(0, rows, CHUNK):
                chunks.append(Chunk((), str(path), image, group, start, first, min(CHUNK, rows - first)))
            start += rows
    return Split(tuple(chunks), np.concatenate(labels)), names if len(names) == classes else ()


def _names_in(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]))
    except (KeyError, ValueError, TypeError):
        return ()


def checked_labels(labels: npt.NDArray[Any], classes: int | None, where: str) -> Labels:
    """Labels as (N,) int64, every one of them a class of the dataset."""
    if labels.dtype.kind not in "iu":
        raise UserError(f"{where}: labels are {labels.dtype}, expected whole numbers, none missing")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not len(labels):
        raise UserError(f"{where}: labels have shape {labels.shape}, expected one per image")
    labels = labels.astype(np.int64)
    if labels.min() < 0 or (classes is not None and labels.max() >= classes):
        bad = int(np.flatnonzero((labels < 0) | (labels >= (classes or np.inf)))[0])
        expected = f"0 to {classes - 1}" if classes else "0, 1, 2, ..."
        raise UserError(f"{where}, row {bad}: label {labels[bad]}, expected {expected}")
    return labels


def raw_arrays(where: Path, arrays: Sequence[npt.NDArray[Any]], class_names: tuple[str, ...]) -> Raw:
    """Train images and labels, test images and labels; without class names, the labels must name 0..C-1 themselves."""
    classes = len(class_names) or None
    splits = []
    for name, x, y in (("train", arrays[0], arrays[1]), ("test", arrays[2], arrays[3])):
        labels = checked_labels(y, classes, f"{where} ({name})")
        try:
            x = layout(x)
        except ValueError as error:
            raise UserError(f"{where} ({name}): {error}") from error
        if len(labels) != len(x):
            raise UserError(f"{where}: {len(x)} {name} images but {len(labels)} labels")
        splits.append(Split(x, labels))
    if not class_names:
        found = np.unique(splits[0].labels)
        if len(found) < 2 or found[-1] != len(found) - 1 or splits[1].labels.max() > found[-1]:
            raise UserError(f"{where}: labels must be 0, 1, 2, ... with at least two classes, each in the training set")
        class_names = tuple(str(label) for label in found)
    return Raw(splits[0], splits[1], class_names)


def read_npz(path: Path, keys: Sequence[str]) -> list[npt.NDArray[Any]]:
    """The named arrays of a NumPy archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise UserError(f"{path} lacks {', '.join(missing)} (it has {', '.join(archive.files)})")
            return [archive[key] for key in keys]
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is not a readable npz archive ({error})") from error


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """A gzipped idx file (the format of MNIST) of bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
        header = 4 + 4 * dimensions
        magic, *shape = struct.unpack(f">{1 + dimensions}I", data[:header])
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path} is not a readable idx.gz file ({error}); download it again") from error
    if magic != 0x800 + dimensions or len(data) - header != int(np.prod(shape)):
        raise UserError(f"{path} is not an idx file of {dimensions} dimensions, or it is cut short; download it again")
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(shape)
