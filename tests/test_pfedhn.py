"""pFedHN: what one server step means, whose embedding moves, and what `embed_only` leaves alone."""

import pytest
import torch
from conftest import final_tensors, snapshot_tensors, tiny

from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.mechanisms import hypernet
from pfeddsh.messages import Message
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.methods.pfedhn import PFedHN, Settings, best_step
from pfeddsh.methods.task import Task
from pfeddsh.models.lenet import STATISTICS

SMALL = {"hidden": 32}


def opened(clients: int, **options) -> tuple[PFedHN, Message]:
    method = PFedHN(Task.create(10, 0), Settings(hidden=32, **options))
    state = method.init()
    method.open_step(state, 1, 5, {k: Message() for k in range(clients)})
    return method, state


def noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    return 0.01 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def uploads(method: PFedHN, state: Message, clients: list[int], seed: int = 0) -> dict[int, Message]:
    served = method.download(state, clients)
    return {k: Message({"delta": noise(served[k]["theta"], seed + k)}, {"samples": 9}) for k in clients}


def test_with_one_client_a_server_step_is_that_of_fedavg():
    """I5: with unit keys and rho = 1 the client is served exactly what it trained; with rho = 0.5 half of it."""
    for rho in (1.0, 0.5):
        method, state = opened(1, rho=rho, trunk_rate=0, embedding_rate=0)
        for seed in range(3):
            served = method.download(state, [0])[0]["theta"]
            trained = served - noise(served, seed)
            method.aggregate(state, {0: Message({"delta": served - trained}, {"samples": 9})})
            average = FedAvg(method.task, method.options)
            shared = average.init()
            average.aggregate(shared, {0: Message({"theta": trained}, {"samples": 9})})
            wanted = served + rho * (shared["theta"] - served)
            assert torch.allclose(method.personal(state, [0])[0]["theta"], wanted, atol=1e-6)
            assert not torch.allclose(wanted, served, atol=1e-3)


def test_only_embeddings_of_sampled_clients_move():
    method, state = opened(4)
    method.aggregate(state, uploads(method, state, [0, 1, 2, 3]))  # until W2 is not zero no embedding has a gradient
    before = {k: state[f"e/{k}"].clone() for k in range(4)}
    method.aggregate(state, uploads(method, state, [1, 3], seed=9))
    assert [k for k in range(4) if not torch.equal(before[k], state[f"e/{k}"])] == [1, 3]


def test_the_table_grows_and_a_row_depends_on_its_client_alone():
    method, state = opened(3)
    before = state["e/1"].clone()
    method.open_step(state, 2, 5, {7: Message()})
    other, fresh = opened(0)
    other.open_step(fresh, 1, 5, {7: Message(), 5: Message()})
    assert torch.equal(state["e/1"], before)
    assert torch.equal(state["e/7"], fresh["e/7"])
    assert not torch.equal(state["e/7"], state["e/1"])


def test_the_best_step_serves_weights_nearer_to_the_trained_ones():
    method, state = opened(3)
    for round in range(4):
        method.aggregate(state, uploads(method, state, [0, 1, 2], seed=10 * round))
    e = state["e/0"]
    wanted = method.personal(state, [1])[1]["theta"]  # something the hypernetwork can make
    distances = []
    for _ in range(10):
        served = hypernet.generate(state.tensors, hypernet.key(state.tensors, e)[None])[0]
        distances.append(float((served - wanted).norm()))
        e = e - best_step(state.tensors, e, served - wanted)
    assert distances[-1] < 0.5 * distances[0]
    assert torch.equal(best_step(state.tensors, e, torch.zeros_like(wanted)), torch.zeros(hypernet.EMBEDDING))


def test_embed_only_trains_newcomers_and_leaves_everyone_else_to_the_bit(tmp_path, all_states):
    config = tiny("pfedhn-embed-only", schedule="6+2", options=SMALL)
    results = run(config, tmp_path / "run")
    assert results["ri"] == [None, 0.0]
    before, after = (snapshot_tensors(p) for p in sorted((tmp_path / "run" / "state").glob("snapshot-*.safetensors")))
    newcomers = {f"state:e/{k}" for k in config.plan().batch(2)}
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    assert "state:W2" in before and before["state:W2"].any()
    drawn, _ = opened(0)
    start = drawn.init()
    drawn.open_step(start, 2, 1, {k: Message() for k in config.plan().batch(2)})
    assert any(not torch.equal(after[name], start[name[6:]]) for name in newcomers)


def test_a_whole_run_is_counted_and_the_hypernetwork_goes_on_learning(reference):
    finished = reference("pfedhn", options=SMALL)
    assert finished.results["payload_kib"] == {
        "down": pytest.approx(242.21, abs=0.01),
        "up": pytest.approx(242.21, abs=0.01),
        "once_down": 0,
        "once_up": STATISTICS / 256,
    }
    snapshots = sorted((finished.out / "state").glob("snapshot-*.safetensors"))
    before, after = (snapshot_tensors(path) for path in snapshots)
    assert not torch.equal(before["state:W2"], after["state:W2"])
    existing = [name for name in before if name.startswith("state:e/")]
    assert len(existing) == 8
    assert all(torch.equal(before[name], after[name]) for name in existing)
    assert len([name for name in final_tensors(finished.out) if name.startswith("state:e/")]) == 10


def test_with_a_local_head_the_hypernetwork_makes_the_body_and_no_head_travels(reference):
    run = reference("pfedhn-local-head", options=SMALL)
    tensors = final_tensors(run.out)
    model = Task.create(10, 0).model
    assert len(tensors["state:b2"]) == len(tensors["state:W2"]) == model.body.stop
    assert run.results["payload_kib"]["up"] == pytest.approx(4 * model.body.stop / 1024)
    heads = [tensor for name, tensor in tensors.items() if name.endswith(":head")]
    assert len(heads) > 3
    assert all(len(head) == model.size - model.body.stop for head in heads)
    assert all(not torch.equal(heads[0], head) for head in heads[1:])


def test_with_one_client_a_local_head_makes_it_local_training():
    """I5 again: the server hands back the body it was sent, and the head never left."""
    task = Task.create(10, 0)
    frozen = {"trunk_rate": 0.0, "embedding_rate": 0.0}
    ours = Workbench(tiny("pfedhn-local-head", options={**SMALL, **frozen}))
    alone = Workbench(tiny("local"))
    state, memory, own = ours.method.init(), Message(), Message()
    ours.method.open_step(state, 1, 3, {0: Message()})
    for round in range(3):
        served = ours.method.download(state, [0])[0]
        upload, memory = ours.run(Call("local", ours.visit(1, round, 0), served, memory))
        ours.method.aggregate(state, {0: upload})
        _, own = alone.run(Call("local", alone.visit(1, round, 0), Message(), own))
    theta = ours.method.weights(ours.method.download(state, [0])[0], memory)
    assert torch.allclose(theta, own["theta"], atol=1e-4)
    assert not torch.allclose(theta, task.theta0, atol=1e-2)
