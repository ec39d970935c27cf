"""Atomic files: whoever reads sees the old content or the new one, never half of it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pfeddsh.errors import UserError

PATIENCE = 0.2  # seconds before a lock counts as taken: someone may only be looking


class Busy(UserError):
    """A folder another process works in."""


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place if all went well, and vanishes if not.

    `durable` waits for the disk, which guards against a power cut; against a killed process the renaming is enough.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write {path}: {why}; free some space or choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def writable(folder: Path) -> None:
    """Raise unless a folder can be made there, or is there, and written to; nothing is made yet.

    So a long computation does not end with a mistyped `--out`.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if nearest == folder and not nearest.is_dir():
        raise UserError(f"{folder} is a file; choose a folder that is new or empty")
    if not nearest.is_dir():
        raise UserError(f"cannot make {folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {nearest}: no permission; choose another folder")


def make_folder(folder: Path) -> None:
    """The folder and those above it, as far as they are missing."""
    writable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror or error}; choose another folder") from None


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process works in a folder at a time; the lock goes with the process, however it ends."""
    lock = FileLock(folder / ".lock", timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise Busy(f"{folder} is in use by another process; wait for it or choose another folder") from None
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether some process works in a folder; `locked` waits until we have looked.

    Not by the library, whose locks are exclusive: several may look at once, and with the right to read alone.
    """
    try:
        with open(folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
