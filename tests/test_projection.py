"""Projection: existing clients' weights stay while newcomers move as far as they would have."""

import torch
from conftest import nothing_to_warn_of
from torch import Tensor

from pfeddsh.mechanisms import hypernet, projection
from pfeddsh.mechanisms.protection import Projection
from pfeddsh.messages import State
from pfeddsh.models.lenet import LeNet

HIDDEN = 512


def make_keys(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    params = hypernet.create(torch.zeros(1), torch.Generator().manual_seed(0), hidden=HIDDEN)
    return torch.stack([hypernet.key(params, e) for e in torch.randn(count, 32, generator=generator)])


def test_basis_is_orthonormal_spans_the_keys_and_only_grows() -> None:
    basis = projection.empty(HIDDEN)
    seen = []
    for batch, count in enumerate((80, 20, 1, 50)):
        before = basis
        seen.append(make_keys(count, batch))
        basis = projection.extend(basis, seen[-1])
        assert torch.equal(basis[:, : before.shape[1]], before)
    assert basis.shape == (HIDDEN, 151)
    identity = torch.eye(151, dtype=torch.float64)
    assert (basis.t() @ basis - identity).abs().max() < 1e-13
    assert projection.energy(basis, torch.cat(seen)).max() < 1e-24


def test_copies_and_combinations_add_no_direction() -> None:
    keys = make_keys(10, 0)
    basis = projection.extend(projection.empty(HIDDEN), torch.cat([keys, keys]))
    assert basis.shape[1] == 10
    assert projection.extend(basis, keys[:3].double().sum(0, keepdim=True)).shape[1] == 10


def test_nearly_equal_keys_are_both_protected() -> None:
    keys = make_keys(2, 0)
    twin = torch.nn.functional.normalize(keys[0] + 1e-4 * keys[1], dim=0)
    basis = projection.extend(projection.empty(HIDDEN), torch.stack([keys[0], twin]))
    assert basis.shape[1] == 2
    assert projection.energy(basis, torch.stack([keys[0], twin])).max() < 1e-24


def test_a_near_copy_in_a_later_batch_keeps_the_basis_orthonormal() -> None:
    keys = make_keys(41, 0)
    basis = projection.extend(projection.empty(HIDDEN), keys[:40])
    twin = torch.nn.functional.normalize(keys[0] + 1e-6 * keys[40], dim=0).unsqueeze(0)
    basis = projection.extend(basis, twin)
    assert basis.shape[1] == 41
    assert (basis.t() @ basis - torch.eye(41, dtype=torch.float64)).abs().max() < 1e-13


def test_a_newcomer_moves_by_the_intended_amount() -> None:
    keys, newcomer = make_keys(80, 0), make_keys(1, 1)
    basis = projection.extend(projection.empty(HIDDEN), keys)
    written = projection.project(basis, newcomer)
    torch.testing.assert_close(written @ newcomer.t(), torch.ones(1, 1))
    assert (written @ keys.t()).abs().max() < 1e-6


def test_the_floor_limits_what_is_written_by_a_key_almost_inside() -> None:
    keys = make_keys(5, 0)
    basis = projection.extend(projection.empty(HIDDEN), keys)
    assert not projection.project(basis, keys).abs().gt(1e-9).any()
    nearly = torch.nn.functional.normalize(keys[0] + 0.05 * make_keys(1, 1)[0], dim=0).unsqueeze(0)
    share = float(projection.energy(basis, nearly))
    assert 0 < share < projection.FLOOR
    moved = float(projection.project(basis, nearly) @ nearly.t())
    assert abs(moved - share / projection.FLOOR) < 1e-5


def test_existing_weights_survive_a_thousand_rounds() -> None:
    """I1 for the projection: relative leak below 1e-6 while the newcomers are thoroughly rewritten."""
    size, existing, newcomers, rounds = 1000, 80, 20, 1000
    generator = torch.Generator().manual_seed(0)
    params = hypernet.create(0.03 * torch.randn(size, generator=generator), generator, hidden=HIDDEN)
    old, new = make_keys(existing, 1), make_keys(newcomers, 2)
    for round_ in range(rounds):  # what step 1 has written
        deltas = 0.003 * torch.randn(1, size, generator=generator)
        hypernet.update(params, deltas, old[round_ % existing].unsqueeze(0), rate=0.7, bias_rate=0.7)
    basis = projection.extend(projection.empty(HIDDEN), old)
    before, start = hypernet.generate(params, old), hypernet.generate(params, new)
    for round_ in range(rounds):
        deltas = 0.003 * torch.randn(1, size, generator=generator)
        written = projection.project(basis, new[round_ % newcomers].unsqueeze(0))
        hypernet.update(params, deltas, written, rate=0.7, bias_rate=0.0)
    leak = (hypernet.generate(params, old) - before).norm(dim=1) / before.norm(dim=1)
    moved = (hypernet.generate(params, new) - start).norm(dim=1) / start.norm(dim=1)
    assert leak.max() < 1e-6
    assert moved.min() > 0.1


def test_exhaustion_is_noticed() -> None:
    hidden = 32
    keys = torch.nn.functional.normalize(torch.randn(40, hidden, generator=torch.Generator().manual_seed(0)), dim=1)
    basis = projection.extend(projection.empty(hidden), keys[:20])
    assert not projection.exhausted(basis, keys[20:32])
    assert projection.exhausted(basis, keys[20:33]), "twelve directions are left"
    assert projection.exhausted(basis, keys[:2]), "they have nothing outside"


def test_six_hundred_clients_are_protected_and_those_of_full_blocks_keep_their_bits() -> None:
    """As many hidden units as by default; only the network they make is small."""
    draw, protection = torch.Generator().manual_seed(3), Projection(LeNet(10), 0)
    state = State(hypernet.create(torch.zeros(50), torch.Generator().manual_seed(0)), {"step": 0, "newcomers": []})
    keys, served, opened = make_keys(600, 7), torch.zeros(600, 50), []
    with nothing_to_warn_of():
        for step, batch in enumerate(torch.arange(600).split(60), 1):
            clients = batch.tolist()
            state.facts |= {"step": step, "newcomers": clients}
            protection.open(state, keys[batch])
            opened.append(state.facts.get("block", 0))
            deltas = torch.randn(len(clients), 50, generator=draw)
            protection.write(state, clients, deltas, keys[batch], rate=0.2, bias_rate=0.0)
            protection.close(state, clients, keys[batch])
            served[batch] = protection.generate(state, clients, keys[batch])
            if opened[-1] > opened[-2:][0]:  # it has just opened, and those before have had their last
                full = protection.generate(state, range(clients[0]), keys[: clients[0]])
    assert opened[0] == 0 and opened[-1] >= 1
    now = protection.generate(state, range(600), keys)
    assert (now - served).norm(dim=1).max() / served.norm(dim=1).mean() < 1e-4
    assert torch.equal(now[: len(full)], full), "nothing is written to the columns of a full block"
    assert served[-60:].norm(dim=1).min() > 0.1, "newcomers of the last block learn too"
