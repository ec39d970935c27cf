"""Readers of arrays: where a dataset's labels and images are in its files. Decoding is left to the store."""

import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data.images import Shape, layout
from pfeddsh.data.splits import Raw, Split, checked_clients, checked_labels, named_classes, whole
from pfeddsh.errors import UserError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Source:
    """The files a dataset depends on, found but not opened, and the function that opens them."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Raw]
    class_names: tuple[str, ...] = ()  # where they come from elsewhere, and not from the files
    shape: Shape | None = None  # of all images, where it is known beforehand
    natural: bool = False  # whether images are read with the clients that own them
    notes: tuple[str, ...] = ()  # what was seen while looking for the files


def read_digits() -> Raw:
    """scikit-learn's 8x8 digits: real images that need no download."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    split = whole(Split(images, bunch.target.astype(np.int64)), None, tuple(str(digit) for digit in range(10)))
    return Raw(split.train, split.test, split.class_names)  # how it is split is no news here


def raw_arrays(where: Path, arrays: Arrays, class_names: tuple[str, ...]) -> Raw:
    """x_train, y_train and, where there are, x_test, y_test, client_train, client_test.

    Without class names, the labels must name 0..C-1 themselves.
    """
    classes = len(class_names) or None
    vectors = arrays["x_train"].ndim == 2
    splits = []
    for name in ("train", "test"):
        if f"x_{name}" not in arrays:
            continue
        x, place = arrays[f"x_{name}"], f"{where} ({name})"
        labels = checked_labels(arrays[f"y_{name}"], classes, place)
        if vectors or x.ndim == 2:
            _check_vectors(where, arrays)
            x = _features(x, place)
        else:
            try:
                x = layout(x)
            except ValueError as error:
                raise UserError(f"{place}: {error}") from error
        if len(labels) != len(x):
            raise UserError(f"{where}: {len(x)} {name} images but {len(labels)} labels")
        clients = arrays.get(f"client_{name}")
        splits.append(Split(x, labels, None if clients is None else checked_clients(clients, len(x), place)))
    train, test = splits[0], splits[1] if len(splits) > 1 else None
    return whole(train, test, class_names or named_classes(train.labels, test.labels if test else None, str(where)))


def _check_vectors(where: Path, arrays: Arrays) -> None:
    shapes = {name: arrays[name].shape for name in ("x_train", "x_test") if name in arrays}
    if any(len(shape) != 2 or shape[1] != shapes["x_train"][1] for shape in shapes.values()):
        found = " and ".join(f"{name} has shape {shape}" for name, shape in shapes.items())
        raise UserError(f"{where}: {found}; expected images in both, or vectors of as many features in both")


def _features(x: npt.NDArray[Any], where: str) -> npt.NDArray[np.float32]:
    """Vectors of numbers, none missing."""
    if x.dtype.kind not in "biuf" or 0 in x.shape:
        raise UserError(f"{where}: features are {x.dtype} of shape {x.shape}, expected numbers, rows x features")
    with np.errstate(over="ignore"):
        values = x.astype(np.float32)
    if not np.isfinite(values).all():
        row, column = (int(at) for at in np.argwhere(~np.isfinite(values))[0])
        raise UserError(f"{where}, row {row}, feature {column}: {x[row, column]}; fill in or leave out what is missing")
    return values


def read_npz(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """The named arrays of a NumPy archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise UserError(f"{path} lacks {', '.join(missing)} (it has {', '.join(archive.files)})")
            return {key: archive[key] for key in (*keys, *optional) if key in archive}
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
