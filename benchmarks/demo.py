"""Whether `make demo` shows what is true on average: its comparison for seeds 0 to 4.

    python benchmarks/demo.py --keep    # continues what is in the folder

With --keep, every method and seed is a row of results/demo.csv, and docs/demo.md is made of them.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kept import keep_rows, origin
from rich.console import Console

from pfeddsh.compare.comparison import Comparison
from pfeddsh.compare.demo import outcome, plan
from pfeddsh.compare.summary import results

SEEDS = range(5)


def row(one: dict[str, Any]) -> dict[str, str]:
    """What a run came to, with the code that it was made with: perhaps earlier than now."""
    found = {
        name: f"{value:.6g}" if isinstance(value, float) else value or ""
        for name, value in asdict(outcome(one)).items()
    }
    return {"seed": str(one["seed"]), **found, **origin(), "revision": one["environment"]["revision"] or ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/demo-seeds"), help="where the runs lie")
    parser.add_argument("--keep", action="store_true", help="add the runs to results/demo.csv")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    comparison = Comparison(plan(SEEDS), folder, 2, limit=10**10)
    if comparison.compute("local", Console()):
        sys.exit("some runs failed; start again")
    found = [row(one) for run in comparison.runs if (one := results(folder / run.name))]
    for each in found:
        print(*each.values())
    if arguments.keep:
        keep_rows("demo.csv", found, ["method", "seed"])


if __name__ == "__main__":
    main()
