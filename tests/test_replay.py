"""Replay: inversion, the common teacher, and a student that changes fully connected layers only."""

import pytest
import torch
import torch.nn.functional as F

from pfeddsh.mechanisms import replay
from pfeddsh.models.lenet import LeNet

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


def test_the_common_opinion_is_the_mean_of_what_models_say(client):
    theta, images, statistics = client
    other = MODEL.init(torch.Generator().manual_seed(9))
    heard = replay.opinions(MODEL, torch.stack([theta, other]), torch.stack([statistics] * 2), images)
    first, second = (MODEL.forward(t, images, statistics) for t in (theta, other))
    assert torch.allclose(heard, (first + second) / 2, atol=1e-5)


def learn(client, opinion, **how):
    theta, images, statistics = client
    draw = torch.Generator().manual_seed(5)
    return replay.distil(MODEL, theta, statistics, images, opinion, replay.Distillation(**how), draw)


def test_a_student_comes_closer_to_the_common_opinion_and_keeps_its_convolutions(client):
    theta, images, statistics = client
    opinion = 3 * torch.randn(len(images), 10, generator=torch.Generator().manual_seed(4))
    taught = learn(client, opinion, passes=40, lr=0.05)
    wanted = replay.targets(opinion, MODEL.forward(theta, images, statistics))
    before, after = (F.cross_entropy(MODEL.forward(t, images, statistics), wanted) for t in (theta, taught))
    assert after < before - 0.3
    assert torch.equal(taught[: MODEL.dense.start], theta[: MODEL.dense.start])


def test_a_student_that_agrees_already_stays_where_it_is(client):
    theta, images, statistics = client
    taught = learn(client, MODEL.forward(theta, images, statistics))
    assert torch.allclose(taught, theta, atol=1e-5)


def test_studying_twice_from_the_same_state_gives_the_same_bits(client):
    opinion = torch.randn(len(client[1]), 10, generator=torch.Generator().manual_seed(4))
    assert torch.equal(learn(client, opinion), learn(client, opinion))
