"""Encoded images (PNG, WebP, JPEG, TIFF) to one uint8 array on disk, by several processes where there are many.

Pillow keeps Python's lock for most of the work on a small image, so threads gain nothing. The workers are plain
`python -m` processes that get their share as JSON: unlike a pool, they need no `__main__` guard in the user's script.
"""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pfeddsh.data import chunks
from pfeddsh.data.chunks import Chunk
from pfeddsh.data.images import Fit, Shape, decode, probe
from pfeddsh.errors import UserError

WORTH_A_PROCESS = 4000  # fewer images than this are decoded sooner than a process starts


@dataclass
class Found:
    """What decoding met: the shapes images came in, and, by file written to, the rows that could not be read."""

    sizes: Counter[Shape] = field(default_factory=Counter)
    bad: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, other: "Found") -> None:
        self.sizes.update(other.sizes)
        for path, rows in other.bad.items():
            self.bad.setdefault(path, {}).update(rows)


Job = tuple[str, int, Chunk]  # the file to write to, the first row in it, and what


def measure(images: Sequence[Chunk]) -> Counter[Shape]:
    """The shapes of encoded images; those that cannot be read are left to `fill`."""
    return _share([("", 0, chunk) for chunk in images], None, True).sizes


def fill(targets: Sequence[tuple[Path, Sequence[Chunk]]], fit: Fit, skip: bool = False) -> Found:
    """Decode each target's chunks, in order, into a new file in NumPy's format.

    An image that cannot be read is an error, or, with `skip`, a row of zeros that is reported.
    """
    jobs: list[Job] = []
    for path, images in targets:
        row = 0
        for chunk in images:
            jobs.append((str(path), row, chunk))
            row += len(chunk)
        np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(row, *fit.shape))
    return _share(jobs, fit, skip)


def _share(jobs: Sequence[Job], fit: Fit | None, skip: bool) -> Found:
    """The jobs, by processes where that pays."""
    workers = min(_cores(), sum(len(chunk) for _, _, chunk in jobs) // WORTH_A_PROCESS)
    if workers > 1 and sys.executable:
        bounds = [len(jobs) * worker // workers for worker in range(workers + 1)]
        return _run_processes([jobs[low:high] for low, high in pairwise(bounds)], fit, skip)
    return _write(jobs, fit, skip)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write(jobs: Iterable[Job], fit: Fit | None, skip: bool) -> Found:
    """Plain writes at known offsets: a full disk is then an error, where a memory map would end the process.

    Without a fit nothing is written, and images are only measured.
    """
    cached = lru_cache(maxsize=1)(chunks.read_group)  # the chunks of a row group follow each other
    found = Found()
    for path, first, chunk in jobs:
        images = _images(chunk, cached, fit, skip)
        if fit is None:
            found.sizes.update(shape for _, shape, trouble in images if not trouble)
            continue
        with open(path, "r+b") as file:
            file.seek(_begin(file) + first * math.prod(fit.shape))
            for row, (pixels, shape, trouble) in enumerate(images, first):
                if trouble:
                    found.bad.setdefault(path, {})[row] = trouble
                else:
                    found.sizes[shape] += 1
                file.write(pixels)
    return found


def _begin(file: Any) -> int:
    """Where the rows begin in a file in NumPy's format."""
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return int(file.tell())


def _images(
    chunk: Chunk, read_group: Callable[[str, str, int], Any], fit: Fit | None, skip: bool
) -> Iterator[tuple[bytes, Shape, str]]:
    """Each image's pixels and the shape it came in; or zeros, no shape, and its place if it cannot be read."""
    for where, read in chunks.encoded(chunk, read_group):
        try:
            if fit is None:
                yield b"", probe(read()), ""
            else:
                pixels, shape = decode(read(), fit)
                yield pixels.tobytes(), shape, ""
        except ValueError as error:
            if not skip:
                advice = "repair or remove it, or go on without such images: --skip-unreadable"
                raise UserError(f"{where}: {error}; {advice}") from error
            yield bytes(math.prod(fit.shape) if fit else 0), (0, 0, 0), where


def _run_processes(shares: Sequence[Sequence[Job]], fit: Fit | None, skip: bool) -> Found:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "pfeddsh.data.decode"]
    running: list[subprocess.Popen[str]] = []
    found = Found()
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
            jobs = [(path, first, asdict(chunk)) for path, first, chunk in share]
            with suppress(BrokenPipeError):  # it died at once; what it said is read below
                json.dump({"fit": asdict(fit) if fit else None, "skip": skip, "jobs": jobs}, process.stdin)
                process.stdin.close()
            process.stdin = None
        for process in running:
            said, trouble = process.communicate()
            if process.returncode:
                raise UserError(said or f"a decoding process died (code {process.returncode}): {trouble[-500:]}")
            found.add(_parse(said))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return found


def _parse(said: str) -> Found:
    content = json.loads(said)
    sizes = Counter({(c, height, width): count for (c, height, width), count in content["sizes"]})
    return Found(sizes, {path: {int(row): why for row, why in rows.items()} for path, rows in content["bad"].items()})


def _main() -> int:
    asked = json.load(sys.stdin)
    fit = Fit(tuple(asked["fit"]["shape"]), asked["fit"]["resize"]) if asked["fit"] else None
    try:
        found = _write(((path, first, Chunk(**chunk)) for path, first, chunk in asked["jobs"]), fit, asked["skip"])
    except UserError as error:
        print(error, end="")
        return 1
    json.dump({"sizes": list(found.sizes.items()), "bad": found.bad}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
