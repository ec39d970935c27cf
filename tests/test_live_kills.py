"""Kill -9 at random moments, and a full disk: in the end the bits are those of a run that nothing disturbed.

`python tests/test_live_kills.py 200` kills as many times, with another seed each time.
"""

import errno
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import assert_same_bits
from live_sites import FakeNetwork, federation, final_state, run_in_process, shards, simulate

from pfeddsh.errors import UserError

KILLS = 20
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir")  # what a process does to its files; `os.replace` is a renaming
QUICK = {"rounds_first": 3, "rounds_later": 2, "batch_min": 2, "batch_wait": 0.0, "offline_after": 0.2}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("data"), 3)


def town(folder, paths):
    """Two sites, and a third that comes when the first round is over, if it has not come before."""
    network = FakeNetwork()
    for k in (0, 1, 2):
        if k < 2 or (folder / "site-2").exists():
            network.add(100 + k, folder / f"site-{k}", paths[k])

    def fault(header, name, body):
        if header["job"] == "local" and header["visit"]["round"] and 102 not in network.sites:
            network.add(102, folder / "site-2", paths[2])
        return body

    network.fault = fault
    return network


def live(folder, paths, kill_at):
    """Coordinator and sites in one process, which is killed before its n-th step on a file, in whatever thread."""
    torch.set_num_threads(1)
    seen = 0

    def count(event, _):
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    run_in_process(folder / "server", town(folder, paths))
    (folder / "events").write_text(str(seen))


def attempt(folder, paths, kill_at=0):
    """Whether it ended by itself; it must if nobody kills it."""
    process = multiprocessing.get_context("fork").Process(target=live, args=(folder, paths, kill_at))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def kill(folder, paths, kills, seed):
    """Kill it so many times in all, wherever it is, and let it end; in how many runs that was."""
    draw, done = random.Random(seed), 0
    whole = folder / "whole"
    config = federation(whole / "server", **QUICK)
    assert attempt(whole, paths)
    events, number = int((whole / "events").read_text()), 0
    while done < kills:
        place = folder / f"run-{number}"
        federation(place / "server", **QUICK)
        while done < kills and not attempt(place, paths, kill_at=draw.randrange(1, events // 2)):
            done += 1
        number += 1
        assert (place / "server" / "results.json").exists() or attempt(place, paths)
        assert_same_bits(final_state(place / "server" / "state"), final_state(whole / "server" / "state"))
        for name in ("results", "clients"):
            assert same(place, name) == same(whole, name)
    return config, whole, number


def same(folder, name):
    """A file without what tells of time."""
    content = json.loads((folder / "server" / f"{name}.json").read_text())
    for key in ("seconds", "environment", "queue"):
        content.pop(key, None)
    return content


def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits(tmp_path, paths):
    config, whole, _ = kill(tmp_path, paths, KILLS, seed=0)
    simulated = simulate(config, [(0, 1), (2,)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(whole / "server" / "state"), final_state(tmp_path / "simulated"))
    assert same(whole, "results")["acc"] == simulated.ledger.acc


class Disk:
    """Every write of a file as a whole fails, half done, from the so many-th on; until there is room again."""

    def __init__(self, monkeypatch, writes):
        self.left = writes
        text, save = Path.write_text, safetensors.torch.save_file
        monkeypatch.setattr(Path, "write_text", lambda path, content: self._write(path, lambda: text(path, content)))
        monkeypatch.setattr(
            safetensors.torch,
            "save_file",
            lambda parts, path, facts: self._write(path, lambda: save(parts, path, facts)),
        )

    def _write(self, path, write):
        self.left -= 1
        if self.left < 0:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write()


@pytest.mark.parametrize("writes", [0, 3, 11, 17])
def test_a_full_disk_ends_the_coordinator_with_a_reason_and_costs_nothing(tmp_path, paths, monkeypatch, writes):
    config = federation(tmp_path / "server", **QUICK | {"steps": 1, "rounds_first": 2})
    network = town(tmp_path, paths)
    network.fault = lambda header, name, body: body
    with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left on device; free some space"):
        Disk(patch, writes)
        run_in_process(tmp_path / "server", network)
    assert not [path for path in (tmp_path / "server").rglob("*") if path.suffix == ".tmp"]
    run_in_process(tmp_path / "server", network)
    simulate(config, [(0, 1)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        count, began = int(sys.argv[1]), Path(place)
        data = shards(began / "data", 3)
        for seed in range(0, count, KILLS):
            runs = kill(began / str(seed), data, min(KILLS, count - seed), seed=1 + seed)[2]
            print(f"{min(count, seed + KILLS)} kills, the last {KILLS} in {runs} runs: the same bits", flush=True)
