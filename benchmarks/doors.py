"""How many of a million mutated messages each of a coordinator's doors refuses, and how many it lets in.

    python benchmarks/doors.py --keep    # the messages of `make fuzz`; told in docs/robustness.md

With --keep, the counts of every door go to results/measured.csv; a fault ends it, and nothing is kept.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kept import keep

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fuzz import DOORS, run

from pfeddsh.federation.run import one_thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true", help="add the counts to results/measured.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcomes, faults = run(arguments.messages, seed=0, folder=folder)
    for fault in faults:
        print("FAULT", *fault)
    if faults:
        raise SystemExit(1)
    for door in DOORS:
        counts = {what: outcomes[door, what] for what in ("refused", "accepted")}
        print(f"{door:<10} {counts['refused']:>9,} refused {counts['accepted']:>9,} accepted")
        if arguments.keep:
            keep("doors", door.replace("_", " "), **counts)


if __name__ == "__main__":
    main()
