"""Is all well? Asked by `/health`, the status page, the metrics and the alarm of `serve`; answered from the folder."""

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Event, Thread

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.pulse import stalled
from pfeddsh.live.coordinator.status import FILE, Status, read_status
from pfeddsh.storage.files import in_use

RESTARTS = "coordinator.restarts"  # how often `serve` had to start it again
LOOK = 15.0  # seconds between two looks of the alarm


@dataclass(frozen=True)
class Health:
    """The status, if there is one, and what is wrong; nothing if all is well."""

    status: Status | None
    running: bool
    stalled: str | None
    unreadable: str | None = None

    @property
    def problems(self) -> list[str]:
        absent = None if self.running or self.done else "the coordinator is not running; `serve` starts it again"
        return [problem for problem in (self.unreadable, absent, self.stalled) if problem]

    @property
    def done(self) -> bool:
        return self.status is not None and self.status.phase == "done"


def look(folder: Path, minutes: float) -> Health:
    """How the federation in this folder is; `minutes` without progress are a stall."""
    running = coordinator_runs(folder)
    try:
        found = (folder / FILE).stat()
        status = _read(folder, found.st_mtime_ns, found.st_ino)
    except FileNotFoundError:
        return Health(None, running, None)
    except UserError as error:
        return Health(None, running, None, str(error))
    return Health(status, running, stalled(status.phase, status.moved, minutes, datetime.datetime.now(datetime.UTC)))


@lru_cache(maxsize=2)
def _read(folder: Path, _time: int, _file: int) -> Status:
    """The status is replaced as a whole: a file of the same time and number is the same."""
    return read_status(folder)


def coordinator_runs(folder: Path) -> bool:
    """Whether the coordinator's process lives and holds the lock on the state, which goes with it however it ends."""
    try:
        os.kill(int((folder / "coordinator.pid").read_text()), 0)
        return in_use(folder / "state")
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False


def restarts(folder: Path) -> int:
    """How often the coordinator of this folder has ended before its work was done."""
    try:
        return int((folder / RESTARTS).read_text())
    except (OSError, ValueError):
        return 0


class Alarm:
    """Says once that nothing moves, and once that it moves again: a line in the log of `serve`."""

    def __init__(self, folder: Path, minutes: float, say: Callable[[str], None]) -> None:
        self._folder, self._minutes, self._say = folder, minutes, say
        self._raised = False
        self._over = Event()
        self._thread = Thread(target=self._run, name="alarm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        found = look(self._folder, self._minutes).stalled
        if found and not self._raised:
            self._say(f"ALERT: {found}")
        elif self._raised and not found:
            self._say("the federation moves again")
        self._raised = bool(found)

    def _run(self) -> None:
        while not self._over.wait(LOOK):
            self.check()
