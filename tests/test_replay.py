"""Replay: inversion, the common teacher, and students that change fully connected layers only."""

import pytest
import torch
import torch.nn.functional as F

from pfeddsh import replay
from pfeddsh.models.lenet import CHANNELS, GATES, LeNet

MODEL = LeNet(10)


@pytest.fixture
def client():
    """A model, its data and its statistics."""
    generator = torch.Generator().manual_seed(0)
    theta = MODEL.init(generator)
    images = torch.randn(64, 3, 32, 32, generator=generator)
    return theta, images, MODEL.calibrate(theta, images)


def test_inversion_lowers_its_loss_and_matches_the_statistics(client):
    theta, _, statistics = client
    labels = torch.arange(20) % 10
    how = replay.Inversion(feature=1.0, variation=0.0, norm=0.0, iterations=60, images=20)
    images, losses = replay.invert(MODEL, theta, statistics, None, labels, how, torch.Generator().manual_seed(1))
    start, _ = replay.invert(
        MODEL, theta, statistics, None, labels, replay.Inversion(1, 0, 0, 0, 20), torch.Generator().manual_seed(1)
    )

    def distance(pictures):
        return (MODEL.calibrate(theta, pictures) - statistics).norm()

    assert losses[-1] < 0.5 * losses[0]
    assert distance(images) < 0.5 * distance(start)
    assert (MODEL.forward(theta, images, statistics).argmax(1) == labels).float().mean() > 0.9


def test_total_variation_is_zero_for_flat_images_only():
    assert replay.total_variation(torch.full((2, 3, 32, 32), 0.7)) == 0
    assert replay.total_variation(torch.eye(32).expand(1, 3, 32, 32)) > 1


def test_a_target_lies_between_the_common_opinion_and_the_students_own():
    common, own = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    wanted = replay.targets(common, own)[0, 0]
    assert torch.softmax(own, 1)[0, 0] < wanted < torch.softmax(common, 1)[0, 0]


def test_a_prior_all_but_rules_out_classes_the_client_does_not_have():
    histogram = torch.tensor([0.5, 0.5, 0.0])
    assert replay.log_prior(histogram)[2] < replay.log_prior(histogram)[0] - 6


def test_an_opinion_counts_as_much_as_the_client_has_seen_of_the_class(client):
    theta, images, statistics = client
    other = MODEL.init(torch.Generator().manual_seed(9))
    trust = replay.trust(torch.eye(10)[[3, 5]])
    heard = replay.opinions(MODEL, torch.stack([theta, other]), torch.stack([statistics] * 2), None, trust, images)
    first, second = (MODEL.forward(t, images, statistics) for t in (theta, other))
    assert torch.allclose(heard[:, 3], 1.05 * first[:, 3] + 0.05 * second[:, 3], atol=1e-5)
    assert torch.allclose(heard[:, 5], 0.05 * first[:, 5] + 1.05 * second[:, 5], atol=1e-5)


def test_what_students_say_is_what_the_network_says(client):
    theta, images, statistics = client
    inputs = replay.features(MODEL, theta, statistics, None, images)[None]
    said = replay.dense_logits(MODEL, theta[None], inputs, None)[0]
    assert torch.allclose(said, MODEL.forward(theta, images, statistics), atol=1e-5)


def lesson(gated: bool):
    generator = torch.Generator().manual_seed(3)
    thetas = torch.stack([MODEL.init(generator) for _ in range(3)])
    inputs = torch.rand(3, 100, 400, generator=generator)
    wanted = torch.softmax(2 * torch.randn(3, 100, 10, generator=generator), 2)
    gates = (torch.rand(3, GATES, generator=generator) > 0.3).float() if gated else None
    return thetas, inputs, wanted, gates


@pytest.mark.parametrize("gated", [False, True])
def test_students_learn_as_with_autograd_one_at_a_time(gated):
    thetas, inputs, wanted, gates = lesson(gated)
    how = replay.Study(passes=2, lr=0.05)
    taught = replay.study(MODEL, thetas, inputs, wanted, gates, how, torch.Generator().manual_seed(5))
    order = torch.Generator().manual_seed(5)
    batches = torch.cat([torch.randperm(100, generator=order) for _ in range(2)]).split(how.batch)
    for i, theta in enumerate(thetas):
        theta = theta.clone().requires_grad_()
        optimiser = torch.optim.SGD([theta], lr=how.lr, momentum=how.momentum)
        gate = torch.ones(GATES).split(CHANNELS) if gates is None else gates[i].split(CHANNELS)
        for j, batch in enumerate(batches):
            optimiser.param_groups[0]["lr"] = how.lr * (1 - j / len(batches))
            p = MODEL.views(theta)
            x = F.relu(F.linear(inputs[i, batch], p["fc1.weight"], p["fc1.bias"])) * gate[2]
            x = F.relu(F.linear(x, p["fc2.weight"], p["fc2.bias"])) * gate[3]
            loss = F.cross_entropy(F.linear(x, p["fc3.weight"], p["fc3.bias"]), wanted[i, batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert torch.allclose(taught[i], theta.detach(), atol=1e-5)
        assert not torch.allclose(taught[i], thetas[i], atol=1e-3)


def test_a_student_never_changes_its_convolutions():
    thetas, inputs, wanted, _ = lesson(gated=False)
    taught = replay.study(MODEL, thetas, inputs, wanted, None, replay.Study(), torch.Generator().manual_seed(0))
    convolutions = slice(0, MODEL.dense.start)
    assert torch.equal(taught[:, convolutions], thetas[:, convolutions])
    assert not torch.equal(taught[:, MODEL.dense], thetas[:, MODEL.dense])


def test_studying_twice_from_the_same_state_gives_the_same_bits():
    thetas, inputs, wanted, _ = lesson(gated=False)
    first, second = (
        replay.study(MODEL, thetas, inputs, wanted, None, replay.Study(), torch.Generator().manual_seed(0))
        for _ in range(2)
    )
    assert torch.equal(first, second)
