"""What epsilon costs: everyone's accuracy at the end against the privacy of uploads.

`python benchmarks/privacy.py --out runs/privacy` runs the digits (144 runs of seconds); `--protocol digits-half` has
half of the clients in each round; `cifar10` is shortened (PFEDDSH_DATA names the folder). Finished runs are not
repeated. With `--keep`, every run is a row of results/privacy.csv, and of results/cohorts.csv what `--cohorts` has
calculated. The accounting is that of `pfeddsh.mechanisms.accounting`.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from kept import keep_rows

from pfeddsh.configure import build
from pfeddsh.federation.run import run
from pfeddsh.mechanisms import accounting
from pfeddsh.results.ledger import revision

METHODS = ("pfeddsh", "fedavg", "fedavg-prior")
# What is measured where. Half of the clients in each round, with as many uploads each: noise averages out better.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "digits-half": {"dataset": "digits", "sample_fraction": 0.5, "rounds_first": 12, "rounds_later": 6},
    "digits-long": {"dataset": "digits", "local_epochs": 10},  # for benchmarks/membership.py
    "cifar10": {"dataset": "cifar10", "schedule": "80+20", "rounds_first": 40, "rounds_later": 10},
}
# Clips and noises. On the digits, the widest clip changes nothing for pFedDSH.
GRIDS: dict[str, dict[float, tuple[float, ...]]] = {
    "digits": {
        1.0: (0.0, 0.003, 0.01, 0.03),
        0.2: (0.0, 0.015, 0.05, 0.15, 0.5),
        0.05: (0.0, 0.06, 0.2, 0.6, 2.0, 10.0),
    },
    "digits-half": {0.2: (0.0, 0.015, 0.05, 0.15, 0.5)},
    "cifar10": {0.2: (0.0, 0.005, 0.02, 0.1, 0.5, 2.0)},
}
SEEDS = {"digits": (0, 1, 2), "digits-half": (0, 1, 2), "cifar10": (0,)}


def name(protocol: str, method: str, clip: float, noise: float, seed: int) -> str:
    return f"{protocol}-{method}-{clip:g}-{noise:g}-{seed}"


def measure(protocol: str, method: str, clip: float, noise: float, seed: int, out: Path) -> dict[str, Any]:
    """One run, or what it left if it has been done."""
    folder = out / name(protocol, method, clip, noise, seed)
    if not (folder / "results.json").exists():
        privacy = {"clip": clip, "noise": noise}
        values = {"method": method, "seed": seed, "engine": "serial", "privacy": privacy}
        run(build({**values, **PROTOCOLS[protocol]}), folder)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def row(protocol: str, method: str, clip: float, noise: float, seed: int, results: dict[str, Any]) -> dict[str, str]:
    """Of results/privacy.csv; `alone` is local-only training, `epsilon` that of whoever has uploaded most."""
    told = results.get("privacy", {})
    epsilon = told.get("epsilon")
    return {
        "protocol": protocol, "method": method, "clip": f"{clip:g}", "noise": f"{noise:g}", "seed": str(seed),
        "accuracy": f"{results['acc_end_mean']:.4f}", "alone": f"{statistics.mean(results['local']):.4f}",
        "epsilon": "" if epsilon is None else f"{epsilon:.6g}", "uploads": str(told.get("uploads", "")),
        "revision": results["environment"]["revision"] or "",
    }  # fmt: skip


def cohorts(least: int = 3, noise: float = 0.05, uploads: int = 12) -> list[dict[str, str]]:
    """What more clients a round would be worth, by calculation: noise that leaves as much of it in their mean.

    As it is here, the coordinator sees each upload; with secure aggregation it would see their sum alone.
    """
    rows = []
    for count in (least, 15, 100, 1000, 10_000):
        own = noise * math.sqrt(count / least)
        each, summed = (accounting.epsilon({accounting.upload(z): uploads}, 1e-5) for z in (own, own * count**0.5))
        same = {"clients": str(count), "noise": f"{own:.3g}", "uploads": str(uploads)}
        rows.append(same | {"epsilon": f"{each:.6g}", "of the sum": f"{summed:.6g}", "revision": revision() or ""})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--protocol", choices=sorted(GRIDS), default="digits")
    parser.add_argument("--cohorts", action="store_true", help="only calculate what larger cohorts are worth")
    parser.add_argument("--keep", action="store_true", help="add the rows to results/")
    given = parser.parse_args()
    if given.cohorts:
        rows = cohorts()
        print(*rows, sep="\n")
        if given.keep:
            keep_rows("cohorts.csv", rows, ["clients"])
        return
    levels = [(0.0, 0.0), *((clip, noise) for clip, own in GRIDS[given.protocol].items() for noise in own)]
    rows = []
    for clip, noise in levels:
        for method in METHODS:
            for seed in SEEDS[given.protocol]:
                what = given.protocol, method, clip, noise, seed
                rows.append(row(*what, measure(*what, given.out)))
                print(*rows[-1].values(), flush=True)
    if given.keep:
        keep_rows("privacy.csv", rows, ["protocol", "method", "clip", "noise", "seed"])


if __name__ == "__main__":
    main()
