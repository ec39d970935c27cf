"""Ditto: the global model is FedAvg's, the own one is local training that is drawn towards it."""

import pytest
import torch
from conftest import final_tensors, tiny

from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.models.training import cross_entropy, sgd_epoch


def visited(task, client=0, memory=None, theta=None, **options):
    bench = Workbench(tiny("ditto", options=options))
    sent = Message({"theta": task.theta0 if theta is None else theta})
    return bench.run(Call("local", bench.visit(1, 0, client), sent, memory or Memory()))


def test_the_global_model_is_that_of_fedavg(reference):
    ditto, fedavg = (final_tensors(reference(method).out)["state:theta"] for method in ("ditto", "fedavg"))
    assert torch.equal(ditto, fedavg)


def test_without_a_pull_the_own_model_is_trained_alone(task):
    bench = Workbench(tiny("local"))
    own = None
    alone = Memory()
    for round in range(2):  # the second visit receives another global model, which then means nothing
        theta = task.theta0 if round == 0 else torch.zeros_like(task.theta0)
        ditto = Workbench(tiny("ditto", options={"lam": 0.0}))
        _, own = ditto.run(Call("local", ditto.visit(1, round, 0), Message({"theta": theta}), own or Memory()))
        _, alone = bench.run(Call("local", bench.visit(1, round, 0), Message(), alone))
    assert torch.equal(own["own"], alone["theta"])


def test_the_stronger_the_pull_the_nearer_the_own_model_stays(task):
    start = Memory({"own": task.theta0 + 0.05})
    ways = [float((visited(task, memory=start, lam=lam)[1]["own"] - task.theta0).norm()) for lam in (0.0, 0.5, 2.0)]
    assert ways[0] > ways[1] > ways[2] > 0


def test_a_step_is_the_gradient_and_the_pull(task):
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels, own = torch.arange(8), task.theta0 + 0.01
    trainer = task.model.trainer()
    gradient = trainer.backward(cross_entropy(trainer.forward(own, images), labels)[1]).clone()
    wanted = own - 0.1 * (gradient + 0.5 * (own - task.theta0))
    sgd_epoch(
        trainer, own, images, labels, batches=[torch.arange(8)], lr=0.1, momentum=0.9, anchor=task.theta0, pull=0.5
    )
    assert torch.allclose(own, wanted, atol=1e-6)


def test_a_client_that_was_never_sampled_is_served_the_global_model(task):
    method = Workbench(tiny("ditto")).method
    served = Message({"theta": task.theta0})
    assert torch.equal(method.weights(served, Memory()), task.theta0)
    assert torch.equal(method.weights(served, Memory({"own": task.theta0 + 1})), task.theta0 + 1)


@pytest.mark.parametrize("method", ["ditto", "ditto-prior"])
def test_who_has_trained_keeps_its_own_model_when_others_join(method, reference):
    run = reference(method)
    trained = {k for event in run.events("round") if event["step"] == 1 for k in event["clients"]}
    assert trained
    for k in trained:
        assert run.results["acc"][0][k] == run.results["acc"][2][k]
