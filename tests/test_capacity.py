"""Counting channels, and the novelty dimension of updates whose rank is known."""

import torch
from torch import Tensor

from pfeddsh.mechanisms import capacity, masks
from pfeddsh.models.fast import GATES
from pfeddsh.models.lenet import LeNet

MODEL = LeNet(10)
LAYERS = MODEL.channels.layers
NONE_USED = torch.zeros(GATES, dtype=torch.bool)
ALL_LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


def half_used() -> Tensor:
    used = NONE_USED.clone()
    for layer in LAYERS.values():
        used[layer.start : (layer.start + layer.stop) // 2] = True
    return used


def low_rank(clients: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mixture = torch.randn(clients, rank, generator=generator)
    return mixture @ torch.randn(rank, MODEL.size, generator=generator)


def test_usage_counts_new_and_reused_channels() -> None:
    own, used = NONE_USED.clone(), NONE_USED.clone()
    used[[0, 1, 6, 7, 8]] = True
    own[[1, 2, 8, 30]] = True
    report = capacity.usage(MODEL.channels, own, used)
    assert report["conv1"] == {"active": 2, "new": 1, "reused": 1, "total": 3, "width": 6}
    assert report["conv2"] == {"active": 1, "new": 0, "reused": 1, "total": 3, "width": 16}
    assert report["fc1"] == {"active": 1, "new": 1, "reused": 0, "total": 1, "width": 120}
    assert report["fc2"] == {"active": 0, "new": 0, "reused": 0, "total": 0, "width": 84}


def test_without_used_channels_novelty_is_the_rank_of_the_updates() -> None:
    assert capacity.novelty(low_rank(8, 3), NONE_USED, MODEL) == dict.fromkeys(ALL_LAYERS, 3)


def test_the_output_bias_is_new_in_the_first_step_only() -> None:
    updates = torch.zeros(4, MODEL.size)
    updates[:, MODEL.slices["fc3.bias"]] = torch.eye(4, 10)
    assert capacity.novelty(updates, NONE_USED, MODEL)["fc3"] == 4
    assert capacity.novelty(updates, half_used(), MODEL)["fc3"] == 0


def test_updates_within_the_used_subnetwork_are_not_new() -> None:
    used = half_used()
    updates = low_rank(8, 3) * masks.reached(MODEL, used)
    assert capacity.novelty(updates, used, MODEL) == dict.fromkeys(ALL_LAYERS, 0)


def test_gated_updates_are_new_in_full() -> None:
    used = half_used()
    gated = low_rank(8, 3) * masks.gradient_gate(MODEL, used, torch.ones(GATES))
    assert capacity.novelty(gated, used, MODEL) == dict.fromkeys(ALL_LAYERS, 3)


def test_only_the_part_outside_counts() -> None:
    """Rank 5 within the used subnetwork, rank 2 outside it, and noise below the tolerance everywhere."""
    used = half_used()
    inside = masks.reached(MODEL, used)
    updates = torch.where(inside, low_rank(8, 5), low_rank(8, 2))
    noise = 1e-4 * torch.randn(8, MODEL.size, generator=torch.Generator().manual_seed(1))
    assert capacity.novelty(updates + noise, used, MODEL) == dict.fromkeys(ALL_LAYERS, 2)


def test_a_full_network_and_clients_that_did_not_move_have_no_novelty() -> None:
    assert capacity.novelty(low_rank(4, 2), ~NONE_USED, MODEL) == dict.fromkeys(ALL_LAYERS, 0)
    assert capacity.novelty(torch.zeros(4, MODEL.size), NONE_USED, MODEL) == dict.fromkeys(ALL_LAYERS, 0)
