"""Federated training throughput divided by that of plain PyTorch, from one run: `throughput.py [MODEL...]`, or `all`.

Plain PyTorch is as many single-thread processes as there are cores, each an ordinary autograd and torch.optim.SGD loop
over the same network and images, nothing else. The federation is FedAvg with 4 of 100 clients of 500 images a round
(100 for resnet18), with all it does beside training: messages, checks, aggregation, the journal. Each network has the
kind of data it was made for. The two take turns, so that whatever else the machine does hits both.
"""

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
from photographs import family, memory
from torch import nn

from pfeddsh import Config
from pfeddsh.federation import engines
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
    "mlp": Case((64,), 40),
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


def plain(path: str, seconds: float, name: str) -> float:
    """Samples per second of the ordinary loop in this process."""
    torch.set_num_threads(1)
    data, case = np.load(path), CASES[name]
    count, shape = case.examples, (*case.shape, 1, 1)[:3]
    images = torch.from_numpy(data["x_train"][: 8 * count]).float().div_(255).sub_(0.5).view(-1, *shape)
    labels = torch.from_numpy(data["y_train"][: 8 * count])
    model = Plain() if name == "lenet" else registry.find(name)(classes=10, shape=shape)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    print("ready", flush=True)
    sys.stdin.readline()
    seen, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in torch.randperm(count).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
            seen += len(batch)
    return seen / (time.perf_counter() - began)


def plain_processes(path: Path, count: int, name: str) -> float:
    """The sum over as many processes as there are cores."""
    command = [sys.executable, __file__, "--plain", str(path), str(SECONDS), name]
    workers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return sum(float(worker.communicate()[0]) for worker in workers)


class Counter:
    """Samples trained by the federation, round by round."""

    def __init__(self) -> None:
        self.samples, self.ends = [], []

    def event(self, kind: str, facts: dict) -> None:
        if kind == "round":
            self.samples.append(facts["samples"])
            self.ends.append(time.perf_counter())


def main(name: str) -> None:
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
            began = time.perf_counter()
            for round in range(1 + turn * rounds, 1 + (turn + 1) * rounds):
                federation._round(1, round)
            federated.append(sum(counter.samples) / (time.perf_counter() - began))
        megabytes = sum(map(memory, family(os.getpid())))  # with those that the forker has started
        engine.close()
    ratios = [a / b for a, b in zip(federated, ordinary, strict=True)]
    print(f"{name}, {'x'.join(map(str, case.shape))}")
    print(f"plain PyTorch, {cores} processes   {statistics.median(ordinary):8,.0f} samples/s")
    print(f"federation (FedAvg, pool)     {statistics.median(federated):8,.0f} samples/s")
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio, median of {TURNS} turns      {statistics.median(ratios):8.2f}   (each: {each})")
    print(f"memory with {cores} workers         {megabytes:8,.0f} MB (sum of proportional set sizes)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        print(plain(sys.argv[2], float(sys.argv[3]), sys.argv[4]))
    else:
        for name in (list(CASES) if sys.argv[1:] == ["all"] else sys.argv[1:]) or ["lenet"]:
            main(name)
