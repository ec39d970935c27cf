"""`pfeddsh join`: keeps a site's worker and its SuperNode running.

The folder of a site is its identity: key, memory, models. Joining again with it resumes where it was. This process only
watches two others, for months, so it imports neither torch nor Flower.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator

from pfeddsh.errors import UserError
from pfeddsh.live.processes import Backoff, Child, environment, flower, free_port
from pfeddsh.live.security.certs import make_node_key
from pfeddsh.live.security.trusted import TRUSTED
from pfeddsh.live.site import departure, policy
from pfeddsh.storage.files import Busy, locked
from pfeddsh.values import checked, read


class SiteConfig(BaseModel):
    """`site.toml`: what `pfeddsh join` was told the first time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64)
    data: str = Field(description="a folder of class folders, or an .npz file")
    server: str = Field("127.0.0.1:9092", description="host:port of the coordinator")
    insecure: bool = Field(False, description="no TLS, no keys; loopback only")
    health: str | None = Field(None, description="host:port of Flower's gRPC health service; none without")
    allow: tuple[str, ...] = Field((), description="methods and models by reference that this site is willing to run")

    @field_validator("server")
    @classmethod
    def _has_port(cls, server: str) -> str:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"'{server}' is not HOST:PORT, for instance fed.example.org:9443")
        return server

    def check(self, home: Path, authority: Path | None = None) -> None:
        """Raise where this could never connect; `authority` is what will become ca.crt."""
        if self.insecure and not loopback(self.server):
            raise UserError(f"--insecure is for a coordinator on this machine, not for {self.server}")
        if authority and not authority.is_file():
            raise UserError(f"--ca {authority}: no such file")
        if not self.insecure and not (authority or home / "ca.crt").exists():
            raise UserError(f"{home / 'ca.crt'} is missing: give the coordinator's tls/ca.crt with --ca, or --insecure")

    @staticmethod
    def load(home: Path) -> "SiteConfig":
        path = home / "site.toml"
        if not path.exists():
            raise UserError(f"{home} holds no site: there is no site.toml in it; join with --data and --server first")
        return checked(SiteConfig, read(path), str(path))

    def save(self, home: Path) -> None:
        temporary = home / ".site.toml.tmp"
        temporary.write_text(tomli_w.dumps(self.model_dump(exclude_none=True)))
        os.replace(temporary, home / "site.toml")

    def key(self, home: Path) -> str:
        """The fingerprint of the site's public key, which is made if there is none."""
        return make_node_key(home)


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """One `join` or `leave` at a time for a site; its worker, which may be started again, has its own lock."""
    place = home / ".flwr"
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(place))
        except Busy:
            raise UserError(f"another `pfeddsh join` or `leave` runs for {home}; end it first") from None
        yield


def loopback(address: str) -> bool:
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def supernode(home: Path, config: SiteConfig) -> list[str]:
    """Flower's command for the network side of a site."""
    command = [flower("flower-supernode"), "--superlink", config.server, "--port", str(free_port())]
    if config.health:
        command += ["--health-server-address", config.health]
    if (home / TRUSTED).exists():
        command += ["--trusted-entities", str(home / TRUSTED)]
    if config.insecure:
        return [*command, "--insecure"]
    config.check(home)  # ca.crt may have gone since
    authority = str(home / "ca.crt")
    return [*command, "--root-certificates", authority, "--auth-supernode-private-key", str(home / "node.key")]


def join(home: Path, say: Callable[[str], None], worker: Sequence[str] = ()) -> None:
    """Run until interrupted. `worker` is another command for the worker than ours."""
    departure.refuse_to_join(home)
    supervise(home, say, worker)


def supervise(
    home: Path, say: Callable[[str], None], worker: Sequence[str] = (), until: Callable[[], bool] = lambda: False
) -> None:
    """Keep a site's worker and node running, until interrupted or enough."""
    config = SiteConfig.load(home)
    config.check(home)
    if policy.create(home):
        say(f"{home / policy.FILE} says what may leave this site; read it, change it, and join again")
    policy.load(home)
    env = {**environment(home / ".flwr"), "PFEDDSH_SITE": str(home.resolve())}  # for the client app
    keepers = [
        Keeper("worker", lambda: list(worker) or [sys.executable, "-m", "pfeddsh.live.site.worker", str(home)],
               env, home / "worker.log", say),
        Keeper("node", lambda: supernode(home, config), env, home / "node.log", say),
    ]  # fmt: skip
    say(f"{config.name} ({config.key(home)}) connects to {config.server}")
    said = None
    try:
        while not until():
            for keeper in keepers:
                keeper.look()
            if (why := policy.unfit(home)) != said and why:
                say(f"not taken in: {why}; change {home / policy.FILE} and join again")
            said = why
            time.sleep(0.25)
    finally:
        for keeper in reversed(keepers):
            keeper.stop()


class Keeper:
    """Starts a child, and starts it again, ever more patiently, when it ends."""

    def __init__(
        self, name: str, command: Callable[[], list[str]], env: dict[str, str], log: Path, say: Callable[[str], None]
    ) -> None:
        self.name, self._command, self._env, self._log, self._say = name, command, env, log, say
        self._child: Child | None = None
        self._began = self._due = 0.0
        self._log_begins = 0
        self._backoff = Backoff()

    def look(self) -> None:
        now = time.monotonic()
        if self._child is None:
            if now >= self._due:
                self._log_begins = self._log.stat().st_size if self._log.exists() else 0
                self._child, self._began = Child(self._command(), self._env, self._log), now
        elif not self._child.alive:
            wait = self._backoff.after(now - self._began)
            self._say(f"the {self.name} ended ({self._last_words()}); starting it again in {wait:.0f} s")
            self.stop()
            self._due = now + wait

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _last_words(self) -> str:
        """Why the child ended, in words if its log since its start has some that we understand."""
        from pfeddsh.live.security.refusals import explain

        with self._log.open("rb") as file:
            file.seek(self._log_begins)
            meaning = explain(file.read().decode(errors="replace"))
        return meaning or f"status {self._child.status if self._child else None}, see {self._log}"
