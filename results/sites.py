"""What the walk-through (docs/medical.md) shows of its one run: its table of steps, and whom an offer harmed."""

import io
import json
from typing import Any

from rich.console import Console
from runs import HERE

from pfeddsh.progress import table

RUN = HERE / "sites-pfeddsh-4+3x2-seed0.json"
LOST = 2.0  # points


def run() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RUN.read_text())
    return results


def steps() -> str:
    """As the command line prints it, without what stands around it."""
    view, out = table(run()), io.StringIO()
    view.title = view.caption = None
    Console(file=out, width=80).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def offers() -> list[tuple[int, int, int, list[str]]]:
    """By later step: the step, who was there, how many took the version, and which sites lost by it."""
    results, found = run(), []
    for t in range(1, results["steps"]):
        before, after = results["acc"][t - 1 : t + 1]
        there = [k for k, joined in enumerate(results["batch"]) if joined <= t]
        lost = [f"site-{k + 1:02}" for k in there if before[k] - after[k] > LOST]
        found.append((t + 1, len(there), round(results["accepted"][t] * len(there)), lost))
    return found
