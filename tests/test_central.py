"""The oracle that pools everyone's images: what it trains on, and that with one client there is nothing to pool."""

import numpy as np
import pytest
import torch
from conftest import final_tensors, tiny

from pfeddsh.federation.workbench import Workbench

PLAN = tiny("central").plan()


def test_with_one_client_it_is_local_training_with_the_same_batches(reference):
    one = {"schedule": "1", "rounds_first": 3}
    central, local = (reference(method, **one) for method in ("central", "local-prior"))
    assert torch.equal(final_tensors(central.out)["state:theta"], final_tensors(local.out)["memory/0:theta"])
    assert central.results["acc"] == local.results["acc"]


def test_a_round_takes_as_many_images_as_a_cohort_holds_on_average_from_all_who_have_joined():
    bench = Workbench(tiny("central"))
    for step in (1, 2):
        own = np.concatenate([bench.parts.train[k] for k in PLAN.onboarded(step)])
        visits = [bench.visit(step, round, PLAN.onboarded(step)[0]) for round in range(4)]
        drawn = [bench.pool(visit).trained for visit in visits]
        wanted = len(own) * len(PLAN.cohort(step, 0)) / len(PLAN.onboarded(step))
        assert [len(part) for part in drawn] == [pytest.approx(wanted, abs=0.5)] * 4
        assert all(len(np.unique(part)) == len(part) and set(part) <= set(own) for part in drawn)
        assert not np.array_equal(drawn[0], drawn[1])


def test_what_is_set_aside_is_not_pooled():
    bench = Workbench(tiny("central", hold_out=0.3))
    kept = np.concatenate([bench.shard(k).trained for k in PLAN.batch(1)])
    assert set(bench.pool(bench.visit(1, 0, PLAN.batch(1)[0])).trained) <= set(kept)


def test_one_call_a_round_trains_and_everyone_is_served(reference):
    run = reference("central")
    assert all(len(event["clients"]) == 1 for event in run.events("round"))
    assert all(value is not None for value in run.results["acc"][2])
    first, last = (float(np.mean([run.results["acc"][t][k] for k in PLAN.onboarded(t + 1)])) for t in (0, 2))
    assert last > first, "ten more rounds on more images"
