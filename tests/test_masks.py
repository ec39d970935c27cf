"""Masks: annealing, selection within budgets, and the gradient gate weight by weight."""

import math

import pytest
import torch
from torch import Tensor

from pfeddsh.mechanisms import hypernet, masks
from pfeddsh.models.fast import GATES
from pfeddsh.models.lenet import LeNet

MODEL = LeNet(10)
CHANNELS = MODEL.channels
LAYERS = CHANNELS.layers
NONE_USED = torch.zeros(GATES, dtype=torch.bool)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first_channels(*counts: int) -> Tensor:
    """A mask with the first channels of each layer."""
    mask = NONE_USED.clone()
    for layer, count in zip(LAYERS.values(), counts, strict=True):
        mask[layer.start : layer.start + count] = True
    return mask


def random_mask(seed: int, share: float = 0.5) -> Tensor:
    return torch.rand(GATES, generator=stream(seed)) < share


def test_scale_is_geometric_to_gamma_and_stays() -> None:
    scales = [masks.scale(r, 100) for r in range(100)]
    assert scales[0] == 1
    assert scales[40] == pytest.approx(math.sqrt(5000))
    assert scales[80:] == [5000] * 20
    assert [masks.is_soft(r, 100) for r in range(100)] == [True] * 80 + [False] * 20


def test_used_channels_are_on_whatever_their_logit() -> None:
    used = random_mask(0)
    gate = masks.gates(torch.full((GATES,), -6.0), 5000.0, used)
    assert torch.equal(gate, used.float())
    torch.testing.assert_close(masks.gates(torch.tensor(0.3).expand(GATES), 2.0, NONE_USED)[0], torch.tensor(0.6456563))


@pytest.mark.parametrize("s", [1.0, 40.0, 5000.0])
def test_logit_gradient_is_hats_compensation(s: float) -> None:
    """Against HAT's expression applied to autograd's gradient, in double precision, apart from its factor s_max."""
    z = torch.linspace(-0.5, 0.5, GATES, dtype=torch.float64) * 100 / s
    z = z.clamp(-6, 6).requires_grad_()
    weight = torch.randn(GATES, generator=stream(0), dtype=torch.float64)
    (torch.sigmoid(s * z) * weight).sum().backward()
    assert z.grad is not None
    z_, q = z.detach(), z.grad
    expected = q / s * (torch.cosh((s * z_).clamp(-50, 50)) + 1) / (torch.cosh(z_) + 1)
    exact = (s * z_).abs() < 15  # beyond, 1 - sigma in autograd's slope is rounded away
    actual = masks.logit_gradient(weight, z_, s, NONE_USED)
    torch.testing.assert_close(actual[exact], expected[exact])
    assert exact.sum() > 20
    slope = torch.sigmoid(z_) * torch.sigmoid(-z_)
    torch.testing.assert_close(actual, weight * slope * (-(s * z_.abs() - 50).clamp_min(0)).exp())


def test_logit_gradient_fades_when_saturated_and_is_zero_for_used_channels() -> None:
    ones = torch.ones(GATES)
    assert masks.logit_gradient(ones, 0.009 * ones, 5000.0, NONE_USED).min() > 0.24
    assert masks.logit_gradient(ones, 0.05 * ones, 5000.0, NONE_USED).max() < 1e-20
    assert not masks.logit_gradient(ones, 0.009 * ones, 5000.0, ~NONE_USED).any()


def test_move_descends_within_the_limit() -> None:
    z = torch.tensor([0.0, 5.9, -5.9])
    moved = masks.move(z, torch.tensor([0.01, -1.0, 1.0]), rate=20.0)
    torch.testing.assert_close(moved, torch.tensor([-0.2, 6.0, -6.0]))


def test_sparsity_charges_free_channels_only() -> None:
    used = random_mask(0)
    gate = torch.rand(GATES, generator=stream(1)).requires_grad_()
    value, gradient = masks.sparsity(gate, used)
    free = ~used
    torch.testing.assert_close(value, gate[free].mean())
    value.backward()
    assert gate.grad is not None
    torch.testing.assert_close(gradient, gate.grad)
    assert not gradient[used].any()
    assert masks.sparsity(gate, ~NONE_USED)[0] == 0


def test_first_step_takes_its_best_channels_within_the_budget() -> None:
    z = masks.initial_logits(NONE_USED, stream(0))
    own = masks.select(CHANNELS, z, NONE_USED)
    assert [int(own[layer].sum()) for layer in LAYERS.values()] == [6, 16, 84, 59]
    for layer in (LAYERS["fc1"], LAYERS["fc2"]):
        assert z[layer][own[layer]].min() > z[layer][~own[layer]].max()


def test_later_steps_take_a_quarter_of_what_is_free_and_reuse_for_nothing() -> None:
    used = first_channels(4, 11, 84, 59)
    z = masks.initial_logits(used, stream(0))
    own = masks.select(CHANNELS, z, used)
    assert [int((own & ~used)[layer].sum()) for layer in LAYERS.values()] == [1, 1, 9, 6]
    assert (own & used).sum() == used.sum()
    z[:3] = -1
    assert not masks.select(CHANNELS, z, used)[:3].any()


def test_only_positive_logits_are_selected_but_at_least_one() -> None:
    z = torch.full((GATES,), -1.0)
    z[LAYERS["fc1"]][:5] = 1.0
    z[3] = -0.5
    own = masks.select(CHANNELS, z, NONE_USED)
    assert [int(own[layer].sum()) for layer in LAYERS.values()] == [1, 1, 5, 1]
    assert own[3]
    full = first_channels(6, 16, 120, 83)
    own = masks.select(CHANNELS, z, full)
    assert (own & ~full).nonzero().tolist() == [[GATES - 1]]


def test_masks_only_grow_until_the_network_is_full() -> None:
    """I2: U_t is monotone, and every step gets something while anything is free."""
    used = NONE_USED
    for step in range(20):
        z = masks.initial_logits(used, stream(step))
        after = masks.union(used, masks.select(CHANNELS, z, used))
        assert after[used].all()
        assert after.sum() > used.sum() or used.all()
        used = after


def gate_by_loop(used: Tensor, gate: Tensor) -> list[float]:
    """Eq. 11 for one parameter after another."""
    table = CHANNELS.ends
    first_step = not bool(used.any())
    m, g = used.float().tolist(), gate.tolist()

    def side(channel: int) -> float:
        if channel == CHANNELS.nothing:
            return 0.0
        if channel == CHANNELS.outside:
            return 1.0 if first_step else 0.0
        return float(g[channel] * (1 - m[channel]))

    return [max(side(i), side(j)) for i, j in zip(table.output.tolist(), table.input.tolist(), strict=True)]


@pytest.mark.parametrize("used", [NONE_USED, random_mask(0), first_channels(4, 11, 84, 59)])
def test_gradient_gate_weight_by_weight(used: Tensor) -> None:
    soft = torch.rand(GATES, generator=stream(1))
    assert masks.gradient_gate(MODEL, used, soft).tolist() == gate_by_loop(used, soft)
    hard = random_mask(2)
    assert masks.gradient_gate(MODEL, used, hard).tolist() == gate_by_loop(used, hard.float())


def test_biases_inputs_and_outputs() -> None:
    """Spelled out: which parameters of a later step with one new channel per layer may move."""
    used = first_channels(4, 11, 84, 59)
    own = first_channels(5, 12, 85, 60)
    free = MODEL.views(masks.gradient_gate(MODEL, used, own))
    assert free["conv1.weight"].sum() == 75 and free["conv1.weight"][4].all()
    assert free["conv1.bias"].tolist() == [0, 0, 0, 0, 1, 0]
    assert free["fc1.weight"][0].view(16, 25).sum(1).tolist() == [0] * 11 + [25] + [0] * 4
    assert free["fc3.weight"].sum(0).nonzero().tolist() == [[59]]
    assert not free["fc3.bias"].any()


def frozen_count(used: Tensor, classes: int) -> int:
    """How many parameters a later step cannot move, in closed form: those between used channels, with their biases."""
    a, b, c, f = (int(used[layer].sum()) for layer in LAYERS.values())
    return 76 * a + 25 * a * b + b + 25 * b * c + c + c * f + f + classes * f + classes


@pytest.mark.parametrize("counts", [(4, 10, 72, 50), (5, 12, 84, 59), (1, 1, 1, 1), (6, 16, 120, 84)])
@pytest.mark.parametrize("classes", [10, 100])
def test_frozen_parameters_match_the_closed_form(counts: tuple[int, int, int, int], classes: int) -> None:
    """I2: the gate, the table and the formula agree."""
    model, used = LeNet(classes), first_channels(*counts)
    frozen = masks.gradient_gate(model, used, torch.ones(GATES)) == 0
    assert int(frozen.sum()) == frozen_count(used, classes)
    assert torch.equal(frozen, masks.reached(model, used))


def test_known_numbers_of_frozen_parameters() -> None:
    assert frozen_count(~NONE_USED, 10) == 62006
    assert frozen_count(first_channels(4, 10, 72, 50), 10) == 62006 - 38460


def test_closed_gates_leave_the_output_bias_and_open_gates_the_plain_network() -> None:
    """I3."""
    theta, images = MODEL.init(stream(0)), torch.randn(8, 3, 32, 32, generator=stream(1))
    closed = masks.gates(torch.full((GATES,), -1.0), masks.GAMMA, NONE_USED)
    logits = MODEL.forward(theta, images, gates=closed)
    assert torch.equal(logits, MODEL.views(theta)["fc3.bias"].expand(8, 10))
    opened = masks.gates(torch.full((GATES,), 1.0), masks.GAMMA, NONE_USED)
    assert torch.equal(MODEL.forward(theta, images, gates=opened), MODEL.forward(theta, images))


def test_existing_clients_keep_weights_and_predictions_to_the_bit() -> None:
    """I1: a later step that moves everything its gate allows changes no weight and no logit of an existing client."""
    params = hypernet.create(MODEL.init(stream(0)), stream(1), hidden=16)
    params["W2"].normal_(std=0.01, generator=stream(2))
    old, new = torch.rand(3, 16, generator=stream(3)), torch.rand(2, 16, generator=stream(4))
    images = torch.randn(8, 3, 32, 32, generator=stream(5))
    used = masks.select(CHANNELS, masks.initial_logits(NONE_USED, stream(6)), NONE_USED)
    before = hypernet.generate(params, old)
    logits = [MODEL.forward(theta, images, gates=used.float()) for theta in before]
    own = masks.select(CHANNELS, masks.initial_logits(used, stream(7)), used)
    gate = masks.gradient_gate(MODEL, used, own) > 0
    for round_ in range(5):
        deltas = torch.randn(2, MODEL.size, generator=stream(round_))
        hypernet.update(params, deltas, new, rate=0.7, bias_rate=0.7, gate=gate)
    after = hypernet.generate(params, old)
    mine = masks.reached(MODEL, used)
    assert torch.equal(after[:, mine].view(torch.int32), before[:, mine].view(torch.int32))
    assert (after[:, gate] != before[:, gate]).float().mean() > 0.99
    for theta, expected in zip(after, logits, strict=True):
        assert torch.equal(MODEL.forward(theta, images, gates=used.float()), expected)
        wider = MODEL.forward(theta, images, gates=masks.union(used, own).float())
        assert not torch.allclose(wider, expected), "the union of a later step is not an old client's mask"
