"""How long the status page takes to show a federation of so many sites in a browser.

    python benchmarks/status_page.py --keep    # 10,000 sites, five turns, into results/measured.csv

Needs the package playwright and a chromium; the time is from asking for the page to the first row of its clients.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from kept import keep
from playwright.sync_api import sync_playwright

from pfeddsh.live.coordinator.page import serve_page


def status(sites: int) -> dict[str, object]:
    """A status.json as the coordinator writes it, of batches of a hundred."""
    now = "2026-01-01T00:00:00+00:00"
    clients = [
        {
            "id": k, "name": f"site-{k:06}", "key": f"SHA256:{k:043}", "batch": 1 + k // 100, "state": "served",
            "online": k % 3 > 0, "last_seen": now, "refused": 0, "offer": "accepted", "accuracy": 81.25,
            "accuracy_first": 80.0, "accuracy_zero_shot": 78.5, "accuracy_alone": 73.75,
        }
        for k in range(sites)
    ]  # fmt: skip
    steps = -(-sites // 100)
    return {
        "schema": 1, "time": now, "moved": None, "phase": "waiting", "step": steps, "round": 0, "rounds": 20,
        "eta_seconds": None, "queue": [], "clients": clients,
        "offers": {"made": sites, "accepted": sites, "declined": 0, "pending": 0}, "refused": [], "notices": [],
        "bytes": {"down": 1, "up": 1}, "pa": [7.5] * steps, "ri": [0.5] * steps,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="add the seconds to results/measured.csv")
    arguments = parser.parse_args()
    sites, turns = arguments.sites, arguments.turns
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        (Path(scratch) / "status.json").write_text(json.dumps(status(sites)))
        server = serve_page(Path(scratch))
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        seconds = []
        for _ in range(turns):
            page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
            began = time.perf_counter()
            page.goto(f"http://localhost:{server.server_port}/", wait_until="commit")
            page.wait_for_selector("#clients td.name")
            seconds.append(time.perf_counter() - began)
        browser.close()
        server.shutdown()
    median, most = statistics.median(seconds), max(seconds)
    print(f"status page of {sites:,} sites: {median:.2f} s (median of {turns}; most {most:.2f})")
    if arguments.keep:
        keep("status_page", f"{sites} sites", seconds=seconds)


if __name__ == "__main__":
    main()
