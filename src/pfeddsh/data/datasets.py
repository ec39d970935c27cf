"""Datasets by name or path, as arrays: `load` is the only entrance, whatever the files look like."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pfeddsh.data import locate, own, store
from pfeddsh.data.images import Pixels
from pfeddsh.data.sources import Raw, Source, raw_arrays, read_digits, read_idx, read_npz, read_parquet
from pfeddsh.errors import UserError, unknown


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as uint8 (N, 3, 32, 32), mapped from disk; mean and std per channel of the training images in 0..1."""

    name: str
    classes: int
    class_names: tuple[str, ...]
    x_train: Pixels
    y_train: npt.NDArray[np.int64]
    x_test: Pixels
    y_test: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float32]
    std: npt.NDArray[np.float32]
    fingerprint: str


@dataclass(frozen=True)
class Hub:
    """A dataset in the layout of the Hugging Face hub: `<repo>/<folder>/<split>-*.parquet`."""

    repo: str
    folder: str
    image: str
    label: str
    class_names: tuple[str, ...]
    test: str = "test"

    def source(self, name: str, data_dir: Path | None) -> Source:
        train, test = locate.find_shards(name, self.repo, self.folder, ("train", self.test), data_dir)
        return Source(name, (*train, *test), partial(self.read, train, test))

    def read(self, train: tuple[Path, ...], test: tuple[Path, ...]) -> Raw:
        splits = [read_parquet(files, self.image, self.label, len(self.class_names)) for files in (train, test)]
        return Raw(splits[0][0], splits[1][0], splits[0][1] or self.class_names)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def _digits(name: str, data_dir: Path | None) -> Source:
    return Source(name, (), read_digits)


def _pneumoniamnist(name: str, data_dir: Path | None) -> Source:
    advice = "download pneumoniamnist.npz (28x28) of MedMNIST and put it there"
    (path,) = locate.find_files(name, "medmnist", ("pneumoniamnist.npz",), data_dir, advice)

    def read() -> Raw:
        keys = ("train_images", "train_labels", "test_images", "test_labels")
        return raw_arrays(path, read_npz(path, keys), ("normal", "pneumonia"))

    return Source(name, (path,), read)


def _fashion_mnist(name: str, data_dir: Path | None) -> Source:
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    advice = "install Debian's package dataset-fashion-mnist, or put Zalando's four files there"
    wanted = tuple(f"{kind}-ubyte.gz" for kind in kinds)
    paths = locate.find_files(name, name, wanted, data_dir, advice, elsewhere=Path("/usr/share/datasets"))
    names = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

    def read() -> Raw:
        arrays = [read_idx(path, int(kind[-1])) for path, kind in zip(paths, kinds, strict=True)]
        return raw_arrays(paths[0].parent, arrays, names)

    return Source(name, paths, read)


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_REGISTRY: dict[str, Callable[[str, Path | None], Source]] = {
    "digits": _digits,
    "cifar10": Hub("uoft-cs/cifar10", "plain_text", "img", "label", _CIFAR10).source,
    "cifar100": Hub("uoft-cs/cifar100", "cifar100", "img", "fine_label", _numbers(100)).source,
    "tiny-imagenet": Hub("zh-plus/tiny-imagenet", "data", "image", "label", _numbers(200), test="valid").source,
    "pneumoniamnist": _pneumoniamnist,
    "fashion-mnist": _fashion_mnist,
}


def names() -> list[str]:
    """The datasets known by name; `load` also takes a path."""
    return list(_REGISTRY)


def load(name_or_path: str, data_dir: Path | None = None, class_names: tuple[str, ...] = ()) -> Dataset:
    """A known dataset, or the user's own: a folder of class folders, or an .npz of x_train, y_train, x_test, y_test.

    Decoded at the first call, mapped from the cache afterwards. The files of a known dataset are looked for in
    `data_dir` (else in PFEDDSH_DATA), then in the user's cache, then on the hub. `class_names` say what the classes of
    the user's own data are among, if they need not all occur.
    """
    if name_or_path in _REGISTRY:
        source = _REGISTRY[name_or_path](name_or_path, data_dir)
    else:
        path = Path(name_or_path).expanduser()
        if not path.exists():
            if path.suffix == ".npz" or len(path.parts) > 1:
                raise UserError(f"no dataset at {path}: expected a folder of class folders or an .npz file")
            raise unknown("dataset", name_or_path, names())
        source = own.folder(path, class_names) if path.is_dir() else own.npz(path, class_names)
    decoded = store.open_or_build(source)
    meta = decoded.meta
    return Dataset(
        name=source.name,
        classes=meta["classes"],
        class_names=tuple(meta["class_names"]),
        x_train=decoded.x_train,
        y_train=decoded.y_train,
        x_test=decoded.x_test,
        y_test=decoded.y_test,
        mean=np.array(meta["mean"], dtype=np.float32),
        std=np.array(meta["std"], dtype=np.float32),
        fingerprint=meta["fingerprint"],
    )
