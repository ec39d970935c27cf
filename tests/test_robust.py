"""Robust aggregation: bounded norms, a memory of directions, nothing that an interruption changes, and it is said."""

import pytest
import torch
from conftest import assert_same_bits, comparable, events, final_tensors, tiny
from live_sites import FakeNetwork, federation, run_in_process, shards, tampered

from pfeddsh.federation.run import resume, run
from pfeddsh.live.coordinator.status import read_status
from pfeddsh.mechanisms import robust
from pfeddsh.messages import Record, State
from pfeddsh.models import base as models

SIZE = 2000


@pytest.fixture
def state():
    state = State()
    robust.opened(state)
    return state


def changes(clients, hostile=(), factor=-3.0, common=1.0, seed=0):
    """What clients send: something common to all, something of their own; the opposite from hostile ones."""
    draw = torch.Generator().manual_seed(seed)
    shared = common * torch.randn(SIZE, generator=torch.Generator().manual_seed(9))
    own = {k: shared + 1.5 * torch.randn(SIZE, generator=draw) for k in clients}
    return torch.stack([factor * own[k] if k in hostile else own[k] for k in clients])


def moved(task, state, clients, deltas):
    whole = torch.zeros(len(clients), task.model.size)
    whole[:, :SIZE] = deltas
    return robust.aggregate(task.model, state, list(clients), whole, torch.ones(len(clients)))[:SIZE]


@pytest.mark.parametrize("factor", [-1.0, -3.0, -10.0])
def test_who_turns_its_changes_around_is_left_out_from_the_first_round_on(task, state, factor):
    clients, hostile = range(10), {3, 7}
    result = moved(task, state, clients, changes(clients, hostile, factor))
    assert robust.left_out(state) == [3, 7]
    honest = [k for k in clients if k not in hostile]
    fair = State()
    robust.opened(fair)
    wanted = moved(task, fair, honest, changes(clients)[honest])
    assert torch.nn.functional.cosine_similarity(result, wanted, dim=0) > 0.99


def test_an_unlucky_first_cohort_decides_nothing_for_good(task, state):
    """Two of the first three are hostile; of ten they are still the minority, and are found."""
    hostile = {0, 1}
    for round, cohort in enumerate([(0, 1, 2), (3, 4, 5), (0, 6, 7), (1, 8, 9), (2, 3, 4), (2, 5, 6)]):
        moved(task, state, cohort, changes(cohort, hostile, seed=round))
    assert robust.left_out(state) == [0, 1]


def test_who_goes_with_the_others_again_counts_again_and_a_good_name_does_not_last(task, state):
    clients = range(6)
    for seed in range(9):
        moved(task, state, clients, changes(clients, seed=seed))
    assert max(state.facts["robust"]["agreement"].values()) == robust.MOST
    needed = 0
    while robust.left_out(state) != [5]:
        moved(task, state, clients, changes(clients, {5}, seed=20 + needed))
        needed += 1
        assert needed < 9, "nine rounds of honesty must not pay for nine of the opposite"
    for seed in range(9):
        moved(task, state, clients, changes(clients, seed=40 + seed))
    assert robust.left_out(state) == []


def test_honest_clients_that_have_nothing_in_common_are_all_kept(task, state):
    clients = range(5)
    for seed in range(6):
        deltas = changes(clients, common=0.0, seed=seed)
        result = moved(task, state, clients, deltas - deltas.mean(0))  # as at the end of training: they cancel
        assert robust.left_out(state) == [] and result.norm() > 0


def test_no_change_is_longer_than_twice_the_median_also_where_the_cohort_has_none(task, state):
    usual = robust.LONGEST * float(changes(range(5)).norm(dim=1).max())
    result = moved(task, state, range(5), changes(range(5), {4}, factor=1e6))
    assert result.norm() <= usual * 1.0001
    lone = moved(task, state, [5], 1e6 * changes([5]))
    assert lone.norm() <= usual * 1.0001, "the norms of the step bound one that comes alone"
    robust.opened(state)
    lone = moved(task, state, [6], 1e6 * changes([6]))
    assert lone.norm() <= usual * 1.0001, "and those of the step before the first of the next"


def test_honest_changes_of_unlike_length_are_not_cut(task, state):
    """At the median itself, half of them would be."""
    deltas = changes(range(5)) * torch.tensor([0.6, 0.8, 1.0, 1.3, 1.6])[:, None]
    assert torch.allclose(moved(task, state, range(5), deltas), deltas.mean(0), atol=1e-5)


def test_of_few_that_lie_about_their_statistics_none_moves_them_far(task):
    honest = [torch.full((models.statistics_size(task.model),), 1.0 + k / 10) for k in range(3)]
    told = robust.pooled(task.model, [*honest, torch.full_like(honest[0], 100.0), torch.full_like(honest[0], 100.0)])
    for mean, variance in models.split_statistics(task.model, told):
        assert (mean <= 1.2).all() and (variance < 1.3).all()


def test_the_memory_survives_being_written_and_a_step_or_a_client_that_ends_takes_its_part_along(task, state):
    clients = range(6)
    moved(task, state, clients, changes(clients, {2}))
    read = Record.decode(state.encode())
    results = [moved(task, one, clients, changes(clients, {2}, seed=1)) for one in (state, read)]
    assert torch.equal(*results) and read.facts == state.facts
    assert_same_bits(read.tensors, state.tensors)
    robust.forget(state, 2)
    assert robust.LAST + "2" not in state and robust.left_out(state) == []
    robust.opened(state)
    assert not state.tensors


def test_a_run_that_was_killed_gives_the_same_bits(tmp_path):
    class Stop:
        def event(self, kind, facts):
            if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
                raise InterruptedError

    config = tiny("pfeddsh", options={"aggregation": "history"})
    whole = run(config, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        run(config, tmp_path / "run", [Stop()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole)
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "whole"))


def test_live_it_is_the_default_and_says_whose_uploads_do_not_count(tmp_path):
    server, network = tmp_path / "server", FakeNetwork()
    federation(server, steps=1, batch_min=5, rounds_first=2)
    for k, path in enumerate(shards(tmp_path / "data", 5)):
        network.add(100 + k, tmp_path / f"site-{k}", path)

    def flip(message):
        message["delta"] = -3 * message["delta"]

    def fault(header, name, body):
        return tampered(body, flip) if header["job"] == "local" and name == "site-2" else body

    network.fault = fault
    run_in_process(server, network)
    notices = [notice.text for notice in read_status(server).notices]
    assert notices == ["site-2 goes against what most others send: its uploads do not count (step 1, round 1)"]
    told = [event for event in events(server) if event["event"] == "left_out"]
    assert [(event["round"], event["left_out"]) for event in told] == [(0, True)]
