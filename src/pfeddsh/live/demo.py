"""`make federation`: five sites of the digits in two batches on this machine, the second while the first is served."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from pfeddsh.data.datasets import load
from pfeddsh.data.partition import partition
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.config import LiveConfig, build, save
from pfeddsh.live.processes import Child, environment, free_port

SITES = ("amsterdam", "bergen", "cork", "delft", "essen")  # the last two come late
SECONDS = 1800.0  # after which something is wrong


def demonstrate(folder: Path | None, rounds: int, console: Console) -> None:
    """Start everything, tell what happens, print the outcome, leave nothing running."""
    with _place(folder) as place:
        config = _prepare(place, rounds)
        server, port = place / "server", free_port()
        began = time.monotonic()
        children: list[Child] = []

        def say(text: str) -> None:
            console.print(f"[{time.monotonic() - began:4.0f} s] {text}", highlight=False, markup=False, soft_wrap=True)

        def start(name: str, *arguments: str) -> None:
            command = [sys.executable, "-m", "pfeddsh", *arguments, "--insecure"]
            children.append(Child(command, environment(place / ".flwr"), place / f"{name}.log"))

        def start_site(name: str) -> None:
            data = str(place / "data" / f"{name}.npz")
            start(name, "join", str(place / name), "--data", data, "--server", f"127.0.0.1:{port}")

        try:
            start("serve", "serve", str(server), "--port", str(port))
            say(f"a coordinator starts; {', '.join(SITES[:3])} join")
            for name in SITES[:3]:
                start_site(name)
            watch = Watch(server, say)
            watch.until(lambda status: status["phase"] == "training" and status["round"] >= rounds // 2, children)
            say(f"{' and '.join(SITES[3:])} join while the first three are being served")
            for name in SITES[3:]:
                start_site(name)
            watch.until(lambda status: (server / "results.json").exists(), children)
        finally:
            for child in reversed(children):
                child.stop(patience=15)
        _report(json.loads((server / "results.json").read_text()), config, console)
        say("everything is stopped" + (f"; look at {folder}" if folder else ""))


class Watch:
    """Follows status.json and tells what changes."""

    def __init__(self, server: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = server / "status.json", say
        self._told: tuple[Any, ...] = ()
        self._deadline = time.monotonic() + SECONDS

    def until(self, reached: Callable[[dict[str, Any]], bool], children: list[Child]) -> None:
        while True:
            status = self._read()
            if status:
                self._tell(status)
                if reached(status):
                    return
            if time.monotonic() > self._deadline or not all(child.alive for child in children[1:]):
                raise UserError(f"the federation does not get on; see the logs in {self._path.parent.parent}")
            time.sleep(0.5)

    def _read(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            return content
        except (OSError, ValueError):
            return None

    def _tell(self, status: dict[str, Any]) -> None:
        told = (status["phase"], status["step"], status["round"], len(status["queue"]))
        if told != self._told:
            self._told = told
            queue = "".join(f", {waiting['name']} waits" for waiting in status["queue"])
            of = f" round {status['round']}/{status['rounds']}" if status["phase"] == "training" else ""
            self._say(f"step {status['step']}: {status['phase']}{of}{queue}")


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="pfeddsh-") as place:
            yield Path(place)
        return
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _prepare(place: Path, rounds: int) -> LiveConfig:
    """An .npz per site, skewed as sites are, and the coordinator's configuration."""
    digits = load("digits", shape=(3, 32, 32))
    parts = partition(
        digits.y_train, digits.y_test, classes=10, clients=len(SITES), rule="dirichlet", alpha=0.3, seed=0
    )  # fmt: skip
    (place / "data").mkdir()
    for k, name in enumerate(SITES):
        train, test = parts.train[k], parts.test[k]
        np.savez(
            place / "data" / f"{name}.npz", x_train=digits.x_train[train], y_train=digits.y_train[train],
            x_test=digits.x_test[test], y_test=digits.y_test[test],
        )  # fmt: skip
    values = {
        "classes": list(digits.class_names), "mean": digits.mean.tolist(), "std": digits.std.tolist(), "steps": 2,
        "rounds_first": rounds, "rounds_later": max(1, rounds * 2 // 3), "local_epochs": 2, "lr": 0.05,
        "batch_min": 3, "batch_wait": 45, "min_cohort": 2, "round_timeout": 120,
    }  # fmt: skip
    config = build(values, "demonstration")
    (place / "server").mkdir()
    save(place / "server", config)
    return config


def _report(results: dict[str, Any], config: LiveConfig, console: Console) -> None:
    from pfeddsh.progress import table

    sizes = "+".join(str(results["batch"].count(step)) for step in range(1, results["steps"] + 1))
    console.print(table({**results, "dataset": "digits over Flower", "schedule": sizes}))
    offers = results["offers"]
    made, accepted, declined = offers["made"], offers["accepted"], offers["declined"]
    console.print(f"offers: {made} made, {accepted} accepted, {declined} declined", highlight=False)
