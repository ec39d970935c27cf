"""The same federated work by plain PyTorch, pfeddsh, pfl-research and Flower's simulation, in turns: `make peers`.

FedAvg with LeNet-5 on 100 clients of 500 images of noise in CIFAR-10's shape; a round is one epoch of 4 clients in
batches of 32. Everyone has as many single-thread processes as there are cores. Start-up is from the start of the
process to the end of the first round; samples per second are those of the rounds after it; memory is the sum of
proportional set sizes of all processes after the last round. With
`--keep`, the numbers go to results/measured.csv, and docs/performance.md has them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CLIENTS, COHORT, IMAGES, BATCH, LR, MOMENTUM = 100, 4, 500, 32, 0.01, 0.9
CORES = os.cpu_count() or 1
PEERS = {
    "plain": "plain PyTorch, nothing federated",
    "ours": "pfeddsh",
    "pfl": "pfl-research",
    "flower": "Flower's simulation",
}


class Net(nn.Sequential):
    """LeNet-5 with normalised convolutions, as anyone would write it."""

    def __init__(self) -> None:
        norm = {"affine": False, "track_running_stats": False}
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6, **norm), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16, **norm), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """As pfl asks for it."""
        return F.cross_entropy(self(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict[str, float]:
        """Pfl asks in its first round; there is nothing to tell, and that takes no time."""
        return {}


def shard(folder: Path, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of one client, normalised."""
    own = slice(client * IMAGES, (client + 1) * IMAGES)
    images = np.load(folder / "x_train.npy", mmap_mode="r")[own]
    labels = np.load(folder / "y_train.npy", mmap_mode="r")[own]
    pixels = torch.from_numpy(images.copy()).permute(0, 3, 1, 2).contiguous().float()
    return pixels.div_(255).sub_(0.5), torch.from_numpy(labels.copy())


def epoch(model: Net, images: torch.Tensor, labels: torch.Tensor) -> None:
    """One client's visit, the ordinary loop."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for batch in torch.randperm(len(labels)).split(BATCH):
        optimiser.zero_grad()
        model.loss(images[batch], labels[batch]).backward()
        optimiser.step()


class Clock:
    """When rounds ended; says all there is to say after the last."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.ends = rounds, []

    def tick(self, samples: int = COHORT * IMAGES) -> None:
        self.ends.append(time.time())
        if len(self.ends) == self.rounds:
            speed = samples * (self.rounds - 1) / (self.ends[-1] - self.ends[0])
            startup = self.ends[0] - float(os.environ["BEGAN"])
            print("RESULT", json.dumps({"speed": speed, "startup": startup, "memory": memory()}), flush=True)


def memory() -> float:
    """Proportional set sizes of this process and all below it, in MB: shared pages count in equal parts."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    root = int(os.environ.get("ROOT", os.getpid()))
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    total = 0
    for pid in family:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1e3


# The four


def plain(folder: Path, rounds: int) -> None:
    """One of as many processes as there are cores; the first speaks for all."""
    rank = int(os.environ.get("RANK", 0))
    others = []
    if rank == 0:
        os.environ["ROOT"] = str(os.getpid())
        others = [
            subprocess.Popen([sys.executable, __file__, "plain", folder, str(rounds)], env={**os.environ, "RANK": "1"})
            for _ in range(CORES - 1)
        ]
    model, clock = Net(), Clock(rounds)
    for number in range(rounds):
        for client in range(COHORT // CORES):
            epoch(model, *shard(folder, (number + client) % CLIENTS))
        if rank == 0:
            clock.tick(CORES * (COHORT // CORES) * IMAGES)
    for other in others:
        other.wait()


def ours(folder: Path, rounds: int) -> None:
    from pfeddsh import Config
    from pfeddsh.federation import engines
    from pfeddsh.federation.loop import Federation
    from pfeddsh.federation.workbench import Workbench
    from pfeddsh.storage.checkpoint import Checkpoints

    config = Config(
        dataset=str(folder / "noise.npz"), method="fedavg", schedule=str(CLIENTS), partition="iid",
        sample_fraction=COHORT / CLIENTS, rounds_first=rounds, batch_size=BATCH, lr=LR, momentum=MOMENTUM,
    )  # fmt: skip
    bench, clock = Workbench(config), Clock(rounds)
    engine = engines.create(config, bench)
    with tempfile.TemporaryDirectory() as state:
        federation = Federation(bench, engine, Checkpoints(Path(state)), [])
        federation._open(1)
        for number in range(rounds):
            federation._round(1, number)
            clock.tick()
        engine.close()


def pfl(folder: Path, rounds: int) -> None:
    """A process of `torchrun`, one a core, which share the cohort."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    clock = Clock(rounds if os.environ.get("RANK", "0") == "0" else 0)

    class Ticking(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.tick()
            return False, Metrics()

    os.environ["ROOT"] = str(os.getppid())  # torchrun, above all of them
    sampler = get_user_sampler("random", list(range(CLIENTS)))
    data = FederatedDataset(lambda client: Dataset(shard(folder, client)), sampler)
    net = Net()
    model = PyTorchModel(
        net, lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM), torch.optim.SGD(net.parameters(), 1.0)
    )
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds, COHORT, None),  # the first round alone is evaluated, for want of a "never"
        SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=IMAGES),
        callbacks=[Ticking()],
    )


def flower(folder: Path, rounds: int) -> None:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    clock, client, server = Clock(rounds), ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        torch.set_num_threads(1)
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        epoch(model, *shard(folder, context.node_config["partition-id"]))
        told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": IMAGES})}
        return Message(content=RecordDict(told), reply_to=message)

    class Ticking(FedAvg):
        def aggregate_train(self, server_round, replies):
            found = super().aggregate_train(server_round, replies)
            clock.tick()
            return found

    @server.main()
    def main(grid, context):
        strategy = Ticking(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_train_nodes=COHORT, min_available_nodes=CLIENTS
        )
        strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": CORES}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)


# In turns


def turn(name: str, folder: Path, rounds: int) -> dict[str, float]:
    start = [sys.executable]
    if name == "pfl":
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(CORES), "--standalone"]
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment = {**os.environ, **quiet, "PFEDDSH_CACHE": str(folder), "BEGAN": str(time.time())}
    done = subprocess.run(
        [*start, __file__, name, folder, str(rounds)], env=environment, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def main(turns: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    with tempfile.TemporaryDirectory() as place:
        folder, stream = Path(place), np.random.default_rng(0)
        x = stream.integers(0, 256, (CLIENTS * IMAGES + 1000, 32, 32, 3), dtype=np.uint8)
        y = stream.integers(0, 10, len(x))
        parts = {"x_train": x[:-1000], "y_train": y[:-1000], "x_test": x[-1000:], "y_test": y[-1000:]}
        np.savez(folder / "noise.npz", **parts)
        for part in ("x_train", "y_train"):
            np.save(folder / f"{part}.npy", parts[part])
        found = {name: [] for name in PEERS}
        for number in range(turns):
            for name in PEERS:
                found[name].append(turn(name, folder, rounds))
                print(f"turn {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    print("| | samples/s | of plain PyTorch | first round after, s | memory, MB |\n|---|---:|---:|---:|---:|")
    for name, all_turns in found.items():
        middle = {key: statistics.median(one[key] for one in all_turns) for key in all_turns[0]}
        ratios = [one["speed"] / base["speed"] for one, base in zip(all_turns, found["plain"], strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        cells = [PEERS[name], f"{middle['speed']:,.0f}", ratio, f"{middle['startup']:.1f}", f"{middle['memory']:,.0f}"]
        print(f"| {' | '.join(cells)} |")
    packages = ", ".join(f"{package} {version(package)}" for package in ("torch", "flwr", "ray", "pfl"))
    print(f"\nMedians of {turns} turns of {rounds} rounds; {CORES} cores; {packages}.")
    return found


def store(found: dict[str, list[dict[str, float]]]) -> None:
    from kept import keep  # only here: the processes whose memory is measured do without it

    for name, turns in found.items():
        ratios = [one["speed"] / base["speed"] for one, base in zip(turns, found["plain"], strict=True)]
        keep("peers", name, ratio=ratios, **{key: [one[key] for one in turns] for key in turns[0]})


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in PEERS:
        torch.set_num_threads(1)
        globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--turns", type=int, default=5)
        parser.add_argument("--rounds", type=int, default=40)
        parser.add_argument("--keep", action="store_true", help="put what was measured into results/measured.csv")
        given = parser.parse_args()
        found = main(given.turns, given.rounds)
        if given.keep:
            store(found)
