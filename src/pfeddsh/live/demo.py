"""`make federation`: five sites of the digits on this machine, two of them late, told as it happens."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from pfeddsh.data.datasets import Dataset, load
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.config import build, save
from pfeddsh.live.processes import Child, environment, free_port
from pfeddsh.live.story import Story
from pfeddsh.models import registry as networks

# A site, how many images it trains on, and the digits that most of them show. The last two come late.
SITES = {
    "amsterdam": (60, range(4)),
    "bergen": (60, range(3, 7)),
    "cork": (60, range(6, 10)),
    "delft": (80, range(5)),
    "essen": (80, range(5, 10)),
}
FIRST, LATE = tuple(SITES)[:3], tuple(SITES)[3:]
SKEW = 0.7  # of a site's images show its own digits, the others any other digit
TEST = 60  # images by which a site is measured
SECONDS = 1800.0  # after which something is wrong

Indices = npt.NDArray[np.int64]


def demonstrate(folder: Path | None, rounds: int, seed: int, console: Console) -> None:
    """Start everything, tell what happens, print the outcome, leave nothing running."""
    with _place(folder) as place:
        server, port = place / "server", free_port()
        prepare(place / "data", server, rounds, seed)
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

        story = Story(say, LATE)
        try:
            story.begin(FIRST, SITES[FIRST[0]][0])
            start("serve", "serve", str(server), "--port", str(port))
            for name in FIRST:
                start_site(name)
            watch = Watch(server, story.tell)
            watch.until(lambda status: status["phase"] == "training" and status["round"] >= rounds // 4, children)
            story.arrive()
            for name in LATE:
                start_site(name)
            watch.until(lambda status: (server / "results.json").exists(), children)
            watch.until(lambda status: status["phase"] == "done", children)
        finally:
            for child in reversed(children):
                child.stop(patience=15)
        _report(json.loads((server / "results.json").read_text()), console)
        say("Everything is stopped" + (f"; look at {folder}." if folder else "."))


class Watch:
    """Follows status.json."""

    def __init__(self, server: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        self._path, self._tell = server / "status.json", tell
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


def prepare(images: Path, server: Path, rounds: int = 8, seed: int = 0) -> None:
    """An .npz per site, and the coordinator's configuration."""
    digits = load("digits", shape=networks.fixed_shape(networks.DEFAULT))
    _write_sites(images, digits, seed)
    values = {
        "classes": list(digits.class_names), "mean": digits.mean.tolist(), "std": digits.std.tolist(), "steps": 2,
        "rounds_first": rounds, "rounds_later": max(1, rounds * 2 // 3), "local_epochs": 4, "lr": 0.1,
        "batch_min": len(FIRST), "batch_wait": 45, "min_cohort": 2, "round_timeout": 120,
    }  # fmt: skip
    server.mkdir(exist_ok=True)
    save(server, build(values, "demonstration"))


def _write_sites(folder: Path, digits: Dataset, seed: int) -> None:
    """Every site's images, skewed as sites are; no image is at two of them."""
    rng = np.random.default_rng(seed)
    train, test = (
        [list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)] for y in (digits.y_train, digits.y_test)
    )
    folder.mkdir(exist_ok=True)
    for name, (images, own) in SITES.items():
        shares = np.full(10, (1 - SKEW) / (10 - len(own)))
        shares[list(own)] = SKEW / len(own)
        mine, held_out = _draw(train, shares, images, rng), _draw(test, shares, TEST, rng)
        np.savez(
            folder / f"{name}.npz", x_train=digits.x_train[mine], y_train=digits.y_train[mine],
            x_test=digits.x_test[held_out], y_test=digits.y_test[held_out],
        )  # fmt: skip


def _draw(left: list[list[int]], shares: npt.NDArray[np.float64], count: int, rng: np.random.Generator) -> Indices:
    """So many of the images that are left, by class as the shares say; what is taken is gone."""
    wanted = np.floor(shares * count).astype(int)
    while wanted.sum() < count:
        wanted[rng.choice(10, p=shares)] += 1
    taken: list[int] = []
    for digit, number in enumerate(wanted):
        taken += left[digit][:number]
        del left[digit][:number]
    return np.array(sorted(taken))


def _report(results: dict[str, Any], console: Console) -> None:
    from pfeddsh.progress import table

    sizes = "+".join(str(results["batch"].count(step)) for step in range(1, results["steps"] + 1))
    results["pa_zero_shot"][0] = None  # nothing had been learnt before the first step
    console.print(table({**results, "dataset": "digits over Flower", "schedule": sizes}))


if __name__ == "__main__":  # for deploy/docker/prepare.sh
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
