"""Seconds of a comparison's runs, into results/latency.csv: `python results/latency.py runs/latency`.

Made by `results/reproduce.sh latency` on a machine that does nothing else; the seconds in results/*.json are not.
"""

import json
import sys
from pathlib import Path

from runs import keep


def main() -> None:
    found = []
    for path in sorted(Path(sys.argv[1]).glob("*/results.json")):
        run = json.loads(path.read_text())
        seconds = run["seconds"]
        later = seconds["replay_per_step"][1:]
        found.append({
            "method": run["method"], "schedule": run["schedule"], "seed": str(run["seed"]),
            "server round": f"{seconds['server_round_mean']:.4f}", "replay": f"{sum(later) / len(later):.2f}",
            "whole round": f"{seconds['round_mean']:.3f}",
        })  # fmt: skip
    keep("latency.csv", found, ["method", "schedule", "seed"])


if __name__ == "__main__":
    main()
