"""The user's own data: a folder of class folders, or a NumPy archive."""

from functools import partial
from pathlib import Path

import numpy as np

from pfeddsh.data.decode import chunks_of_files
from pfeddsh.data.sources import Raw, Source, Split, raw_arrays, read_npz, stratified
from pfeddsh.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def npz(path: Path, class_names: tuple[str, ...] = ()) -> Source:
    """x_train, y_train, x_test, y_test; images as uint8. Where classes are given, labels number them."""
    path = path.resolve()
    if path.suffix != ".npz":
        raise UserError(f"{path}: expected a folder of class folders or an .npz file")

    def read() -> Raw:
        return raw_arrays(path, read_npz(path, ("x_train", "y_train", "x_test", "y_test")), class_names)

    return Source(path.stem, (path,), read, class_names)


def folder(path: Path, class_names: tuple[str, ...] = ()) -> Source:
    """`train/<class>/*` and `test/<class>/*`, or `<class>/*` alone, which is split 80/20, always in the same way.

    Where classes are given, a part of them may be missing, as at a site that has never met them.
    """
    path = path.resolve()
    apart = all((path / split).is_dir() for split in ("train", "test"))
    parts = [_images_by_class(path / split, 1) for split in ("train", "test")] if apart else [_images_by_class(path, 2)]
    if class_names and (extra := sorted(set(parts[0]) - set(class_names))):
        raise UserError(f"{path}: class '{extra[0]}' is none of {', '.join(class_names)}")
    least = 1 if class_names else 2
    class_names = class_names or tuple(parts[0])
    if len(parts[0]) < least:
        where = path / "train" if apart else path
        raise UserError(f"{where}: expected at least {least} folders of images, one per class")
    if apart and not parts[1]:
        raise UserError(f"{path / 'test'}: expected the class folders of {path / 'train'}")
    if apart and (extra := sorted(set(parts[1]) - set(class_names))):
        raise UserError(f"{path / 'test'}: class '{extra[0]}' is not in {path / 'train'}")
    files = tuple(image for part in parts for images in part.values() for image in images)
    return Source(path.name, files, partial(_read_folder, parts, class_names), class_names)


def _images_by_class(path: Path, least: int) -> dict[str, list[Path]]:
    found = {}
    for directory in sorted(path.iterdir()):
        if directory.is_dir() and not directory.name.startswith("."):
            images = sorted(file for file in directory.iterdir() if file.suffix.lower() in SUFFIXES)
            if len(images) < least:
                raise UserError(f"{directory}: {len(images)} images, at least {least} needed ({', '.join(SUFFIXES)})")
            found[directory.name] = images
    return found


def _read_folder(parts: list[dict[str, list[Path]]], class_names: tuple[str, ...]) -> Raw:
    splits = []
    for part in parts:
        paths = [image for images in part.values() for image in images]
        labels = np.repeat([class_names.index(name) for name in part], [len(images) for images in part.values()])
        splits.append((paths, labels.astype(np.int64)))
    if len(splits) == 1:
        paths, labels = splits[0]
        splits = [([paths[at] for at in chosen], labels[chosen]) for chosen in stratified(labels)]
    train, test = (Split(chunks_of_files(paths), labels) for paths, labels in splits)
    return Raw(train, test, class_names)
