"""Images in parquet files, in the layout of the Hugging Face hub: a column of encoded images, one of labels."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfeddsh.data.chunks import CHUNK, Chunk
from pfeddsh.data.sources import Source
from pfeddsh.data.splits import Raw, Split, checked_clients, checked_labels, named_classes, whole
from pfeddsh.errors import UserError

IMAGE, LABEL, CLIENT = ("image", "img"), "label", "client"


def parquet(path: Path, class_names: tuple[str, ...] = (), natural: bool = False) -> Source:
    """The user's own: a file, or a folder of train*.parquet and, if there is a test set, test*.parquet.

    Labels are whole numbers or names. A column `client` says who owns each row; it is read for natural clients.
    """
    path = path.resolve()
    train: tuple[Path, ...] = (path,)
    test: tuple[Path, ...] = ()
    if path.is_dir():
        everything = tuple(sorted(path.glob("*.parquet")))
        test = tuple(file for file in everything if file.name.startswith("test"))
        train = tuple(file for file in everything if file not in test)
    read = partial(_read, train, test, class_names, CLIENT if natural else "")
    return Source(path.stem, (*train, *test), read, class_names, natural=natural)


def _read(train: tuple[Path, ...], test: tuple[Path, ...], class_names: tuple[str, ...], client: str) -> Raw:
    known = class_names or _names_in(_schema(train[0]).metadata, LABEL)
    image = next((name for name in IMAGE if name in _schema(train[0]).names), IMAGE[0])
    columns = [_labels(files) for files in (train, test)]
    if columns[0].dtype.kind == "U":
        known = known or tuple(sorted(set(columns[0].tolist())))
        if extra := sorted(set(np.concatenate(columns).tolist()) - set(known)):
            raise UserError(f"{train[0].parent}: class '{extra[0]}' is none of {', '.join(known)}")
    names = known if columns[0].dtype.kind == "U" else ()
    splits = [
        read_parquet(files, image, LABEL, len(known) or None, client, names)[0] for files in (train, test) if files
    ]
    rest = splits[1] if test else None
    known = known or named_classes(splits[0].labels, rest.labels if rest else None, str(train[0]))
    return whole(splits[0], rest, known)


def _labels(files: Sequence[Path]) -> npt.NDArray[Any]:
    """The label column as it is: text or numbers; reading it twice costs little beside the images."""
    found = [_column(path, LABEL) for path in files]
    return np.concatenate(found) if found else np.empty(0, np.str_)


def _schema(path: Path) -> Any:
    with _opened(path) as file:
        return file.schema_arrow


def _column(path: Path, name: str) -> npt.NDArray[Any]:
    """A column of numbers, or of text as text."""
    with _opened(path) as file:
        if name not in file.schema_arrow.names:
            raise UserError(f"{path} has no column '{name}' (it has {', '.join(file.schema_arrow.names)})")
        values: npt.NDArray[Any] = file.read([name])[name].to_numpy()
    text = values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    return values.astype(np.str_) if text else values


class _opened:
    """A parquet file; whatever is wrong with it is said with its name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._errors = (pa.ArrowException, OSError)
        try:
            self._file = pq.ParquetFile(self.path)
        except self._errors as error:
            raise self._unreadable(error) from error
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, self._errors):
            raise self._unreadable(error) from error

    def _unreadable(self, error: BaseException) -> UserError:
        first_line = str(error).partition("\n")[0]
        return UserError(f"{self.path} is not a readable parquet file ({first_line}); download it again")


def read_parquet(
    files: Sequence[Path], image: str, label: str, classes: int | None, client: str = "", names: tuple[str, ...] = ()
) -> tuple[Split, tuple[str, ...]]:
    """One split in any number of shards, and the class names if the file tells them (Hugging Face's metadata).

    Where labels are text, `names` say which number each has.
    """
    import pyarrow as pa

    chunks: list[Chunk] = []
    labels, clients = [], []
    told: tuple[str, ...] = ()
    for path in files:
        with _opened(path) as file:
            schema, groups = file.schema_arrow, file.metadata
        for column in filter(None, (image, label, client)):
            if column not in schema.names:
                raise UserError(f"{path} has no column '{column}' (it has {', '.join(schema.names)})")
        kind = schema.field(image).type
        encoded = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
        if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
            raise UserError(f"{path}: column '{image}' is {kind}, expected struct<bytes: binary, path: string>")
        values = _column(path, label)
        if names:
            values = np.array([names.index(value) for value in values.tolist()], dtype=np.int64)
        labels.append(checked_labels(values, classes, str(path)))
        if client:
            clients.append(checked_clients(_column(path, client), len(values), f"{path}, column '{client}'"))
        told = told or _names_in(schema.metadata, label)
        start = 0
        for group in range(groups.num_row_groups):
            rows = groups.row_group(group).num_rows
            for first in range(0, rows, CHUNK):
                taken = range(first, min(first + CHUNK, rows))
                chunks.append(Chunk((), str(path), image, group, start, list(taken)))
            start += rows
    split = Split(tuple(chunks), np.concatenate(labels), np.concatenate(clients) if clients else None)
    return split, told if len(told) == classes else ()


def _names_in(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]))
    except (KeyError, ValueError, TypeError):
        return ()
