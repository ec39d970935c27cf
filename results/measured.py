"""Puts what a benchmark measured into results/measured.csv, of which documents are made (`lookup.measured`).

A row has the values of all turns, so a document can say the median and how far they spread. Shell scripts call it with
BENCHMARK CASE QUANTITY VALUE...
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runs import keep as keep_rows

from pfeddsh.results.ledger import revision


def keep(benchmark: str, case: str, **quantities: Sequence[float] | float) -> None:
    """In place of what an earlier run of the same benchmark and case has left."""
    rows = []
    for quantity, turns in quantities.items():
        each = turns if isinstance(turns, Sequence) else [turns]
        row = {"benchmark": benchmark, "case": case, "quantity": quantity, "values": " ".join(f"{v:.6g}" for v in each)}
        rows.append(row | origin())
    keep_rows("measured.csv", rows, ["benchmark", "case", "quantity"])


def origin() -> dict[str, str]:
    """Of which code, and on which machine."""
    return {"revision": revision() or "", "machine": machine()}


def machine() -> str:
    """Processor and cores, as Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{name}, {os.cpu_count()} cores"


if __name__ == "__main__":
    benchmark, case, quantity, *values = sys.argv[1:]
    keep(benchmark, case, **{quantity: list(map(float, values))})
