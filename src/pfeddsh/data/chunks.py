"""Encoded images where they lie: files of their own, or cells of parquet files, read when they are decoded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pfeddsh.errors import UserError

CHUNK = 1000  # images decoded between two writes


@dataclass(frozen=True)
class Chunk:
    """Images: files of their own, or rows of one row group of a parquet file."""

    paths: Sequence[str] = ()
    parquet: str = ""
    column: str = ""
    group: int = 0
    group_row: int = 0  # where the group begins in the file, to name a bad row
    rows: Sequence[int] = ()  # within the group

    def __len__(self) -> int:
        return len(self.paths) or len(self.rows)

    def take(self, index: Sequence[int]) -> "Chunk":
        return replace(
            self,
            paths=[self.paths[at] for at in index] if self.paths else (),
            rows=[self.rows[at] for at in index] if self.rows else (),
        )


def chunks_of_files(paths: Sequence[Path]) -> tuple[Chunk, ...]:
    names = [str(path) for path in paths]
    return tuple(Chunk(paths=names[at : at + CHUNK]) for at in range(0, len(names), CHUNK))


def select(chunks: Sequence[Chunk], index: Sequence[int]) -> tuple[Chunk, ...]:
    """Some of the images of consecutive chunks, given in increasing order."""
    found, first = [], 0
    wanted = np.asarray(index)
    for chunk in chunks:
        low, high = np.searchsorted(wanted, (first, first + len(chunk)))
        if high > low:
            found.append(chunk.take((wanted[low:high] - first).tolist()))
        first += len(chunk)
    return tuple(found)


def encoded(chunk: Chunk, read_group: Callable[[str, str, int], Any]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The words that name each image's place in an error, and the function that gives its bytes."""
    for path in chunk.paths:
        yield path, lambda path=path: _file(path)  # type: ignore[misc]
    if chunk.parquet:
        blobs = read_group(chunk.parquet, chunk.column, chunk.group)
        for row in chunk.rows:
            where = f"{chunk.parquet}, row {chunk.group_row + row}"
            yield where, lambda row=row: _cell(blobs[row], chunk.column)  # type: ignore[misc]


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from error


def _cell(blob: Any, column: str) -> bytes:
    if not blob.is_valid:
        raise ValueError(f"column '{column}' holds no image")
    content: bytes = blob.as_py()
    return content


def read_group(path: str, column: str, group: int) -> Any:
    """The encoded images of a row group, as an Arrow array."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            struct = pa.types.is_struct(file.schema_arrow.field(column).type)
            name = f"{column}.bytes" if struct else column
            table = file.read_row_group(group, columns=[name], use_threads=False)
        cells = table[column].combine_chunks()
        return cells.flatten()[0] if struct else cells
    except (pa.ArrowException, OSError, KeyError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(f"{path} is damaged in row group {group} ({first_line}); download it again") from error
