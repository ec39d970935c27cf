"""Training and test images before decoding, and how a test set is split off where data come without one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data.chunks import Chunk, select
from pfeddsh.errors import UserError
from pfeddsh.rng import numpy_stream

Labels = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]

SHARE = 0.2  # of images that come without a test set
NAMED = 5  # clients in one sentence


@dataclass(frozen=True)
class Split:
    """Images as an array (or vectors of features, 2-d), or as chunks still on disk; a label each, and its client."""

    images: npt.NDArray[Any] | tuple[Chunk, ...]
    labels: Labels
    clients: Names | None = None  # the name of the client that owns each image, where the data tell

    def take(self, index: Index) -> "Split":
        """Some of the images, given in increasing order."""
        images = select(self.images, index.tolist()) if isinstance(self.images, tuple) else self.images[index]
        return Split(images, self.labels[index], None if self.clients is None else self.clients[index])

    def join(self, other: "Split") -> "Split":
        images: npt.NDArray[Any] | tuple[Chunk, ...]
        if isinstance(self.images, tuple):
            assert isinstance(other.images, tuple)
            images = self.images + other.images
        else:
            images = np.concatenate([self.images, np.asarray(other.images)])
        labels = np.concatenate([self.labels, other.labels])
        if self.clients is None or other.clients is None:
            return Split(images, labels)
        return Split(images, labels, np.concatenate([self.clients, other.clients]))


@dataclass(frozen=True)
class Raw:
    """A dataset before decoding."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def stratified(labels: Labels) -> tuple[Index, Index]:
    """Indices of a fixed 80/20 split, class by class, for data that come without a test set."""
    test: list[Index] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, round(SHARE * len(members)))
        test.append(numpy_stream(0, "split", int(label)).permutation(members)[:count])
    chosen = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def whole(train: Split, test: Split | None, class_names: tuple[str, ...]) -> Raw:
    """Training and test images; what is missing of the latter is split off, always in the same way, and said.

    Where images have clients, every client that has no test images gives a fifth of its own.
    """
    if train.clients is None:
        if test is not None:
            return Raw(train, test, class_names)
        kept, apart = stratified(train.labels)
        note = f"no test images came with the data: {len(apart)} of {len(train.labels)} images are set apart as such"
        return Raw(train.take(kept), train.take(apart), class_names, (note,))
    lacking = np.setdiff1d(train.clients, test.clients) if test and test.clients is not None else train.clients
    given = [_a_fifth(train, name) for name in sorted(set(lacking.tolist()))]
    apart = np.sort(np.concatenate([np.empty(0, np.int64), *given]))
    if not len(apart):
        return Raw(train, test or train.take(apart), class_names)
    kept = np.setdiff1d(np.arange(len(train.labels)), apart)
    moved = train.take(apart)
    givers = listed(in_order(set(train.clients[apart].tolist())))
    note = f"clients without test images set a fifth of theirs apart as such ({len(apart)} images): {givers}"
    return Raw(train.take(kept), test.join(moved) if test else moved, class_names, (note,))


def _a_fifth(train: Split, name: str) -> Index:
    """Of each class of a client as near to a fifth as can be, at least one image in all; nothing of two images."""
    own = np.flatnonzero(train.clients == name)
    if len(own) < 3:
        return own[:0]
    stream = numpy_stream(0, "test share", name)
    test: list[Index] = []
    for label in np.unique(train.labels[own]):
        members = own[train.labels[own] == label]
        test.append(stream.permutation(members)[: round(SHARE * len(members))])
    found = np.concatenate(test)
    return found if len(found) else stream.permutation(own)[:1]


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted as people sort: site-2 before site-10."""

    def key(name: str) -> tuple[list[str | int], str]:
        parts = re.split(r"(\d{1,18})", name)  # text and numbers in turn
        return [int(part) if at % 2 else part for at, part in enumerate(parts)], name

    return sorted(names, key=key)


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


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


def named_classes(train: Labels, test: Labels | None, where: str) -> tuple[str, ...]:
    """Class names for data that only number them: 0, 1, 2, ... without a gap."""
    found = np.unique(train)
    if len(found) < 2 or found[-1] != len(found) - 1 or (test is not None and test.max() > found[-1]):
        raise UserError(f"{where}: labels must be 0, 1, 2, ... with at least two classes, each in the training set")
    return tuple(str(label) for label in found)


def checked_clients(clients: npt.NDArray[Any], count: int, where: str) -> Names:
    """Client names as text, one per image; numbers are names too."""
    if clients.ndim == 2 and clients.shape[1] == 1:
        clients = clients[:, 0]
    if clients.dtype.kind == "O" and all(isinstance(name, str) for name in clients.ravel()):
        clients = clients.astype(np.str_)
    if clients.dtype.kind not in "iuU" or clients.shape != (count,):
        found = f"{clients.dtype} of shape {clients.shape}"
        raise UserError(f"{where}: clients are {found}, expected {count} names or whole numbers, one per image")
    names = clients.astype(np.str_)
    if (np.char.strip(names) == "").any():
        raise UserError(f"{where}, row {int(np.argmax(np.char.strip(names) == ''))}: the client's name is empty")
    return names
