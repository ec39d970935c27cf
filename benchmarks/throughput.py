"""Federated training throughput divided by that of plain PyTorch, from one run: `throughput.py [MODEL...] [--keep]`.

Plain PyTorch is as many single-thread processes as there are cores, each an ordinary autograd and torch.optim.SGD loop
over the same network and images, nothing else. The federation is FedAvg with 4 of 100 clients of 500 images a round
(100 for resnet18), with all it does beside training: messages, checks, aggregation, the journal. Each network has the
kind of data it was made for. The two take turns, so that whatever else the machine does hits both. Beside samples per
second it prints samples per second of core time, which other load disturbs less, and in which nobody waits.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from kept import keep
from photographs import family, memory
from torch import nn

from pfeddsh import Config
from pfeddsh.federation import engines
from pfeddsh.federation.allocation import keep_freed_memory
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.models import registry
from pfeddsh.storage.checkpoint import Checkpoints

TURNS, SECONDS = 5, 6.0
CLIENTS = 100


class Case(NamedTuple):
    """What a network is fed: the shape of an example, so many rounds a turn, so many examples a client."""

    shape: tuple[int, ...]
    rounds: int
    examples: int = 500


CASES = {
    "lenet": Case((3, 32, 32), 40),
    "mlp": Case((64,), 200),
    "convnet": Case((1, 28, 28), 10),
    "resnet8": Case((3, 32, 32), 5),
    "resnet20": Case((3, 32, 32), 2),
    "resnet18": Case((3, 64, 64), 2, 100),
}


class Plain(nn.Module):
    """The same LeNet-5 as anyone would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16, affine=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def plain(path: str, seconds: float, name: str) -> tuple[float, float]:
    """Samples per second of the ordinary loop in this process, and per second of core time."""
    torch.set_num_threads(1)
    data, case = np.load(path), CASES[name]
    count, shape = case.examples, (*case.shape, 1, 1)[:3]
    images = torch.from_numpy(data["x_train"][: 8 * count]).float().div_(255).sub_(0.5).view(-1, *shape)
    labels = torch.from_numpy(data["y_train"][: 8 * count])
    model = Plain() if name == "lenet" else registry.find(name)(classes=10, shape=shape)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    print("ready", flush=True)
    sys.stdin.readline()
    seen, began, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for batch in torch.randperm(count).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
            seen += len(batch)
    return seen / (time.perf_counter() - began), seen / (time.process_time() - spent)


def plain_processes(path: Path, count: int, name: str) -> tuple[float, float]:
    """The sum over as many processes as there are cores, and the mean of what each does in core time."""
    command = [sys.executable, __file__, "--plain", str(path), str(SECONDS), name]
    workers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    rates, by_core = zip(*(map(float, worker.communicate()[0].split()) for worker in workers), strict=True)
    return sum(rates), statistics.fmean(by_core)


def core_seconds() -> float:
    """Core time of this process and all below it so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family(os.getpid())]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


class Counter:
    """Samples trained by the federation, round by round."""

    def __init__(self) -> None:
        self.samples, self.ends = [], []

    def event(self, kind: str, facts: dict) -> None:
        if kind == "round":
            self.samples.append(facts["samples"])
            self.ends.append(time.perf_counter())


def main(name: str) -> dict[str, list[float]]:
    """What was measured, turn by turn, also printed."""
    case = CASES[name]
    rounds, train = case.rounds, CLIENTS * case.examples
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.npz"
        stream = np.random.default_rng(0)
        x = stream.integers(0, 256, (train + 1000, *case.shape), dtype=np.uint8)
        x = x if len(case.shape) == 3 else x.astype(np.float32)
        y = stream.integers(0, 10, len(x))
        np.savez(path, x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:])
        os.environ["PFEDDSH_CACHE"] = folder
        config = Config(
            dataset=str(path), method="fedavg", schedule=str(CLIENTS), partition="iid", sample_fraction=0.04,
            rounds_first=rounds * TURNS + 1, model=name,
        )  # fmt: skip
        torch.set_num_threads(1)
        keep_freed_memory()  # as `pfeddsh run` does
        bench = Workbench(config)
        engine = engines.create(bench.config, bench)
        counter = Counter()
        federation = Federation(bench, engine, Checkpoints(Path(folder) / "state"), [counter])
        federation._open(1)
        federation._round(1, 0)  # the workers start
        federated, ordinary = [], []
        for turn in range(TURNS):
            ordinary.append(plain_processes(path, cores, name))
            counter.samples.clear()
            began, spent = time.perf_counter(), core_seconds()
            for round in range(1 + turn * rounds, 1 + (turn + 1) * rounds):
                federation._round(1, round)
            samples = sum(counter.samples)
            federated.append((samples / (time.perf_counter() - began), samples / (core_seconds() - spent)))
        megabytes = sum(map(memory, family(os.getpid())))  # with those that the forker has started
        engine.close()
        federation.checkpoints.wait()
    print(f"{name}, {'x'.join(map(str, case.shape))}")
    kept = {"memory": [megabytes]}
    for what, suffix, ours, theirs in zip(
        ("", ", core time"), ("", "_core"), zip(*federated, strict=True), zip(*ordinary, strict=True), strict=True
    ):
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"plain PyTorch, {cores} processes   {statistics.median(theirs):8,.0f} samples/s{what}")
        print(f"federation (FedAvg, pool)     {statistics.median(ours):8,.0f} samples/s{what}")
        print(f"ratio, median of {TURNS} turns      {statistics.median(ratios):8.2f}   (each: {each})")
        kept |= {f"ratio{suffix}": ratios, f"ours{suffix}": list(ours), f"plain{suffix}": list(theirs)}
    print(f"memory with {cores} workers         {megabytes:8,.0f} MB (sum of proportional set sizes)")
    return kept


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        print(*plain(sys.argv[2], float(sys.argv[3]), sys.argv[4]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("models", nargs="*", default=["lenet"], metavar="MODEL", help=", ".join(CASES))
        parser.add_argument("--keep", action="store_true", help="put what was measured into results/measured.csv")
        given = parser.parse_args()
        for name in given.models:
            found = main(name)
            if given.keep:
                keep("throughput", name, **found)
