"""The table of docs/operations.md: how `pfeddsh federation --seed N` ends, simulated, which gives the same bits."""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from live_sites import simulate

from pfeddsh.live.coordinator.config import load
from pfeddsh.live.demo import FIRST, SITES, prepare
from pfeddsh.live.site.policy import Policy


def row(seed: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        images, server = Path(place) / "images", Path(place) / "server"
        prepare(images, server, seed=seed)
        first = len(FIRST)
        batches = [tuple(range(first)), tuple(range(first, len(SITES)))]
        paths = [images / f"{name}.npz" for name in SITES]
        ledger = simulate(load(server), batches, paths, Path(place) / "state", policy=Policy()).ledger
    early, late = slice(first), slice(first, None)
    parts = (
        ledger.local[late],
        ledger.zero_shot[1][late],
        ledger.acc[1][late],
        ledger.acc[0][early],
        ledger.acc[1][early],
    )
    means = " | ".join(f"{np.mean([value for value in part if value is not None]):.1f}" for part in parts)
    return f"| {seed} | {means} | {round(first * (ledger.accepted[1] or 0))} of {first} |"


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:] or "0123"):
        print(row(seed), flush=True)
