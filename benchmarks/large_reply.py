"""By how much a reply of 400 MB takes the coordinator up: real Flower, two sites, one of which sends it in round 2.

python benchmarks/large_reply.py --keep    # adds it to results/measured.csv; told in docs/operations.md
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from kept import keep

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from live_processes import Town, let_everything_leave  # noqa: E402
from live_sites import federation, shards  # noqa: E402

from pfeddsh.live.site.join import SiteConfig  # noqa: E402

ROUNDS, MOST = 3, 50  # megabytes


def memory(process: int, what: str) -> float:
    """Megabytes of a process: VmRSS now, VmHWM at most so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="add the numbers to results/measured.csv")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths, home = shards(folder / "data", 2), folder / "site-1"
        federation(
            folder / "server", method="fedavg", options={}, rounds_first=ROUNDS, steps=1, batch_min=2, batch_wait=3600,
            round_timeout=300, offline_after=60,
        )  # fmt: skip
        let_everything_leave(home)
        (home / "faults.json").write_text(json.dumps({"1": "huge"}))
        with Town(folder) as town:
            town.serve()
            town.join("site-0", paths[0])
            SiteConfig(name="site-1", data=str(paths[1]), server=f"127.0.0.1:{town.port}", insecure=True).save(home)
            town.start("site-1", str(TESTS / "faulty_site.py"), str(home), "join")
            town.until(lambda status: status["round"] >= 1, 900)
            coordinator = int((town.server / "coordinator.pid").read_text())
            before, peak = memory(coordinator, "VmRSS"), 0.0
            Path(f"/proc/{coordinator}/clear_refs").write_text("5")  # the peak is counted from now on
            while town.status()["round"] < ROUNDS:
                peak = memory(coordinator, "VmHWM")
                time.sleep(0.1)
            results = town.until_done(900)
        reasons = [line for line in (town.server / "events.jsonl").read_text().splitlines() if '"refused"' in line]
        said = next(json.loads(line)["reason"] for line in reasons if json.loads(line)["event"] == "refused")
        print(f"coordinator: {before:.0f} MB before, {peak:.0f} MB at most, {peak - before:+.0f} MB (at most {MOST})")
        print(f"refused {results['refused']['uploads']}: {said}")
        if arguments.keep:
            keep("large_reply", "400 MB", **{"MB before": before, "MB at most": peak})
        raise SystemExit(peak - before > MOST or results["refused"]["uploads"] != 1)


if __name__ == "__main__":
    main()
