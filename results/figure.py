"""Draw the central figure of the README: what happens to the first batch as others join.

`python results/figure.py` reads the runs in this folder and writes docs/first-batch.png.
"""

import json
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
LINES = {  # colours of Okabe and Ito, which colour-blind people can tell apart
    "pfeddsh": ("pFedDSH", "#0072B2", "o"),
    "pfeddsh-neither": ("hypernetwork, no protection, no replay", "#D55E00", "s"),
    "fedper": ("FedPer", "#009E73", "^"),
    "fedavg": ("FedAvg", "#CC79A7", "v"),
}


def first_batch(run: dict) -> list[float]:
    """Mean change of the first batch's accuracy since its own step, after each step."""
    members = [k for k, joined in enumerate(run["batch"]) if joined == 1]
    return [statistics.mean(row[k] - run["acc"][0][k] for k in members) for row in run["acc"]]


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for method, (label, colour, marker) in LINES.items():
        runs = [json.loads(p.read_text()) for p in sorted(HERE.glob(f"cifar10-{method}-80+4x5-seed?.json"))]
        if not runs:
            continue
        curves = [first_batch(run) for run in runs]
        mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
        steps = range(1, len(mean) + 1)
        axes.plot(steps, mean, color=colour, marker=marker, label=f"{label} (n={len(runs)})")
        if len(runs) > 1:
            low, high = ([f(values) for values in zip(*curves, strict=True)] for f in (min, max))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xticks(range(1, 6))
    axes.set_xlabel("onboarding step (80 clients, then 4 times 5)")
    axes.set_ylabel("change of the first batch\n(accuracy, points)")
    axes.set_title("CIFAR-10: existing clients as others join, never retrained", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE.parent / "docs" / "first-batch.png", dpi=160)


if __name__ == "__main__":
    main()
