"""Datasets by name or path, as arrays: `load` is the only entrance, whatever the files look like."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data import locate, own, store
from pfeddsh.data.fitting import Wanted
from pfeddsh.data.images import Resize, Shape
from pfeddsh.data.parquet import parquet, read_parquet
from pfeddsh.data.sources import Source, raw_arrays, read_digits, read_idx, read_npz
from pfeddsh.data.splits import Raw
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


@dataclass(frozen=True)
class Hub:
    """A dataset in the layout of the Hugging Face hub: `<repo>/<folder>/<split>-*.parquet`."""

    repo: str
    folder: str
    image: str
    label: str
    class_names: tuple[str, ...]
    shape: Shape
    test: str = "test"

    def source(self, name: str, data_dir: Path | None) -> Source:
        train, test = locate.find_shards(name, self.repo, self.folder, ("train", self.test), data_dir)
        return Source(name, (*train, *test), partial(self.read, train, test), shape=self.shape)

    def read(self, train: tuple[Path, ...], test: tuple[Path, ...]) -> Raw:
        splits = [read_parquet(files, self.image, self.label, len(self.class_names)) for files in (train, test)]
        return Raw(splits[0][0], splits[1][0], splits[0][1] or self.class_names)


ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def _digits(name: str, data_dir: Path | None) -> Source:
    return Source(name, (), read_digits)


def _pneumoniamnist(name: str, data_dir: Path | None) -> Source:
    advice = "download pneumoniamnist.npz (28x28) of MedMNIST and put it there"
    (path,) = locate.find_files(name, "medmnist", ("pneumoniamnist.npz",), data_dir, advice)

    def read() -> Raw:
        found = read_npz(path, ("train_images", "train_labels", "test_images", "test_labels"))
        return raw_arrays(path, dict(zip(ARRAYS, found.values(), strict=True)), ("normal", "pneumonia"))

    return Source(name, (path,), read)


def _fashion_mnist(name: str, data_dir: Path | None) -> Source:
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    advice = "install Debian's package dataset-fashion-mnist, or put Zalando's four files there"
    wanted = tuple(f"{kind}-ubyte.gz" for kind in kinds)
    paths = locate.find_files(name, name, wanted, data_dir, advice, elsewhere=Path("/usr/share/datasets"))
    names = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

    def read() -> Raw:
        arrays = [read_idx(path, int(kind[-1])) for path, kind in zip(paths, kinds, strict=True)]
        return raw_arrays(paths[0].parent, dict(zip(ARRAYS, arrays, strict=True)), names)

    return Source(name, paths, read)


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_REGISTRY: dict[str, Callable[[str, Path | None], Source]] = {
    "digits": _digits,
    "cifar10": Hub("uoft-cs/cifar10", "plain_text", "img", "label", _CIFAR10, (3, 32, 32)).source,
    "cifar100": Hub("uoft-cs/cifar100", "cifar100", "img", "fine_label", _numbers(100), (3, 32, 32)).source,
    "tiny-imagenet": Hub(
        "zh-plus/tiny-imagenet", "data", "image", "label", _numbers(200), (3, 64, 64), test="valid"
    ).source,
    "pneumoniamnist": _pneumoniamnist,
    "fashion-mnist": _fashion_mnist,
}


def names() -> list[str]:
    """The datasets known by name; `load` also takes a path."""
    return list(_REGISTRY)


def absolute(name_or_path: str) -> str:
    """A path as it is known from every folder; names stay what they are."""
    path = Path(name_or_path).expanduser()
    return name_or_path if name_or_path in _REGISTRY or not path.exists() else str(path.absolute())


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
    for in `data_dir` (else in PFEDDSH_DATA), then in the user's cache, then on the hub. `class_names` say what the
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
    if name_or_path in _REGISTRY:
        if natural:
            raise UserError(f"{name_or_path} has no clients of its own; partition = natural needs data that name them")
        return _REGISTRY[name_or_path](name_or_path, data_dir)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        if path.suffix in (".npz", ".parquet") or len(path.parts) > 1:
            raise UserError(f"no dataset at {path}: expected a folder of class folders, an .npz or a .parquet file")
        raise unknown("dataset", name_or_path, names())
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        return parquet(path, class_names, natural)
    return (own.folder if path.is_dir() else own.npz)(path, class_names, natural)
