"""Real processes for the tests of the edge: a SuperLink behind nginx, and SuperNodes that come to it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ports import free_port

from pfeddsh.errors import UserError
from pfeddsh.live.security import certs, nodes, proxy

BIN = Path(sys.executable).parent


def until(what: Callable[[], Any], seconds: float = 300) -> Any:
    """Wait for something true, and return it."""
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing within {seconds} s")
        time.sleep(0.1)
    return value


class Deployment:
    """A coordinator's folder with a SuperLink on the loopback and the proxy before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.superlink, self.outside = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.environment = os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(folder / "flwr"),
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),  # the SuperLink looks for its own helpers there
            "OMP_NUM_THREADS": "1",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        certs.make(self.folder)
        proxy.write(self.folder, self.outside, self.superlink)
        tls, (host, port) = self.folder / "tls", self.superlink.split(":")
        self.launch(
            "superlink.log",
            *(BIN / "flower-superlink", "--host", host, "--port", port, "--enable-supernode-auth"),
            *("--ssl-ca-certfile", tls / "ca.crt", "--ssl-certfile", tls / "server.pem"),
            *("--ssl-keyfile", tls / "server.key", "--disable-runtime-dependency-installation"),
        )
        self.proxy = self.launch("nginx.log", *proxy.command(self.folder))
        until(self.answers)

    def answers(self) -> bool:
        try:
            nodes.synchronise(self.folder, self.superlink)
        except UserError:
            return False
        return True

    def launch(self, log: str, *command: Any) -> subprocess.Popen[bytes]:
        with open(self.folder / log, "wb") as file:
            process = subprocess.Popen(
                [str(word) for word in command], env=self.environment, stdout=file, stderr=subprocess.STDOUT
            )
        self.running.append(process)
        return process

    def supernode(
        self,
        home: Path,
        *options: Any,
        address: str = "",
        ca: Path | None = None,
        program: Sequence[Any] = (BIN / "flower-supernode",),
    ) -> subprocess.Popen[bytes]:
        """A SuperNode that writes to the log `home`.name + '.log'; `options` may name its key."""
        return self.launch(
            f"{home.name}.log",
            *(*program, "--superlink", address or self.outside, "--port", free_port()),
            *("--root-certificates", ca or self.folder / "tls" / "ca.crt", *options),
        )

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process_id in self.left_behind():
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def left_behind(self) -> list[int]:
        """Helpers that Flower detached from our processes; a ClientApp outlives its SuperNode if that ends too soon.

        They are known by the environment they inherited, which names this deployment's folder and no other's.
        """
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found
