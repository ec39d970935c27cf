"""The hypernetwork's closed forms against autograd and against the invariants of its update."""

import pytest
import torch
from torch import Tensor

from pfeddsh.mechanisms import hypernet

SIZE, HIDDEN = 301, 64


@pytest.fixture
def params() -> dict[str, Tensor]:
    """A small hypernetwork that has already learned something."""
    generator = torch.Generator().manual_seed(0)
    params = hypernet.create(torch.randn(SIZE, generator=generator), generator, hidden=HIDDEN)
    params["W2"].normal_(generator=generator)
    return params


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys_of(params: dict[str, Tensor], embeddings: Tensor) -> Tensor:
    return torch.stack([hypernet.key(params, e) for e in embeddings])


def bits(x: Tensor) -> Tensor:
    return x.clone().view(torch.int32)


def reference(params: dict[str, Tensor], embeddings: Tensor) -> Tensor:
    """The definition, in one differentiable expression."""
    hidden = torch.relu(embeddings @ params["W1"].t() + params["b1"])
    theta: Tensor = params["b2"] + (hidden / hidden.norm(dim=1, keepdim=True)) @ params["W2"].t()
    return theta


def test_everyone_starts_at_theta0() -> None:
    theta0 = draw(SIZE)
    params = hypernet.create(theta0, torch.Generator().manual_seed(0), hidden=HIDDEN)
    served = hypernet.generate(params, keys_of(params, draw(3, 32)))
    assert torch.equal(served, theta0.expand(3, SIZE))


def test_keys_are_unit_vectors_and_diverse() -> None:
    params = hypernet.create(draw(SIZE), torch.Generator().manual_seed(0))
    keys = keys_of(params, draw(100, 32))
    assert torch.allclose(keys.norm(dim=1), torch.ones(100))
    cosines = keys @ keys.t()
    assert (cosines.sum() - 100) / 9900 < 0.3


def test_a_silent_trunk_serves_the_bias(params: dict[str, Tensor]) -> None:
    silent = torch.zeros(32)
    assert not hypernet.key(params, silent).any()
    gradient = hypernet.trunk_gradient(params, silent.unsqueeze(0), draw(1, HIDDEN))
    assert not any(part.any() for part in gradient.values())


def test_generate_is_the_definition(params: dict[str, Tensor]) -> None:
    embeddings = draw(7, 32)
    theta = hypernet.generate(params, keys_of(params, embeddings))
    assert theta.is_contiguous()
    torch.testing.assert_close(theta, reference(params, embeddings))


def test_weights_do_not_depend_on_the_company(params: dict[str, Tensor]) -> None:
    keys = keys_of(params, draw(9, 32))
    alone = torch.cat([hypernet.generate(params, k.unsqueeze(0)) for k in keys])
    assert torch.equal(hypernet.generate(params, keys), alone)
    assert torch.equal(hypernet.generate(params, keys.flip(0)), alone.flip(0))


@pytest.mark.parametrize("clients", [1, 4])
def test_gradients_equal_autograd(params: dict[str, Tensor], clients: int) -> None:
    """I4: the rank-m update and the closed-form VJP are the gradient of mean_c <theta_c, D_c>."""
    params = {name: value.double().requires_grad_() for name, value in params.items()}
    embeddings = draw(clients, 32).double().requires_grad_()
    deltas = draw(clients, SIZE, seed=2).double()
    (reference(params, embeddings) * deltas).sum().div(clients).backward()
    expected = {name: value.grad for name, value in params.items()}
    assert embeddings.grad is not None
    plain = {name: value.detach().clone() for name, value in params.items()}

    before = {name: value.clone() for name, value in plain.items()}
    at_keys = hypernet.update(plain, deltas, keys_of(plain, embeddings.detach()), rate=0.3, bias_rate=0.2)
    torch.testing.assert_close((before["W2"] - plain["W2"]) / (0.3 * clients), expected["W2"])
    torch.testing.assert_close((before["b2"] - plain["b2"]) / 0.2, expected["b2"])

    gradient = hypernet.trunk_gradient(plain, embeddings.detach(), at_keys)
    torch.testing.assert_close(gradient["W1"], expected["W1"])
    torch.testing.assert_close(gradient["b1"], expected["b1"])
    torch.testing.assert_close(gradient["embeddings"] / clients, embeddings.grad)


@pytest.mark.parametrize("gated", [False, True])
def test_an_update_returns_what_was_pulled_before_it(params: dict[str, Tensor], gated: bool) -> None:
    """Over several blocks and a rest, with a gate that closes rows to writing but not to the gradient."""
    size = 2 * hypernet.BLOCK + SIZE
    params |= {"W2": draw(size, HIDDEN), "b2": draw(size)}
    deltas, keys = draw(3, size, seed=2), draw(3, HIDDEN, seed=3)
    gate = draw(size, seed=4) > 0 if gated else None
    wanted = params["W2"] - 0.7 * (deltas if gate is None else deltas * gate).t() @ keys
    pulled = hypernet.pull(params, deltas)
    torch.testing.assert_close(pulled, torch.einsum("mp,ph->mh", deltas, params["W2"]))
    at_keys = hypernet.update(params, deltas, keys, rate=0.7, bias_rate=0.3, gate=gate)
    torch.testing.assert_close(at_keys, pulled, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(params["W2"], wanted)


def test_one_client_and_unit_step_is_federated_averaging(params: dict[str, Tensor]) -> None:
    """I5: with rate ||h||^2 + bias_rate = 1 the server's step lands on the trained weights."""
    keys = keys_of(params, draw(1, 32))
    served = hypernet.generate(params, keys)
    trained = served + 0.1 * draw(1, SIZE, seed=2)
    hypernet.update(params, served - trained, keys, rate=0.7, bias_rate=0.3)
    torch.testing.assert_close(hypernet.generate(params, keys), trained)


@pytest.mark.parametrize("clients", [1, 3, 8])
def test_gated_rows_keep_their_bits(params: dict[str, Tensor], clients: int) -> None:
    """I1 at its root, with zeros in W2, keys of either sign and a client that sends infinities."""
    params["W2"][:, ::5] = 0.0
    before = {name: bits(value) for name, value in params.items()}
    gate = draw(SIZE) > 0
    for round_ in range(20):
        deltas = draw(clients, SIZE, seed=round_)
        deltas[0, (~gate).nonzero()[0]] = float("inf")
        hypernet.update(params, deltas, draw(clients, HIDDEN, seed=round_), rate=0.7, bias_rate=0.7, gate=gate)
    for name in ("W2", "b2"):
        assert torch.equal(bits(params[name])[~gate], before[name][~gate])
        assert (bits(params[name])[gate] != before[name][gate]).any(-1).all()
        assert params[name].isfinite().all()


def test_negative_zeros_are_served_the_same(params: dict[str, Tensor]) -> None:
    """An update by zero may turn -0.0 into +0.0; no served weight can tell."""
    params["W2"][:, ::2] = -0.0
    params["W2"][0] = -0.0
    params["b2"][0] = -0.0
    keys = keys_of(params, draw(2, 32))
    before = hypernet.generate(params, keys)
    frozen = torch.zeros(SIZE, dtype=torch.bool)
    hypernet.update(params, draw(2, SIZE), draw(2, HIDDEN), rate=0.7, bias_rate=0.7, gate=frozen)
    assert torch.equal(bits(hypernet.generate(params, keys)), bits(before))


def test_a_round_without_movement_changes_nothing(params: dict[str, Tensor]) -> None:
    """I6: learning rate 0 on the clients means D = 0."""
    before = {name: bits(value) for name, value in params.items()}
    hypernet.update(params, torch.zeros(2, SIZE), keys_of(params, draw(2, 32)), rate=0.7, bias_rate=0.7)
    assert all(torch.equal(bits(value), before[name]) for name, value in params.items())
