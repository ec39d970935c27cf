"""Datasets by name or path, as arrays: `load` is the only entrance, whatever the files look like."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data import own, store
from pfeddsh.data.fitting import Wanted
from pfeddsh.data.images import Resize, Shape
from pfeddsh.data.known import KNOWN
from pfeddsh.data.parquet import parquet
from pfeddsh.data.sources import Source
from pfeddsh.errors import UserError, unknown


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as uint8 (N, channels, height, width), mapped from disk, or features as float32 (N, features, 1, 1).

    Mean and std are per channel, of the training images, pixels counting 0 to 1. Where the data name the clients that
    own them, `clients_*` number these names.
    """

    name: str
    classes: int
    class_names: tuple[str, ...]
    x_train: npt.NDArray[Any]
    y_train: npt.NDArray[np.int64]
    x_test: npt.NDArray[Any]
    y_test: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float32]
    std: npt.NDArray[np.float32]
    fingerprint: str
    notes: tuple[str, ...] = ()  # how the images were fitted, and what was left out: sentences for people
    client_names: tuple[str, ...] = ()
    clients_train: npt.NDArray[np.int64] | None = None
    clients_test: npt.NDArray[np.int64] | None = None

    @property
    def shape(self) -> Shape:
        """Channels, height and width of an image; of features their number, 1 and 1."""
        channels, height, width = self.x_train.shape[1:]
        return channels, height, width


def absolute(name_or_path: str) -> str:
    """A path as it is known from every folder; names stay what they are."""
    path = Path(name_or_path).expanduser()
    return name_or_path if name_or_path in KNOWN or not path.exists() else str(path.absolute())


def load(
    name_or_path: str,
    data_dir: Path | None = None,
    class_names: tuple[str, ...] = (),
    *,
    shape: Shape | int | None = None,
    resize: Resize = "pad",
    skip_unreadable: bool = False,
    natural: bool = False,
) -> Dataset:
    """A known dataset, or the user's own: a folder of class folders, an .npz or a .parquet file.

    Images keep their size and channels, or are fitted to `shape` (a number: to a square, in their own colours), as
    `resize` says. Decoded at the first call, mapped from the cache afterwards. The files of a known dataset are looked
    for in `data_dir` (else in PFEDDSH_DATA), then in the user's cache, else downloaded. `class_names` say what the
    classes of the user's own data are among, if they need not all occur. `natural`: read who owns which image, too.
    """
    source = _source(name_or_path, data_dir, class_names, natural)
    decoded = store.open_or_build(source, Wanted(shape, resize, skip_unreadable))
    meta = decoded.meta
    return Dataset(
        name=source.name,
        classes=meta["classes"],
        class_names=tuple(meta["class_names"]),
        **decoded.arrays,
        mean=np.array(meta["mean"], dtype=np.float32),
        std=np.array(meta["std"], dtype=np.float32),
        fingerprint=meta["fingerprint"],
        notes=(*source.notes, *meta["notes"]),
        client_names=tuple(meta["client_names"]),
    )


def _source(name_or_path: str, data_dir: Path | None, class_names: tuple[str, ...], natural: bool) -> Source:
    if name_or_path in KNOWN:
        if natural:
            raise UserError(f"{name_or_path} has no clients of its own; partition = natural needs data that name them")
        return KNOWN[name_or_path].source(name_or_path, data_dir)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        if path.suffix in (".npz", ".parquet") or len(path.parts) > 1:
            raise UserError(f"no dataset at {path}: expected a folder of class folders, an .npz or a .parquet file")
        raise unknown("dataset", name_or_path, KNOWN)
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        return parquet(path, class_names, natural)
    return (own.folder if path.is_dir() else own.npz)(path, class_names, natural)
