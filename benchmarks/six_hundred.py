"""More clients than a hypernetwork has directions: 600 in the default configuration of `pfeddsh-hyper`, small data.

Prints whether anything was warned of, and by how much the deviation of any earlier client changed: rounding, no more.
With `--keep`, the numbers go to results/measured.csv.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from kept import keep
from torch import Tensor

from pfeddsh import Config
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.storage.checkpoint import Checkpoints

CLIENTS, EXAMPLES, FEATURES, CLASSES = 600, 6, 8, 3


class Watched(Federation):
    """Keeps, for every step, what its newcomers deviate by at its end."""

    before: Mapping[int, Tensor] = {}

    def deviations(self, clients: list[int]) -> dict[int, Tensor]:
        version = self.state[f"common/{self.state.facts['step']}"]
        sent = self.method.personal(self.state, clients)
        return {client: message["theta"] - version for client, message in sent.items()}

    def _snapshot(self, step: int, done: int) -> None:
        super()._snapshot(step, done)
        if done == 0:
            self.state.facts["newcomers"] = []  # so that all are sent the version
            self.before = {**self.before, **self.deviations(list(self.plan.batch(step - 1)))}


def main() -> None:
    torch.set_num_threads(1)
    stream, train = np.random.default_rng(0), CLIENTS * EXAMPLES
    x = stream.normal(size=(train + CLIENTS, FEATURES)).astype(np.float32)
    y = stream.integers(0, CLASSES, len(x))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="error"):
        path = Path(folder) / "noise.npz"
        np.savez(path, x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:])
        config = Config(
            method="pfeddsh-hyper", dataset=str(path), model="mlp", partition="iid", schedule="500+2x50",
            rounds_first=5, rounds_later=2, sample_fraction=0.04, engine="serial",
        )  # fmt: skip
        bench = Workbench(config)
        federation = Watched(bench, engines.create(config, bench), Checkpoints(Path(folder) / "state"), [])
        federation.ledger.local = [0.0] * CLIENTS  # no controls
        federation.run()
        after = federation.deviations(list(range(CLIENTS)))
        worst = max(float((after[k] - deviation).abs().max()) for k, deviation in federation.before.items())
        size = max(float(deviation.abs().max()) for deviation in federation.before.values())
    print(f"{CLIENTS} clients, warnings: {federation.ledger.warnings or 'none'}")
    print(f"largest change of a deviation {worst:.1e}; largest weight of a deviation {size:.1e}")
    if sys.argv[1:] == ["--keep"]:
        count = float(len(federation.ledger.warnings))
        keep("six hundred", "pfeddsh-hyper", change=worst, size=size, warnings=count)


if __name__ == "__main__":
    main()
