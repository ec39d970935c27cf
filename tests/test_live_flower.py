"""Over Flower itself: real SuperLink, SuperNodes, coordinator and sites, on this machine's loopback."""

import json
import time
from pathlib import Path

import pytest
from conftest import assert_same_bits
from live_processes import Town, let_everything_leave
from live_sites import federation, final_state, shards, simulate

from pfeddsh.live.security import signing
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.storage.records import read_record

pytest.importorskip("flwr")
PATIENCE = 900  # seconds until a test gives up; a quiet machine needs a minute or two


def serving(address):
    """What Flower's own health service says."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status == health_pb2.HealthCheckResponse.SERVING


def test_a_run_over_flower_gives_the_bits_of_the_serial_engine(tmp_path):
    """With TLS, node keys and a signed app, as a federation is meant to run; the proxy has tests of its own.

    Batches fill by number and never by time, so that who is slow to start changes nothing.
    """
    paths = shards(tmp_path / "data", 4)
    config = federation(
        tmp_path / "server", rounds_first=1, rounds_later=1, batch_min=2, batch_wait=3600, min_cohort=2,
        round_timeout=200, offline_after=200, steps=2,
    )  # fmt: skip
    with Town(tmp_path) as town:
        town.secure([*(f"site-{k}" for k in range(4)), "careful"])
        stranger = signing.sign(tmp_path / "other", tmp_path / "stranger")
        town.serve()
        for k in (0, 1):
            town.join(f"site-{k}", paths[k])
        town.until(lambda status: status["phase"] == "training", PATIENCE)
        assert json.loads(town.ask("/health")) == {"healthy": True, "problems": []}
        assert "pfeddsh_step 1.0" in town.ask("/metrics") and serving(town.health)
        town.join("careful", paths[0], f"--trust={stranger}")  # it will not run what another key has signed
        refusal = tmp_path / "careful" / "node.log"
        town.until(lambda _: refusal.exists() and "FAB verification failed" in refusal.read_text(), PATIENCE)
        for k in (2, 3):
            town.join(f"site-{k}", paths[k])
        results = town.until_done(PATIENCE)
    assert not (tmp_path / "careful" / "memory.safetensors").exists() and results["clients"] == 4
    simulated = simulate(config, [(0, 1), (2, 3)], paths, tmp_path / "simulated")
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    assert results["acc"] == simulated.ledger.acc
    assert results["local"] == simulated.ledger.local
    for k in range(4):
        kept = read_record(tmp_path / f"site-{k}" / "memory.safetensors").tensors
        memory = {f"memory:{name}": tensor for name, tensor in simulated.serving.memories[k].tensors.items()}
        assert_same_bits({name: t for name, t in kept.items() if name.startswith("memory:")}, memory)


def test_kills_and_bad_replies_change_nothing_but_the_rounds_without_those_replies(tmp_path):
    """SIGKILL of a SuperNode, the coordinator and the SuperLink in mid-round; NaN, wrong shape, oversized uploads.

    A round with fewer than two good replies is repeated while somebody is missing, so no kill costs a reply. FedAvg has
    the fewest messages, and each takes Flower seconds; `test_live_kills` has twenty more kills without Flower.
    """
    paths = shards(tmp_path / "data", 2)
    config = federation(
        tmp_path / "server", method="fedavg", options={}, rounds_first=3, steps=1, batch_min=2, batch_wait=3600,
        min_cohort=2, round_timeout=100, offline_after=60, quarantine_after=10,
    )  # fmt: skip
    home = tmp_path / "site-1"
    let_everything_leave(home)
    (home / "faults.json").write_text(json.dumps({"0": "nan", "1": "shape", "2": "size"}))
    with Town(tmp_path) as town:
        town.serve()
        town.join("site-0", paths[0])
        SiteConfig(name="site-1", data=str(paths[1]), server=f"127.0.0.1:{town.port}", insecure=True).save(home)
        town.start("site-1", str(Path(__file__).parent / "faulty_site.py"), str(home), "join")
        for done, victims in enumerate(
            [[("site-0", "flower-supernode"), ("server", "flwr-serverapp")], [("server", "flower-superlink")]], start=1
        ):
            town.until(lambda status, done=done: status["round"] >= done, PATIENCE)
            time.sleep(1.0)  # into the next round
            for who, program in victims:
                town.kill(who, program)
        results = town.until_done(PATIENCE)
    refused = {(1, 0, 1), (1, 1, 1), (1, 2, 1)}
    simulate(config, [(0, 1)], paths, tmp_path / "simulated", absent=refused)
    assert_same_bits(final_state(tmp_path / "server" / "state"), final_state(tmp_path / "simulated"))
    assert results["refused"]["uploads"] == 3
    lines = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    reasons = {line["round"]: line["reason"] for line in lines if line["event"] == "refused"}
    assert "not finite" in reasons[0] and "shape" in reasons[1] and "bytes" in reasons[2]
