"""A coordinator does not outlive its `serve`: nobody is left behind with the lock on the state."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pfeddsh.storage.files import in_use

LOOK = 2.0  # seconds between two looks
GONE = 3  # looks in a row without a `serve` after which it counts as gone


def end_without(folder: Path, end: Callable[[], None] = lambda: os._exit(1), look: float = LOOK) -> threading.Thread:
    """End this process when nobody holds the lock of the folder any more, as `serve` does all its life.

    At once, whatever it is doing: what counts is on disk, and the next coordinator continues from there.
    """

    def watch() -> None:
        alone = 0
        while alone < GONE:
            time.sleep(look)
            alone = 0 if in_use(folder) else alone + 1
        end()

    thread = threading.Thread(target=watch, name="orphan", daemon=True)
    thread.start()
    return thread
