"""`pfeddsh serve`: keeps a SuperLink and the coordinator running, through the death of either.

The coordinator is a Flower run. When it ends before its work is done, whatever ended it, the run is submitted again and
continues from its folder.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import tomli_w

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.config import load
from pfeddsh.live.coordinator.health import RESTARTS, restarts
from pfeddsh.live.coordinator.run import ERROR
from pfeddsh.live.processes import Backoff, Child, environment, flower, listens, port_taken
from pfeddsh.live.security import nodes, proxy
from pfeddsh.live.security.signing import AppHub, signed
from pfeddsh.storage.files import in_use, write_text

START = 180.0  # seconds a SuperLink or a coordinator has to come up


class Server:
    """The coordinator's host: the processes around one folder."""

    def __init__(
        self,
        folder: Path,
        port: int,
        insecure: bool,
        say: Callable[[str], None],
        listen: str = "",
        attach: bool = False,
        health: str | None = None,
    ) -> None:
        self._authority = (folder / "tls" / "ca.crt").resolve()
        if not insecure and not self._authority.exists():
            raise UserError(f"{self._authority} is missing; make it with `pfeddsh certs {folder}`, or use --insecure")
        self.folder, self.address, self.insecure, self.say = folder, f"127.0.0.1:{port}", insecure, say
        self.listen, self.attach, self.health = listen, attach, health
        self._said, self._begun = "", False
        self._superlink: Child | None = None
        self._steps: int | None = None
        self._app = str(files("pfeddsh.live") / "app")
        self._hub: AppHub | None = None

    def run(self) -> None:
        """Until the federation is done or this process is interrupted; the caller holds the folder's lock."""
        self._steps = load(self.folder).steps
        self._env = environment(self.folder / ".flwr")
        self._configure()
        self._offer_signed()
        backoff = Backoff()
        try:
            while not self._done():
                began = time.monotonic()
                try:
                    self._attempt()
                except (UserError, OSError, subprocess.SubprocessError) as error:  # a full disk, a SuperLink that hangs
                    if not self._begun:
                        raise
                    self.say(str(error))
                if not self._done():
                    wait = backoff.after(time.monotonic() - began)
                    self._say_why()
                    self.say(f"the coordinator ended before its work was done; starting it again in {wait:.0f} s")
                    with suppress(UserError):
                        write_text(self.folder / RESTARTS, f"{restarts(self.folder) + 1}\n")
                    time.sleep(wait)
        finally:
            self._end_coordinator()
            if self._superlink:
                self._superlink.stop()
            if self._hub:
                self._hub.stop()
            (self.folder / "superlink.address").unlink(missing_ok=True)

    def _say_why(self) -> None:
        """What the coordinator said at its end, once for each reason."""
        with suppress(OSError):
            text = (self.folder / ERROR).read_text().strip()
            if text != self._said:
                self.say(text)
            self._said = text

    def _attempt(self) -> None:
        """One life of the coordinator."""
        self._end_coordinator()
        self._start_superlink()
        run = self._submit()
        self._begun = True  # from now on, whatever fails is tried again
        self.say(f"coordinator started (Flower's run {run})")
        began = time.monotonic()
        seen = False
        while not self._done():
            if not self._superlink_alive():
                self.say("the SuperLink ended; starting it again")
                return
            alive = self._coordinator_alive()
            seen = seen or alive
            if not alive and (seen or time.monotonic() - began > START):
                return
            time.sleep(0.5)

    def _done(self) -> bool:
        """Whether as many steps are done as the configuration asks for; one without that number never is."""
        try:
            done = int(json.loads((self.folder / "results.json").read_text())["steps"])
        except (OSError, ValueError, KeyError, TypeError):  # one that cannot be read is written again
            return False
        return self._steps is not None and done >= self._steps

    # SuperLink

    def _superlink_alive(self) -> bool:
        if self.attach:
            return self._answers()
        return self._superlink is not None and self._superlink.alive

    def _answers(self) -> bool:
        host, port = self.address.split(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            return True
        return False

    def _ours(self) -> bool:
        return self._superlink is None or listens(self._superlink.pid, int(self.address.split(":")[1]))

    def _start_superlink(self) -> None:
        if self.attach:
            self._await_superlink()
        elif not self._superlink_alive():
            host, port = self.address.split(":")
            command = [flower("flower-superlink"), "--host", host, "--port", port]
            command += ["--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"]
            command += ["--health-server-address", self.health] if self.health else []
            tls = self.folder / "tls"
            if self.insecure:
                command.append("--insecure")
            else:
                command += ["--ssl-ca-certfile", str(tls / "ca.crt"), "--ssl-certfile", str(tls / "server.pem")]
                command += ["--ssl-keyfile", str(tls / "server.key"), "--enable-supernode-auth"]
            if self._superlink:
                self._superlink.stop()
            self._free_port(int(port))
            self._superlink = Child(command, self._env, self.folder / "superlink.log")
            self._await_superlink()
        write_text(self.folder / "superlink.address", self.address + "\n")
        if not self.insecure:
            nodes.synchronise(self.folder, self.address)

    def _free_port(self, port: int) -> None:
        """Nobody else's SuperLink is ours, whatever it answers; one of ours that has just ended may need a moment."""
        deadline = time.monotonic() + (10 if self._superlink else 0)
        while port_taken(port):
            if time.monotonic() >= deadline:
                raise UserError(
                    f"port {port} is in use by another program: end it or choose another --port "
                    "(--attach is for a SuperLink of your own that runs there)"
                )
            time.sleep(0.2)

    def _await_superlink(self) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and (self.attach or self._superlink_alive()):
            if self._answers() and self._ours():
                return
            time.sleep(0.1)
        raise UserError(f"the SuperLink does not come up; see {self.folder / 'superlink.log'}")

    def _configure(self) -> None:
        """Tell Flower's command line where the SuperLink is."""
        entry = [f"[superlink.live]\naddress = '{self.address}'"]
        if self.insecure:
            entry.append("insecure = true")
        else:
            entry.append(f"root-certificates = '{self._authority}'")
            proxy.write(self.folder, listen=self.listen, superlink=self.address)
            self.say(
                f"sites connect to {self.listen}; start the proxy with: nginx -p {self.folder.resolve()} -c nginx.conf"
            )
        write_text(self.folder / ".flwr" / "config.toml", "\n".join(entry) + "\n")

    def _offer_signed(self) -> None:
        """If the folder has a signed app, the SuperLink takes that one, with its signature."""
        app = None if self.attach else signed(self.folder)
        if app is not None:
            self._hub, self._app = AppHub(app), app.name
            self._env["FLWR_SUPERGRID_API_URL"] = self._hub.address
            self.say(f"the app is signed ({app.verification['public_key_id']})")

    # Coordinator

    def _submit(self) -> str:
        settings = self.folder / ".flwr" / "run.toml"
        write_text(settings, tomli_w.dumps({"folder": str(self.folder.resolve()), "authenticated": not self.insecure}))
        command = [flower("flwr"), "run", self._app, "live", "--format", "json", "-c", str(settings)]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=START)
        try:
            answer = json.loads(done.stdout)
            return str(answer["run-id"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"Flower did not take the run: {(done.stdout + done.stderr).strip()[-500:]}") from None

    def _coordinator_alive(self) -> bool:
        """Whether somebody holds the lock on the state; it goes with the process, however that ends."""
        return in_use(self.folder / "state")

    def _end_coordinator(self) -> None:
        """A coordinator whose SuperLink is gone ends by itself; one that does not is ended."""
        deadline = time.monotonic() + 10
        while self._coordinator_alive():
            with suppress(OSError, ValueError):
                pid = int((self.folder / "coordinator.pid").read_text())
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline - 5 else signal.SIGKILL)
            if time.monotonic() > deadline:
                raise UserError(f"another coordinator works in {self.folder} and does not end; end it first")
            time.sleep(0.2)
