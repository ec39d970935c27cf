"""What a step of 100 newcomers costs when 1,000 to 100,000 clients are registered: `scale.py [COUNTS] [--keep]`.

The registered clients are not trained: their memories, the ledger and the state are put together as they would be, and
written as a snapshot. From there a process takes in 100 newcomers, 20 rounds of 10, and times its parts; another is
killed in mid-step and a third continues it, to the same bits. The sizes take turns, so that whatever else the machine
does hits all; medians of the turns.
"""

import argparse
import hashlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kept import keep
from torch import nn

from pfeddsh import Config
from pfeddsh.data.datasets import Dataset
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.storage.checkpoint import Checkpoints, Moment

FEATURES, CLASSES, OWN = 16, 4, (8, 4)  # images of each client: train and test
NEWCOMERS, ROUNDS, SAMPLE = 100, 20, 100
KILLED = 13  # after this round of the step
PARTS = ("open", "round", "snapshot", "close")
KINDS = [f"{kind}{part}" for part in PARTS for kind in ("", "cpu ")]


def tiny(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """A perceptron of 172 weights: what is measured is everything around it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))


def bench_of(registered: int) -> Workbench:
    config = Config(
        dataset="synthetic", method="pfeddsh", model=f"{Path(__file__).resolve()}:tiny", partition="iid", lr=0.05,
        schedule=f"{registered}+{NEWCOMERS}", rounds_first=ROUNDS, rounds_later=ROUNDS, sample_fraction=0.1,
        engine="serial", evaluate=SAMPLE,
    )  # fmt: skip
    draw, clients = np.random.default_rng(0), registered + NEWCOMERS
    features = [draw.standard_normal((count * clients, FEATURES, 1, 1), dtype=np.float32) for count in OWN]
    labels = [np.abs(x[:, :2, 0, 0].sum(1)).astype(np.int64) % CLASSES for x in features]
    flat = np.zeros(FEATURES, np.float32), np.ones(FEATURES, np.float32)
    names = tuple(map(str, range(CLASSES)))
    (x_train, x_test), (y_train, y_test) = features, labels
    return Workbench(config, Dataset("synthetic", CLASSES, names, x_train, y_train, x_test, y_test, *flat, "synthetic"))


class Regular(Checkpoints):
    """A snapshot every five rounds."""

    def due(self, moment: Moment) -> bool:
        return moment[1] % 5 == 0


class Timed(Federation):
    """Notes how long each part of a step takes, and dies where it is told to."""

    def __init__(self, *given: Any, killed: int | None = None) -> None:
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.killed = killed
        super().__init__(*given)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter(), time.process_time()
        yield
        self.seconds[part].append(time.perf_counter() - began[0])
        self.seconds[f"cpu {part}"].append(time.process_time() - began[1])

    def _open(self, step: int) -> None:
        with self._timed("open"):
            super()._open(step)

    def _round(self, step: int, round: int) -> bool:
        with self._timed("round"):
            more = super()._round(step, round)
        if round == self.killed:
            signal.raise_signal(signal.SIGKILL)
        return more

    def _close(self, step: int) -> None:
        with self._timed("close"):
            super()._close(step)

    def _snapshot(self, step: int, done: int) -> None:
        with self._timed("snapshot"):
            super()._snapshot(step, done)


def build(folder: Path, registered: int) -> None:
    """A federation whose first step is over, without the training."""
    bench = bench_of(registered)
    run = Timed(bench, Serial(bench), Regular(folder), [])
    draw, size = torch.Generator().manual_seed(0), bench.task.model.size
    clients, accuracy = bench.plan.batch(1), 50.0
    run.method.open_step(run.state, 1, ROUNDS, {k: Message() for k in clients})
    for start in range(0, len(clients), 1000):
        own = clients[start : start + 1000]
        drawn = torch.randn(2, len(own), size, generator=draw)
        for k, deviation, kept in zip(own, *drawn, strict=True):
            run.serving.memories[k] = Memory({"deviation": 0.01 * deviation, "kept": kept})
    run.method.close_step(run.state, {})
    everyone = set(clients)
    row = [accuracy if k in everyone else None for k in range(bench.plan.clients)]
    run.ledger.add_zero_shot(list(row))
    run.ledger.add_step({"acc": list(row)}, {"acc": row}, 0.0, {}, None)
    run.ledger.local = [accuracy if k in everyone else None for k in range(bench.plan.clients)]
    run._snapshot(2, 0)


def anonymous() -> int:
    """Bytes of memory of this process that are no mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def work(folder: Path, registered: int, killed: int | None) -> dict[str, Any]:
    """The second step, from wherever it is."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    bench = bench_of(registered)
    before, began = anonymous(), time.perf_counter()
    run = Timed(bench, Serial(bench), Regular(folder), [], killed=killed)
    ready, resumed = time.perf_counter() - began, run.moment
    run.train()
    memory = anonymous() - before
    whole = hashlib.sha256()
    whole.update(json.dumps(run.checkpoints.store.sums(), sort_keys=True).encode())
    for name in sorted(run.state.tensors):
        whole.update(run.state[name].numpy().tobytes())
    whole.update(json.dumps([run.ledger.acc, run.ledger.before, run.ledger.zero_shot]).encode())
    medians = {part: statistics.median(found) for part, found in run.seconds.items() if found}
    return {**medians, "ready": ready, "from": resumed, "memory": memory, "digest": whole.hexdigest()}


def child(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)


def measure(template: Path, registered: int) -> dict[str, float]:
    """One turn: a whole step, and the same step killed and continued."""
    with tempfile.TemporaryDirectory(dir=template.parent) as scratch:
        whole, broken = (shutil.copytree(template, Path(scratch) / name) for name in ("whole", "broken"))
        told = child("work", registered, "--folder", whole)
        if told.returncode:
            raise RuntimeError(told.stderr)
        found = json.loads(told.stdout)
        assert child("work", registered, "--folder", broken, "--killed", KILLED).returncode == -signal.SIGKILL
        again = json.loads(child("work", registered, "--folder", broken).stdout)
        assert again["digest"] == found["digest"] and again["from"] > found["from"], "other bits after kill -9"
        return {**{k: v for k, v in found.items() if k not in ("digest", "from")}, "resume": again["ready"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", nargs="?", default="1000,10000,100000")
    parser.add_argument("registered", nargs="?", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--killed", type=int)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="put what was measured into results/measured.csv")
    given = parser.parse_args()
    if given.job == "build":
        return build(given.folder, given.registered)
    if given.job == "work":
        return print(json.dumps(work(given.folder, given.registered, given.killed)))
    counts = [int(text) for text in given.job.split(",")]
    turns: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="scale-") as scratch:
        for count in counts:
            done = child("build", count, "--folder", Path(scratch) / str(count))
            if done.returncode:
                raise RuntimeError(done.stderr)
        for _ in range(given.turns):
            for count in counts:
                turns[count].append(measure(Path(scratch) / str(count), count))
    report(turns)
    if given.keep:
        for count, told in turns.items():
            keep("scale", f"{count}", **{part: [turn[part] for turn in told] for part in told[0]})


def report(turns: dict[int, list[dict[str, float]]]) -> None:
    """Seconds by the clock and, in brackets, of a core: on a busy machine those are what can be compared."""
    found = {n: {part: statistics.median(t[part] for t in told) for part in told[0]} for n, told in turns.items()}
    least, most = min(found), max(found)
    print("| registered | open, s | round, ms | snapshot, ms | close, s | resume, s | memory, bytes a client |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for n, t in sorted(found.items()):
        each = f"{(t['memory'] - found[least]['memory']) / (n - least):,.0f}" if n > least else ""
        scales = {"open": 1, "round": 1000, "snapshot": 1000, "close": 1}
        cells = [f"{scale * t[part]:.3g} ({scale * t[f'cpu {part}']:.3g})" for part, scale in scales.items()]
        print(f"| {n:,} | {' | '.join(cells)} | {t['resume']:.1f} | {each} |")
    ratios = [f"{part} {found[most][part] / found[least][part]:.2f}" for part in found[most] if part in KINDS]
    print(f"\n{most:,} against {least:,} registered: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
