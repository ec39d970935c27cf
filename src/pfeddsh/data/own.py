"""The user's own data: a folder of class folders, or of client folders, or a NumPy archive."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pfeddsh.data.chunks import chunks_of_files
from pfeddsh.data.folders import ByClass, Walk
from pfeddsh.data.sources import Source, raw_arrays, read_npz
from pfeddsh.data.splits import Raw, Split, listed, whole
from pfeddsh.errors import UserError

Owned = list[tuple[str, ByClass]]  # the images of each client; of one without a name where there are none


def npz(path: Path, class_names: tuple[str, ...] = (), natural: bool = False) -> Source:
    """x_train, y_train and, if there is a test set, x_test, y_test; images as uint8, or vectors of features.

    client_train and client_test (or `client`, without a test set) name the owners. Where classes are given, labels
    number them.
    """
    path = path.resolve()
    if path.suffix != ".npz":
        raise UserError(f"{path}: expected a folder of class folders, an .npz or a .parquet file")
    return Source(path.stem, (path,), partial(_read_npz, path, class_names, natural), class_names, natural=natural)


def _read_npz(path: Path, class_names: tuple[str, ...], natural: bool) -> Raw:
    tests = ("x_test", "y_test", *(("client_test",) if natural else ()))
    owners = ("client_train", "client") if natural else ()
    arrays = read_npz(path, ("x_train", "y_train"), (*tests, *owners))
    if natural and "client_train" not in arrays and "client" not in arrays:
        raise UserError(f"{path} lacks client_train: natural clients need the owner of every row")
    if "client" in arrays:
        arrays.setdefault("client_train", arrays["client"])
    some = [name for name in tests if name in arrays]
    if some and len(some) < len(tests):
        missing = [name for name in tests if name not in arrays]
        raise UserError(f"{path} lacks {', '.join(missing)} beside {', '.join(some)}")
    return raw_arrays(path, arrays, class_names)


def folder(path: Path, class_names: tuple[str, ...] = (), natural: bool = False) -> Source:
    """`train/<class>/**` and `test/<class>/**`, or `<class>/**` alone, which is split 80/20, always in the same way.

    With natural clients all that lies in a folder per client: `<client>/<class>/**`, `<client>/train/<class>/**`.
    Where classes are given, a part of them may be missing, as at a site that has never met them.
    """
    path, walk = path.resolve(), Walk()
    train, test = (_clients if natural else _nobody)(path, walk)
    found = sorted({name for _, classes in train for name in classes})
    if class_names and (extra := sorted(set(found) - set(class_names))):
        raise UserError(f"{path}: class '{extra[0]}' is none of {', '.join(class_names)}")
    least = 1 if class_names else 2
    names = class_names or tuple(found)
    apart = not natural and bool(test)
    if len(found) < least:
        where = path / "train" if apart else path
        kind = "client folders with at least" if natural else "at least"
        raise UserError(f"{where}: expected {kind} {least} folders of images, one per class")
    for client, classes in test:
        if extra := sorted(set(classes) - set(names)):
            trained = path / "train" if apart else path
            raise UserError(f"{path / client / 'test'}: class '{extra[0]}' is not in {trained}")
    files = tuple(file for _, classes in (*train, *test) for images in classes.values() for file in images)
    read = partial(_read_folder, train, test, names, natural)
    notes = (*walk.notes(), *(() if natural or test else _looks_like_clients(path, train[0][1])))
    return Source(path.name, files, read, names, natural=natural, notes=notes)


def _nobody(path: Path, walk: Walk) -> tuple[Owned, Owned]:
    """Images without owners."""
    if not all((path / split).is_dir() for split in ("train", "test")):
        return [("", walk.by_class(path, 2))], []
    walk.unused = [folder.name for folder in walk.folders(path) if folder.name not in ("train", "test")]
    train, test = (walk.by_class(path / split, 1) for split in ("train", "test"))
    if train and not test:
        raise UserError(f"{path / 'test'}: expected the class folders of {path / 'train'}")
    return [("", train)], [("", test)]


def _clients(path: Path, walk: Walk) -> tuple[Owned, Owned]:
    """A folder per client; in it class folders, or train/ and, if it has tests, test/ with class folders."""
    train, test = Owned(), Owned()
    for client in walk.folders(path):
        inside = {folder.name for folder in Walk().folders(client)}
        if "train" in inside and inside <= {"train", "test"}:
            walk.folders(client)  # only to count what lies beside them
            train.append((client.name, walk.by_class(client / "train", 1)))
            test += [(client.name, walk.by_class(client / "test", 1))] if "test" in inside else []
        else:
            train.append((client.name, walk.by_class(client, 1)))
    return train, test


def _looks_like_clients(path: Path, classes: ByClass) -> tuple[str, ...]:
    """Folders that all hold the same folders are rather sites than classes: worth a word before a run is wasted."""
    inside = {frozenset(file.relative_to(path).parts[1] for file in files) for files in classes.values()}
    deep = all(len(file.relative_to(path).parts) > 2 for files in classes.values() for file in files)
    if not deep or len(inside) > 1 or len(names := next(iter(inside))) < 2:
        return ()
    alike = listed(sorted(names))
    return (f"every class folder holds the same folders ({alike}): if they are clients, use --partition natural",)


def _read_folder(train: Owned, test: Owned, class_names: tuple[str, ...], natural: bool) -> Raw:
    splits = [_split(part, class_names, natural) for part in (train, test) if part]
    return whole(splits[0], splits[1] if test else None, class_names)


def _split(part: Owned, class_names: tuple[str, ...], natural: bool) -> Split:
    rows: Sequence[tuple[Path, int, str]] = [
        (file, class_names.index(name), client) for client, classes in part for name, files in classes.items()
        for file in files
    ]  # fmt: skip
    files, labels, clients = zip(*rows, strict=True)
    owners = np.array(clients, dtype=np.str_) if natural else None
    return Split(chunks_of_files(files), np.array(labels, dtype=np.int64), owners)
