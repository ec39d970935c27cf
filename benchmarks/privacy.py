"""What epsilon costs: everyone's accuracy at the end against the privacy of uploads, as a table and a figure.

`python benchmarks/privacy.py --out runs/privacy` runs the digits (144 runs of seconds); `--protocol digits-half` has
half of the clients in each round; `cifar10` is shortened (PFEDDSH_DATA names the folder). Finished runs are not
repeated. `--docs` puts figures and tables into docs/privacy.md. The accounting is that of
`pfeddsh.mechanisms.accounting`.
"""

import argparse
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pfeddsh.configure import build
from pfeddsh.federation.run import run
from pfeddsh.mechanisms import accounting

METHODS = {"pfeddsh": "pFedDSH", "fedavg": "FedAvg", "fedavg-prior": "FedAvg + prior"}
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
Found = dict[tuple[str, float, float], list[dict[str, Any]]]  # method, clip (0: none), noise -> a run a seed
DOCS = Path(__file__).parents[1] / "docs"


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


def accuracy(runs: list[dict[str, Any]]) -> float:
    return float(statistics.mean(results["acc_end_mean"] for results in runs))


def alone(found: Found) -> float:
    """Local-only training: what a client has without anybody else."""
    runs = next(iter(found.values()))
    return float(statistics.mean(own for results in runs for own in results["local"]))


def table(found: Found) -> str:
    lines = ["| clip | noise | epsilon, delta = 1e-5 | " + " | ".join(f"{m}, %" for m in METHODS.values()) + " |"]
    lines.append("|---:|---:|---:|" + "---:|" * len(METHODS))
    for clip, noise in dict.fromkeys(key[1:] for key in found):
        own = [found[method, clip, noise] for method in METHODS]
        cells = [f"{clip:g}" if clip else "none", f"{noise:g}" if noise else "none"]
        cells += ["none" if (e := spent(own[0])) is None else f"{e:,.0f}" if e > 20 else f"{e:.1f}"]
        cells += [f"{accuracy(runs):.1f}" for runs in own]
        lines.append(f"| {' | '.join(cells)} |")
    uploads = max((r["privacy"]["uploads"] for runs in found.values() for r in runs if "privacy" in r), default=0)
    about = f"At most {uploads} uploads a client; training alone gives {alone(found):.1f} %"
    seeds = len(next(iter(found.values())))
    return "\n".join([*lines, "", f"{about}; {f'means of {seeds} seeds' if seeds > 1 else 'seed 0'}."])


def spent(runs: list[dict[str, Any]]) -> float | None:
    """The epsilon of whoever has uploaded most, in any of the runs."""
    told = [e for results in runs if (e := results.get("privacy", {}).get("epsilon")) is not None]
    return max(told, default=None)


def cohorts(least: int = 3, noise: float = 0.05, uploads: int = 12) -> str:
    """What more clients a round would be worth, by calculation: noise that leaves as much of it in their mean.

    As it is here, the coordinator sees each upload; with secure aggregation it would see their sum alone.
    """
    lines = ["| clients a round | noise of each | epsilon | epsilon, were only the sum seen |", "|---:|---:|---:|---:|"]
    for count in (least, 15, 100, 1000, 10_000):
        own = noise * math.sqrt(count / least)
        told = [accounting.epsilon({accounting.upload(z): uploads}, 1e-5) for z in (own, own * math.sqrt(count))]
        lines.append(
            f"| {count:,} | {own:.2g} | " + " | ".join(f"{e:,.3g}" if e < 1e3 else f"{e:,.0f}" for e in told) + " |"
        )
    return "\n".join(lines)


def figure(protocol: str, found: Found, path: Path) -> None:
    drawing, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for colour, (method, name) in zip(("C0", "C1", "C2"), METHODS.items(), strict=True):
        for style, clip in zip(("-o", "--s", ":^"), GRIDS[protocol], strict=False):
            own = [
                (e, accuracy(r)) for (m, c, z), r in found.items() if (m, c) == (method, clip) and z and (e := spent(r))
            ]
            if own:
                axes.plot(*zip(*sorted(own), strict=True), style, color=colour, label=f"{name}, clip {clip:g}")
        axes.axhline(accuracy(found[method, 0.0, 0.0]), color=colour, lw=0.8, label=f"{name}, no privacy")
    axes.axhline(alone(found), color="grey", ls="--", label="training alone")
    axes.set(xscale="log", xlabel="epsilon (delta = 1e-5); less is more private", ylabel="everyone at the end, %")
    axes.set_title(protocol)
    axes.legend(fontsize=7)
    drawing.savefig(path, dpi=130)


def put(name: str, text: str) -> None:
    """Replace what stands between the marks of this name in docs/privacy.md."""
    page = DOCS / "privacy.md"
    before, after = f"<!-- {name} -->\n", "<!-- end -->"
    content = page.read_text()
    assert before in content, f"{page} has no place for {name}"
    page.write_text(
        re.sub(re.escape(before) + ".*?" + after, lambda _: before + text + "\n" + after, content, flags=re.S)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--protocol", choices=sorted(GRIDS), default="digits")
    parser.add_argument("--docs", action="store_true", help="write figure and table into docs/")
    parser.add_argument("--cohorts", action="store_true", help="only calculate what larger cohorts are worth")
    given = parser.parse_args()
    if given.cohorts:
        print(cohorts())
        if given.docs:
            put("benchmarks/privacy.py --cohorts", cohorts())
        return
    levels = [(0.0, 0.0), *((clip, noise) for clip, own in GRIDS[given.protocol].items() for noise in own)]
    found: Found = {}
    for clip, noise in levels:
        for method in METHODS:
            runs = [measure(given.protocol, method, clip, noise, seed, given.out) for seed in SEEDS[given.protocol]]
            found[method, clip, noise] = runs
            print(method, clip, noise, *(round(results["acc_end_mean"], 2) for results in runs), flush=True)
    print(table(found))
    if given.docs:
        put(f"benchmarks/privacy.py {given.protocol}", table(found))
        figure(given.protocol, found, DOCS / f"privacy-{given.protocol}.png")


if __name__ == "__main__":
    main()
