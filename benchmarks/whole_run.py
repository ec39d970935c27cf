"""What a run of pFedDSH costs against FedAvg's, and where it goes: `whole_run.py [DATASET SCHEDULE ROUNDS] [--keep]`.

Both take turns in one process, so the times are seconds of one core and what else the machine does matters little.
Local-only controls, which every method shares, are computed before, by the run whose memory is looked at. `ROUNDS`
are those of step 1, later steps have half of them; what happens at the ends of steps does not shrink with them, so
fewer than in a real run overstate the ratio.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from kept import keep
from peers import memory

from pfeddsh.config import Config
from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import Call, Workbench

TURNS = 3
METHODS = ("fedavg", "pfeddsh")


def measured(config: Config, out: Path) -> Counter[str]:
    """Seconds of one core, in all and for each kind of call."""
    seconds: Counter[str] = Counter()
    whole = Workbench.run

    def timed(self: Workbench, call: Call):
        began = time.process_time()
        try:
            return whole(self, call)
        finally:
            seconds[call.job] += time.process_time() - began

    Workbench.run = timed
    began = time.process_time()
    try:
        run(config, out)
    finally:
        Workbench.run = whole
    total = time.process_time() - began
    seconds["server, messages, files"] = total - sum(seconds.values())
    seconds["all"] = total
    return seconds


def peak(config: Config, out: Path) -> float:
    """The most memory that a run and its workers have at once, in MB, looked at five times a second."""
    seen, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            seen.append(memory())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        run(config, out)
    finally:
        ended.set()
        watcher.join()
    return max(seen)


def main(dataset: str, schedule: str, rounds: int) -> dict[str, list[float]]:
    """What was measured, turn by turn, also printed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["PFEDDSH_CACHE"] = place
        settings = {"dataset": dataset, "schedule": schedule, "engine": "serial"}
        settings |= {"rounds_first": rounds, "rounds_later": max(1, rounds // 2)}
        pool = settings | {"engine": "pool", "workers": 2}
        most = peak(Config(method="pfeddsh", **pool), folder / "pool")
        found: dict[str, list[Counter[str]]] = {method: [] for method in METHODS}
        for turn in range(TURNS):
            for method in METHODS:
                found[method].append(measured(Config(method=method, **settings), folder / f"{method}-{turn}"))
    print(f"{dataset}, {schedule}, {rounds} rounds at first, medians of {TURNS} turns, seconds of one core")
    middle = {m: {k: statistics.median(t[k] for t in found[m]) for k in found[m][0]} for m in METHODS}
    for kind in sorted(middle["pfeddsh"], key=lambda kind: -middle["pfeddsh"][kind]):
        print(f"{kind:26}" + "".join(f"{method:>10} {middle[method].get(kind, 0):7.2f}" for method in METHODS))
    ratios = [b["all"] / a["all"] for a, b in zip(*found.values(), strict=True)]
    print(f"memory of pfeddsh with two workers, at most: {most:,.0f} MB (sum of proportional set sizes)")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")

    each = {f"{m} {kind}": [turn[kind] for turn in found[m]] for m in METHODS for kind in found[m][0]}
    return {"ratio": ratios, "memory": [most], **each}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", nargs="?", default="digits")
    parser.add_argument("schedule", nargs="?", default="20+4x3")
    parser.add_argument("rounds", nargs="?", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="put what was measured into results/measured.csv")
    given = parser.parse_args()
    found = main(given.dataset, given.schedule, given.rounds)
    if given.keep:
        keep("whole run", f"{given.dataset} {given.schedule} {given.rounds}", **found)
