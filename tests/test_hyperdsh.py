"""pFedDSH with a hypernetwork, end to end on the embedded digits: protections, the paper's replay, refused cards."""

import json
from functools import cache
from itertools import pairwise

import pytest
import torch
from conftest import assert_same_bits, nothing_to_warn_of

from pfeddsh import Config, run
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.methods.hyperdsh import HyperDSH
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.records import read_record

TINY = {
    "method": "pfeddsh-paper-projection",
    "schedule": "6+2x2",
    "rounds_first": 2,
    "rounds_later": 2,
    "sample_fraction": 0.4,
}

SMALL = {"images": 20, "iterations": 4, "hidden": 16}


def tiny(engine: str = "serial", **options) -> Config:
    return Config(**TINY, engine=engine, workers=2, options=SMALL | options)


class Watched(Federation):
    """A federation that keeps what existing clients are served at the end of every step."""

    def __init__(self, config: Config, folder) -> None:
        bench = Workbench(config)
        self.served: list[dict] = []
        super().__init__(bench, engines.create(config, bench), Checkpoints(folder), [])
        self.ledger.local = [0.0] * self.plan.clients  # the controls are not what is tested here

    def _snapshot(self, step: int, done: int) -> None:
        super()._snapshot(step, done)
        if done == 0:
            clients = list(self.plan.onboarded(step - 1))
            models = self.method.personal(self.state, clients)
            self.served.append({k: {n: t.clone() for n, t in m.tensors.items()} for k, m in models.items()})


def watch(config: Config, folder) -> Watched:
    federation = Watched(config, folder)
    federation.run()
    federation.engine.close()
    return federation


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Finished federations, each computed once; tests must not change them."""
    return cache(lambda engine="serial", **options: watch(tiny(engine, **options), tmp_path_factory.mktemp("watched")))


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_with_the_gate_existing_clients_are_served_the_same_bits_at_every_step(watched, engine):
    """I1: the reason for everything else."""
    served = watched(engine, protection="gate").served
    assert len(served) == 3
    for before, after in pairwise(served):
        for client, model in before.items():
            for name, tensor in model.items():
                assert torch.equal(tensor, after[client][name]), (client, name)


class Interrupted(Exception):
    pass


def test_the_bits_also_survive_an_interruption(watched, tmp_path):
    config = tiny(protection="gate")
    undisturbed = watched("serial", protection="gate").served

    class Stop:
        def event(self, kind, facts):
            if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
                raise Interrupted

    first = Watched(config, tmp_path)
    first.observers.append(Stop())
    with pytest.raises(Interrupted):
        first.run()
    resumed = watch(config, tmp_path).served
    for before, after in zip(undisturbed[1:], resumed, strict=True):
        for client, model in before.items():
            assert torch.equal(model["theta"], after[client]["theta"])
            assert torch.equal(model["mask"], after[client]["mask"])


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_with_the_projection_existing_clients_keep_weights_to_rounding_and_every_prediction(watched, engine):
    federation = watched(engine, protection="projection")
    model = federation.bench.task.model
    for before, after in pairwise(federation.served):
        for client in before:
            old, new = before[client]["theta"], after[client]["theta"]
            assert (new - old).norm() < 1e-6 * old.norm()
            images = federation.bench.shard(client).test[0]
            statistics = federation.serving.memories[client]["statistics"]
            said = [model.forward(theta, images, statistics).argmax(1) for theta in (old, new)]
            assert torch.equal(said[0], said[1])


def test_newcomers_do_learn_under_both_protections(watched):
    """A protection that froze everything would pass the tests above."""
    for protection in ("gate", "projection"):
        federation = watched("serial", protection=protection)
        newcomer = federation.plan.batch(3)[0]
        keys = federation.method.keys(federation.state, [newcomer])
        assert federation.state["W2"].matmul(keys[0]).norm() > 1e-3
        assert any(federation.state[f"e/{k}"].isfinite().all() for k in federation.plan.batch(3))


def test_without_protection_existing_clients_drift(tmp_path):
    served = watch(tiny(protection="none"), tmp_path).served
    first = next(iter(served[0]))
    drift = (served[1][first]["theta"] - served[0][first]["theta"]).norm() / served[0][first]["theta"].norm()
    assert drift > 1e-3


def test_a_snapshot_keeps_the_bits_and_costs_a_models_worth_of_bytes(tmp_path):
    federation = watch(tiny(protection="snapshot"), tmp_path)
    for client, model in federation.served[0].items():
        assert torch.equal(model["theta"], federation.served[-1][client]["theta"])
    assert federation.state[f"kept/{federation.plan.batch(1)[0]}"].nbytes == 4 * 62_006


def test_the_papers_replay_fine_tunes_existing_clients_and_no_newcomer(watched):
    federation = watched("serial", protection="gate", replay="paper", inversion="sensitivity")
    replayed = {int(name[9:]) for name in federation.state.tensors if name.startswith("replayed/")}
    assert replayed == set(federation.plan.onboarded(2))
    for k in federation.plan.batch(1):
        assert not torch.equal(federation.served[0][k]["theta"], federation.served[1][k]["theta"])


def test_serial_and_pool_agree_with_the_papers_replay(tmp_path):
    options = {"protection": "gate", "replay": "paper", "inversion": "sensitivity"}
    few = {"schedule": "4+2", "sample_fraction": 0.5}
    configs = [tiny(engine, **options).model_copy(update=few) for engine in ("serial", "pool")]
    results = [run(config, tmp_path / config.engine) for config in configs]
    for field in ("acc", "local", "payload_kib"):
        assert results[0][field] == results[1][field], field


@pytest.mark.parametrize("protection", ["projection", "gate", "snapshot", "none"])
def test_around_a_common_model_every_protection_learns_and_offers_versions(protection, tmp_path):
    """The common model moves for everybody; what a deviation keeps is the protection's business."""
    config = Config(
        **{**TINY, "method": "pfeddsh-hyper"}, engine="serial", options={"hidden": 16, "protection": protection}
    )
    federation = watch(config, tmp_path)
    state, first = federation.state, federation.plan.batch(1)[0]
    assert not torch.equal(state["common/1"], state["common/3"])
    assert state["b2"].count_nonzero() == 0
    served = federation.method.personal(state, [first])[first]
    deviation = served["theta"] - state["common/3"]
    before = federation.served[0][first]["theta"] - state["common/1"]
    change = (deviation - before).norm() / before.norm()
    if protection == "none":
        assert change > 1e-3
    elif protection != "gate":  # the mask is applied to the sum, so versions differ outside it
        assert change < 1e-4


def test_without_protection_the_trunk_keeps_training(tmp_path):
    config = tiny(protection="none")
    federation = Watched(config, tmp_path)
    assert isinstance(federation.method, HyperDSH) and not federation.method.frozen_trunk
    other = Watched(tiny(), tmp_path / "other").method
    assert isinstance(other, HyperDSH) and other.frozen_trunk


def test_a_malformed_card_is_refused_and_the_step_goes_on(tmp_path, monkeypatch):
    config = tiny()
    unlucky = config.plan().batch(2)[0]
    card = HyperDSH.card

    def broken(self, message, data, memory, visit):
        reply, memory = card(self, message, data, memory, visit)
        if visit.client == unlucky:
            reply["image"] = reply["image"][:5]
        return reply, memory

    monkeypatch.setattr(HyperDSH, "card", broken)
    results = run(config, tmp_path / "run")
    assert list(results["refused"]["clients"]) == [str(unlucky)]
    assert all(row[unlucky] is None for row in results["acc"])
    other = config.plan().batch(2)[1]
    assert results["acc"][1][other] is not None


def test_learning_rate_zero_leaves_everything_as_it_was(tmp_path):
    """I6: also the embeddings of clients that are never sampled."""
    config = Config(**TINY, engine="serial", lr=0.0, options=SMALL)
    federation = Watched(config, tmp_path)
    federation._open(1)
    before = {name: tensor.clone() for name, tensor in federation.state.tensors.items()}
    for round in range(config.rounds_first):
        federation._round(1, round)
    for name, tensor in before.items():
        assert torch.equal(tensor, federation.state[name]), name


def test_embeddings_move_when_their_client_is_sampled_and_only_then(tmp_path):
    federation = Watched(tiny(), tmp_path)
    federation._open(1)
    federation._round(1, 0)  # until W2 is no longer zero no embedding has a gradient
    before = {k: federation.state[f"e/{k}"].clone() for k in federation.plan.batch(1)}
    federation._round(1, 1)
    sampled = federation.plan.cohort(1, 1)
    for k, e in before.items():
        assert torch.equal(e, federation.state[f"e/{k}"]) == (k not in sampled)


def test_when_the_directions_run_out_a_block_opens_and_earlier_clients_keep_their_bits(tmp_path):
    """There is no lifetime cap; long-served blocks lie on disk, and a killed run finds them again."""
    with nothing_to_warn_of():
        federation = watch(tiny(hidden=5), tmp_path)
    state, served, first = federation.state, federation.served, federation.plan.batch(1)
    assert federation.ledger.warnings == [] and state.facts["block"] >= 1
    assert state.facts["blocks"].keys() == {str(k) for step in (2, 3) for k in federation.plan.batch(step)}
    for client in first:
        assert torch.equal(served[0][client]["theta"], served[-1][client]["theta"])
    for client in federation.plan.batch(2):
        later = served[-1][client]["theta"]
        assert not torch.equal(later, state["common"])
        assert torch.allclose(served[1][client]["theta"], later, rtol=0, atol=1e-6)
    again = Watched(tiny(hidden=5), tmp_path)
    assert_same_bits(again.state.tensors, state.tensors)
    on_disk = read_record(max(tmp_path.glob("snapshot-*.safetensors"))).tensors
    assert "state:W2/1" in on_disk and not {"state:W2", "state:basis", "state:common/1"} & on_disk.keys()


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A finished run behind the gate, in its folder; all clients of its first step have trained."""
    folder = tmp_path_factory.mktemp("gated") / "run"
    run(tiny(protection="gate").model_copy(update={"rounds_first": 4}), folder)
    return folder


def test_payload_is_the_model_down_and_its_change_up(tmp_path, gated):
    results = run(tiny(), tmp_path / "run")
    payload = results["payload_kib"]
    assert (payload["down"], payload["up"]) == (pytest.approx(242.21, abs=0.01), pytest.approx(242.21, abs=0.01))
    assert payload["once_down"] == 0 < payload["once_up"] < 2  # cards and statistics
    behind = json.loads((gated / "results.json").read_text())
    assert behind["payload_kib"]["up"] == pytest.approx(242.21 + 226 * 4 / 1024, abs=0.01)


def test_capacity_says_what_each_step_takes_and_how_new_its_updates_are(gated):
    results = json.loads((gated / "results.json").read_text())
    first, second, _ = results["capacity"]
    assert first["fc1"]["new"] == first["fc1"]["active"] == first["fc1"]["total"]
    assert second["fc1"]["total"] == first["fc1"]["total"] + second["fc1"]["new"]
    assert second["fc1"]["new"] >= 1
    assert first["fc1"]["novelty"] == len(tiny().plan().batch(1))  # with nothing taken yet, every update is new
