"""Encoded images (PNG, WebP, JPEG) to one uint8 array on disk, by several processes where there are many.

Pillow keeps Python's lock for most of the work on a small image, so threads gain nothing. The workers are plain
`python -m` processes that get their share as JSON: unlike a pool, they need no `__main__` guard in the user's script.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pfeddsh.data.images import SHAPE, decode
from pfeddsh.errors import UserError

CHUNK = 1000  # images decoded between two writes
WORTH_A_PROCESS = 4000  # fewer images than this are decoded sooner than a process starts


@dataclass(frozen=True)
class Chunk:
    """Consecutive images: files of their own, or rows of one row group of a parquet file."""

    paths: Sequence[str] = ()
    parquet: str = ""
    column: str = ""
    group: int = 0
    group_row: int = 0  # where the group begins in the file, to name a bad row
    first: int = 0
    count: int = 0

    def __len__(self) -> int:
        return len(self.paths) or self.count


Job = tuple[str, int, Chunk]  # the file to write to, where in it, and what


def chunks_of_files(paths: Sequence[Path]) -> tuple[Chunk, ...]:
    names = [str(path) for path in paths]
    return tuple(Chunk(paths=names[at : at + CHUNK]) for at in range(0, len(names), CHUNK))


def fill(targets: Sequence[tuple[Path, Sequence[Chunk]]]) -> None:
    """Decode each target's chunks, in order, into a new file in NumPy's format."""
    jobs: list[Job] = []
    for path, chunks in targets:
        shape = (sum(map(len, chunks)), *SHAPE)
        offset = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape).offset
        for chunk in chunks:
            jobs.append((str(path), offset, chunk))
            offset += len(chunk) * math.prod(SHAPE)
    workers = min(_cores(), sum(len(chunk) for _, _, chunk in jobs) // WORTH_A_PROCESS)
    if workers > 1 and sys.executable:
        bounds = [len(jobs) * worker // workers for worker in range(workers + 1)]
        _run_processes([jobs[low:high] for low, high in pairwise(bounds)])
    else:
        _write(jobs)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write(jobs: Iterable[Job]) -> None:
    """Plain writes at known offsets: a full disk is then an error, where a memory map would end the process."""
    read_group = lru_cache(maxsize=1)(_read_group)  # the chunks of a row group follow each other
    for path, offset, chunk in jobs:
        with open(path, "r+b") as file:
            file.seek(offset)
            for where, blob in _encoded(chunk, read_group):
                try:
                    pixels = decode(blob)
                except ValueError as error:
                    raise UserError(f"{where}: {error}") from error
                file.write(pixels.tobytes())


def _encoded(chunk: Chunk, read_group: Callable[[str, str, int], Any]) -> Iterator[tuple[str, bytes]]:
    """Each image's bytes and the words that name its place in an error."""
    if chunk.paths:
        for path in chunk.paths:
            try:
                yield path, Path(path).read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error
        return
    blobs = read_group(chunk.parquet, chunk.column, chunk.group).slice(chunk.first, chunk.count)
    for number, blob in enumerate(blobs, start=chunk.group_row + chunk.first):
        where = f"{chunk.parquet}, row {number}"
        if not blob.is_valid:
            raise UserError(f"{where}: column '{chunk.column}' holds no image")
        yield where, blob.as_py()


def _read_group(path: str, column: str, group: int) -> Any:
    """The encoded images of a row group, as an Arrow array."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group, columns=[f"{column}.bytes"], use_threads=False)
        return table[column].combine_chunks().flatten()[0]
    except (pa.ArrowException, OSError, KeyError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(f"{path} is damaged in row group {group} ({first_line}); download it again") from error


def _run_processes(shares: Sequence[Sequence[Job]]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "pfeddsh.data.decode"]
    running: list[subprocess.Popen[str]] = []
    try:
        for share in shares:
            process = subprocess.Popen(
                command,
                env=environment,
                text=True,
                encoding="utf-8",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            running.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died at once; what it said is read below
                json.dump([(path, offset, asdict(chunk)) for path, offset, chunk in share], process.stdin)
                process.stdin.close()
            process.stdin = None
        for process in running:
            said, trouble = process.communicate()
            if process.returncode:
                raise UserError(said or f"a decoding process died (code {process.returncode}): {trouble[-500:]}")
    finally:
        for process in running:
            process.kill()
            process.wait()


def _main() -> int:
    try:
        _write((path, offset, Chunk(**chunk)) for path, offset, chunk in json.load(sys.stdin))
    except UserError as error:
        print(error, end="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
