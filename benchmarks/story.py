"""How `pfeddsh federation --seed N` ends, simulated, which gives the same bits.

python benchmarks/story.py --keep    # seeds 0 to 3; a row of results/story.csv each, told in docs/operations.md
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from kept import keep_rows, origin

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from live_sites import simulate

from pfeddsh.live.coordinator.config import load
from pfeddsh.live.demo import FIRST, SITES, prepare
from pfeddsh.live.site.policy import Policy


def row(seed: int) -> dict[str, str]:
    """Means over the late sites and over the earlier ones, in %, and how many of these took the offer."""
    with tempfile.TemporaryDirectory() as place:
        images, server = Path(place) / "images", Path(place) / "server"
        prepare(images, server, seed=seed)
        first = len(FIRST)
        batches = [tuple(range(first)), tuple(range(first, len(SITES)))]
        paths = [images / f"{name}.npz" for name in SITES]
        ledger = simulate(load(server), batches, paths, Path(place) / "state", policy=Policy()).ledger
    early, late = slice(first), slice(first, None)
    means = {
        "alone": ledger.local[late],
        "at_once": ledger.zero_shot[1][late],
        "after": ledger.acc[1][late],
        "earlier_before": ledger.acc[0][early],
        "earlier_after": ledger.acc[1][early],
    }
    found = {name: f"{np.mean([value for value in part if value is not None]):.6g}" for name, part in means.items()}
    accepted = round(first * (ledger.accepted[1] or 0))
    return {"seed": str(seed), **found, "accepted": str(accepted), "earlier": str(first), **origin()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--keep", action="store_true", help="add the seeds to results/story.csv")
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        rows.append(row(seed))
        print(*rows[-1].values(), flush=True)
    if arguments.keep:
        keep_rows("story.csv", rows, ["seed"])


if __name__ == "__main__":
    main()
