"""From images as they are to arrays of one shape on disk, and the sentences that say what was done to them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data.decode import fill, measure
from pfeddsh.data.images import LARGEST, Fit, Resize, Shape, common, from_array, shape_of
from pfeddsh.data.splits import Index, Raw, Split, listed
from pfeddsh.errors import UserError

ROWS = 1000  # copied between two writes


@dataclass(frozen=True)
class Wanted:
    """What is asked of images: a shape (or the side of a square, or their own), how to fit them, whom to forgive."""

    shape: Shape | int | None = None
    resize: Resize = "pad"
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.shape, tuple) and (self.shape[0] not in (1, 3) or min(self.shape) < 1):
            raise UserError(f"images cannot be fitted to {text(self.shape)}: one channel or three are possible")


def write_images(raw: Raw, folder: Path, wanted: Wanted, known: Shape | None) -> tuple[dict[str, Index], list[str]]:
    """x_train.npy and x_test.npy, all images of one shape; which images are in them, and what there is to say."""
    splits = {"train": raw.train, "test": raw.test}
    paths = {name: folder / f"x_{name}.npy" for name in splits}
    kept = {name: np.arange(len(split.labels)) for name, split in splits.items()}
    if not isinstance(raw.train.images, tuple) and raw.train.images.ndim == 2:
        return kept, [_write_features(splits, paths, wanted)]
    fit = Fit(_target(splits, wanted, known), wanted.resize)
    sizes: Counter[Shape] = Counter()
    for name, split in splits.items():
        if not isinstance(split.images, tuple):
            sizes[shape_of(split.images)] += len(split.images)
            _write_rows(paths[name], np.uint8, (len(split.images), *fit.shape), from_array(split.images, fit))
    encoded = [(paths[name], split.images) for name, split in splits.items() if isinstance(split.images, tuple)]
    found = fill(encoded, fit, wanted.skip_unreadable)
    notes = [_note(sizes + found.sizes, fit, median=wanted.shape is None and known is None)]
    for name, path in paths.items():
        if bad := found.bad.get(str(path)):
            which = listed(["/".join(Path(place).parts[-3:]) for place in bad.values()])
            notes.append(f"{len(bad)} of {len(kept[name])} {name} images could not be read and are left out: {which}")
            kept[name] = np.setdiff1d(kept[name], list(bad))
            _keep(path, kept[name])
    if not all(map(len, kept.values())):
        raise UserError("no image of the training set, or of the test set, could be read")
    return kept, notes


def _write_features(splits: dict[str, Split], paths: dict[str, Path], wanted: Wanted) -> str:
    """Vectors lie as images of one pixel with a channel per feature, so that each is normalised by itself."""
    count = int(np.asarray(splits["train"].images).shape[1])
    if isinstance(wanted.shape, tuple):
        what = f"the data are vectors of {count} features, and this model takes images of {text(wanted.shape)}"
        raise UserError(f"{what}; choose a model for vectors: --model mlp")
    for name, split in splits.items():
        rows = np.asarray(split.images)
        _write_rows(paths[name], np.float32, (*rows.shape, 1, 1), rows)
    total = sum(len(split.labels) for split in splits.values())
    return f"{total} vectors of {count} features, each brought to mean 0 and standard deviation 1 of the training set"


def _target(splits: dict[str, Split], wanted: Wanted, known: Shape | None) -> Shape:
    if isinstance(wanted.shape, tuple):
        return wanted.shape
    own = known
    if own is None and not isinstance(splits["train"].images, tuple):
        own = shape_of(splits["train"].images)
    if own is None:
        sizes = measure([chunk for split in splits.values() for chunk in split.images])
        own = common(sizes) if sizes else (3, 1, 1)  # nothing is readable: decoding will say so
    return own if wanted.shape is None else (own[0], wanted.shape, wanted.shape)


def _write_rows(path: Path, dtype: type, shape: tuple[int, ...], rows: Iterable[npt.NDArray[Any]]) -> None:
    """A file in NumPy's format, row by row: memory need not hold it, and a full disk is an error."""
    with path.open("wb") as file:
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for row in rows:
            file.write(row.astype(dtype, copy=False).tobytes())


def _keep(path: Path, rows: Index) -> None:
    """Some rows of a file, in its place."""
    images, less = np.load(path, mmap_mode="r", allow_pickle=False), path.with_suffix(".less")
    parts = (images[rows[at : at + ROWS]] for at in range(0, len(rows), ROWS))
    _write_rows(less, np.uint8, (len(rows), *images.shape[1:]), parts)
    less.replace(path)


def text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _note(sizes: Counter[Shape], fit: Fit, median: bool) -> str:
    """How images came and what they are now (channels x height x width)."""
    count = f"{sizes.total()} images"
    if set(sizes) == {fit.shape}:
        return f"{count} of {text(fit.shape)} (channels x height x width), as they are"
    (most, _), several = sizes.most_common(1)[0], len(sizes) > 1
    came = f"{len(sizes)} shapes, most often {text(most)}" if several else text(most)
    channels, height, width = fit.shape
    how = []
    if any(shape[1:] != (height, width) for shape in sizes):
        how.append("resized")
    if any(shape[1] * width != shape[2] * height for shape in sizes):
        how.append("padded with black" if fit.resize == "pad" else "cut at the sides")
    if any(shape[0] != channels for shape in sizes):
        how.append("colour made grey" if channels == 1 else "grey repeated in three channels")
    shrunk = max(height, width) == LARGEST and any(max(shape) > LARGEST for shape in sizes)
    why = (", the largest if image_size is not set" if shrunk else ", their median size") if median else ""
    return f"{count} of {came} fitted to {text(fit.shape)} (channels x height x width){why}: {', '.join(how)}"
