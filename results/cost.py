"""What it costs to make everything here anew with `reproduce.sh`: a step that several runs share is computed once.

The seconds in a run's file are of the whole run, also of what it took over. They are spread over its steps by the
visits and evaluations of each; then every step counts in one run alone.
"""

import statistics
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from runs import HERE, rows

from pfeddsh.compare.keys import stops
from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.report.read import Run


class Parts(NamedTuple):
    """Of `reproduce.sh`, without its plans of runs: minutes of those that were timed, and the names of the others."""

    timed: dict[str, float]
    others: list[str]


def parts() -> Parts:
    listed = subprocess.run(
        [HERE / "reproduce.sh", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    plans = {path.stem for folder in (HERE / "plans", HERE.parent / "examples") for path in folder.glob("*.toml")}
    timed = {row["case"]: float(row["values"]) / 60 for row in rows("measured.csv", benchmark="reproduce")}
    rest = [name for name in listed if name not in plans or name == "latency"]  # which reuses nothing
    return Parts({k: timed[k] for k in rest if k in timed}, [k for k in rest if k not in timed and k != "documents"])


def hours(runs: Sequence[Run]) -> float:
    """Of one core."""
    seen: set[str] = set()
    return sum(_new(run, seen) for run in runs) / 3600


def alone(runs: Sequence[Run]) -> float:
    """Hours of one core for clients that train alone, as controls of places without a run of `local`."""
    local = [run for run in runs if run.results.method == "local"]
    missing = {_place(run) for run in runs} - {_place(run) for run in local}
    return len(missing) * statistics.mean(run.results.seconds.total for run in local) / 3600 if local else 0.0


def _place(run: Run) -> tuple[object, ...]:
    """Where a client that trains alone does so equally: whatever acts on what others do there makes no difference."""
    protocol = {k: v for k, v in (run.results.protocol or {}).items() if k not in ("later", "existing", "evidence")}
    results = run.results
    return results.dataset, results.schedule, results.seed, *sorted(map(str, protocol.items()))


def _new(run: Run, seen: set[str]) -> float:
    """Seconds of the steps that no run before it has had; of a run that cannot be built here, of all."""
    results = run.results
    named = {"dataset": results.dataset, "schedule": results.schedule, "seed": results.seed, "method": results.method}
    try:
        config = build({**named, **(results.protocol or {}), "options": results.options}, run.path.name)
        first, *closed = stops(config, results.environment.get("data", ""))
    except UserError:
        return results.seconds.total
    costs = [config.plan().cost(step) for step in range(1, len(closed) + 1)]
    new = sum(sum(cost) for cost, stop in zip(costs, closed, strict=True) if stop.key not in seen)
    if closed[0].key not in seen and first.key in seen:
        new -= costs[0][0]  # its rounds were there; only its end is new
    seen |= {stop.key for stop in (first, *closed)}
    return results.seconds.total * new / sum(map(sum, costs))
