"""Processor time of a client's visit, against an earlier revision and plain PyTorch: `revisions.py REVISION [MODEL]`.

FedAvg with 4 of 100 clients of 500 images a round in one process, with messages, checks, aggregation and the journal;
and the same 500 images in an ordinary loop of autograd and torch.optim.SGD. All take turns. Processor time, unlike that
on the wall, means something while others use the machine as well; `throughput.py` has the pool, on a quiet one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
TURNS = 5
FEDERATED = """
import sys, time, torch
from pathlib import Path
from pfeddsh import Config
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
try:
    from pfeddsh.storage.checkpoint import Checkpoints
except ImportError:  # where it was before
    from pfeddsh.results.checkpoint import Checkpoints
torch.set_num_threads(1)
path, state, model, rounds = sys.argv[1:]
chosen = {} if model == "lenet" else {"model": model}
config = Config(dataset=path, method="fedavg", schedule="100", partition="iid", sample_fraction=0.04, rounds_first=200,
                engine="serial", **chosen)
bench = Workbench(config)
federation = Federation(bench, engines.create(config, bench), Checkpoints(Path(state)), [])
federation._open(1)
federation._round(1, 0)
began = time.process_time()
for round in range(1, 1 + int(rounds)):
    federation._round(1, round)
print((time.process_time() - began) / int(rounds) / 4 * 1000)
"""
PLAIN = """
import sys, time, torch
import torch.nn.functional as F
from pfeddsh.models import registry
torch.set_num_threads(1)
model, rounds = sys.argv[3:]
make = registry.plain(model) if model == "lenet" else model
module = registry.find(make)(classes=10, shape=(3, 32, 32))
images, labels = torch.rand(500, 3, 32, 32) - 0.5, torch.randint(10, (500,))
optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
def epoch():
    for batch in torch.randperm(500).split(32):
        optimiser.zero_grad()
        F.cross_entropy(module(images[batch]), labels[batch]).backward()
        optimiser.step()
epoch()
began = time.process_time()
for _ in range(4 * int(rounds)):
    epoch()
print((time.process_time() - began) / int(rounds) / 4 * 1000)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("model", nargs="?", default="lenet")
    choice = parser.parse_args()
    rounds = 10 if choice.model in ("lenet", "mlp") else 2
    with tempfile.TemporaryDirectory() as name:
        folder, old = Path(name), Path(name) / "old"
        old.mkdir()
        archive = subprocess.run(["git", "archive", choice.revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=old, input=archive, check=True)
        stream = np.random.default_rng(0)
        x, y = stream.integers(0, 256, (51_000, 32, 32, 3), dtype=np.uint8), stream.integers(0, 10, 51_000)
        path = folder / "noise.npz"
        np.savez(path, x_train=x[:50_000], y_train=y[:50_000], x_test=x[50_000:], y_test=y[50_000:])
        programs = {"this tree": (FEDERATED, ROOT), choice.revision: (FEDERATED, old), "plain PyTorch": (PLAIN, ROOT)}
        found: dict[str, list[float]] = {kind: [] for kind in programs}
        for turn in range(TURNS):
            for kind, (program, tree) in programs.items():
                own = {"PYTHONPATH": str(tree / "src"), "PFEDDSH_CACHE": str(folder / f"cache-{kind.split()[0]}")}
                state = folder / f"state-{turn}-{kind.split()[0]}"
                words = [sys.executable, "-c", program, str(path), str(state), choice.model, str(rounds)]
                done = subprocess.run(words, env={**os.environ, **own}, check=True, capture_output=True, text=True)
                found[kind].append(float(done.stdout))
    for kind, times in found.items():
        ratios = [theirs / own for own, theirs in zip(found["this tree"], times, strict=True)]
        print(
            f"{kind:14} {statistics.median(times):7.1f} ms for 500 images of {choice.model}, "
            f"{statistics.median(ratios):.2f} times ours (each: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )


if __name__ == "__main__":
    main()
