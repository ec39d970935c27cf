"""The datasets that have a name: what is in their files, and where these come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from pfeddsh.data import locate
from pfeddsh.data.download import Files, Origin, Shards
from pfeddsh.data.images import Shape
from pfeddsh.data.parquet import read_parquet
from pfeddsh.data.sources import Source, raw_arrays, read_digits, read_idx, read_npz
from pfeddsh.data.splits import Raw
from pfeddsh.errors import unknown

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Known(Protocol):
    """A dataset that has a name."""

    @property
    def origin(self) -> Origin | None: ...  # None: it comes with what is installed

    def source(self, name: str, data_dir: Path | None) -> Source: ...


@dataclass(frozen=True)
class Digits:
    """scikit-learn's."""

    origin: None = None

    def source(self, name: str, data_dir: Path | None) -> Source:
        return Source(name, (), read_digits)


@dataclass(frozen=True)
class Hub:
    """Images in parquet files, as the Hugging Face hub has them."""

    origin: Shards
    image: str
    label: str
    class_names: tuple[str, ...]
    shape: Shape

    def source(self, name: str, data_dir: Path | None) -> Source:
        train, test = locate.find(name, self.origin, data_dir)
        return Source(name, (*train, *test), partial(self.read, train, test), shape=self.shape)

    def read(self, train: tuple[Path, ...], test: tuple[Path, ...]) -> Raw:
        splits = [read_parquet(files, self.image, self.label, len(self.class_names)) for files in (train, test)]
        return Raw(splits[0][0], splits[1][0], splits[0][1] or self.class_names)


@dataclass(frozen=True)
class Published:
    """Arrays in files of their authors; `arrays` reads the four from the paths."""

    origin: Files
    class_names: tuple[str, ...]
    arrays: Callable[[tuple[Path, ...]], list[npt.NDArray[Any]]]

    def source(self, name: str, data_dir: Path | None) -> Source:
        (paths,) = locate.find(name, self.origin, data_dir)
        where = paths[0] if len(paths) == 1 else paths[0].parent

        def read() -> Raw:
            return raw_arrays(where, dict(zip(ARRAYS, self.arrays(paths), strict=True)), self.class_names)

        return Source(name, paths, read)


def _medmnist(paths: tuple[Path, ...]) -> list[npt.NDArray[Any]]:
    return list(read_npz(paths[0], ("train_images", "train_labels", "test_images", "test_labels")).values())


def _idx(paths: tuple[Path, ...]) -> list[npt.NDArray[Any]]:
    """Images have three dimensions, labels one: the names say it."""
    return [read_idx(path, int(path.name.partition("-idx")[2][0])) for path in paths]


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
KNOWN: dict[str, Known] = {
    "digits": Digits(),
    "cifar10": Hub(Shards("uoft-cs/cifar10", "plain_text", ("train", "test")), "img", "label", _CIFAR10, (3, 32, 32)),
    "cifar100": Hub(
        Shards("uoft-cs/cifar100", "cifar100", ("train", "test")), "img", "fine_label", _numbers(100), (3, 32, 32)
    ),
    "tiny-imagenet": Hub(
        Shards("zh-plus/tiny-imagenet", "data", ("train", "valid")), "image", "label", _numbers(200), (3, 64, 64)
    ),
    "pneumoniamnist": Published(
        Files(
            "medmnist",
            "https://zenodo.org/record/6496656/files/{}?download=1",
            {"pneumoniamnist.npz": "28209eda62fecd6e6a2d98b1501bb15f"},
        ),
        ("normal", "pneumonia"),
        _medmnist,
    ),
    "fashion-mnist": Published(
        Files(
            "fashion-mnist",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{}",
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
            installed=Path("/usr/share/datasets"),  # by Debian's package dataset-fashion-mnist
        ),
        _FASHION,
        _idx,
    ),
}


def names() -> list[str]:
    """The datasets known by name."""
    return list(KNOWN)


def origin(name: str) -> Origin | None:
    """Where a known dataset comes from; None if it comes with what is installed."""
    if name not in KNOWN:
        raise unknown("dataset", name, names())
    return KNOWN[name].origin
