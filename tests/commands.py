"""`pfeddsh` as a process of its own, forked where everything is imported: a test need not wait two seconds for that."""

import functools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pfeddsh.cli import main
from pfeddsh.federation import forker

KILLED = -signal.SIGKILL
ATTEMPTS = 5


class TooLate(Exception):
    """What was to be interrupted had ended before the blow; that says nothing of the code."""


def in_time(test: Callable[..., None]) -> Callable[..., None]:
    """Once more from the beginning, in a new folder, if a blow came too late: a busy machine may be slow to strike."""

    @functools.wraps(test)
    def attempts(tmp_path: Path, **fixtures: object) -> None:
        for attempt in range(ATTEMPTS):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            try:
                return test(folder, **fixtures)
            except TooLate:
                continue
        raise AssertionError(f"{ATTEMPTS} times too late")

    return attempts


class Command:
    """A command that runs, in a process group of its own; what it prints goes to `log`."""

    def __init__(self, log: Path, *arguments: object, **environment: str) -> None:
        self.log = log
        self.pid, self._pipe = forker.fork("commands:serve", log, environment)
        self._pipe.sendall(json.dumps([str(argument) for argument in arguments]).encode() + b"\n")

    def poll(self) -> int | None:
        """The exit code, once there is one; a process that says nothing at its end was killed."""
        try:
            told = self._pipe.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except ConnectionError:
            told = b""
        return told[0] if told else KILLED

    def wait(self, seconds: float = 600.0) -> int:
        deadline = time.monotonic() + seconds
        with self._pipe:
            while (code := self.poll()) is None or forker.alive(self.pid):
                assert time.monotonic() < deadline, f"still running: {self.log.read_text()}"
                time.sleep(0.005)
        return code

    def send(self, blow: signal.Signals) -> None:
        os.kill(self.pid, blow)


def told(log: Path, *arguments: object, code: int = 0, **environment: str) -> str:
    """What a command prints; it must end with this exit code."""
    ended = Command(log, *arguments, **environment).wait()
    assert ended == code, log.read_text()
    return log.read_text()


def serve(handle: int) -> None:
    """The command's side."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with socket.socket(fileno=handle) as pipe, pipe.makefile() as lines:
        sys.argv = ["pfeddsh", *json.loads(lines.readline())]
        forker.fork_own_forker(handle)
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        pipe.send(bytes([code]))
