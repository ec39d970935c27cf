"""Perceptrons have a training step of their own: what counts as one, and that it computes what autograd does."""

import pytest
import torch
from torch import nn

from pfeddsh.models import registry
from pfeddsh.models.autograd import AutogradTrainer
from pfeddsh.models.perceptron import PerceptronTrainer, linear_layers

SHAPE = (6, 1, 1)


def tied():
    layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    layers[2].weight = layers[0].weight
    return layers


def still():
    layers = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    layers[0].weight.requires_grad_(False)
    return layers


@pytest.mark.parametrize(
    ("module", "layers"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), ["1", "3"]),
        (nn.Sequential(nn.Linear(6, 3)), ["0"]),
        (nn.Sequential(), []),
        (nn.Linear(6, 3), []),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), []),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), []),
        (nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)), []),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 3)), []),
        (nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)), []),
        (tied(), []),
        (still(), []),
    ],
)
def test_a_perceptron_is_linear_layers_with_relu_between_them_and_nothing_else(module, layers):
    assert linear_layers(module) == layers


def test_its_gradient_is_that_of_autograd_whatever_was_trained_before():
    model = registry.create("mlp", classes=3, shape=SHAPE)
    own, autograd = model.trainer(), AutogradTrainer(model)
    assert isinstance(own, PerceptronTrainer)
    for seed, size in ((0, 8), (1, 5)):
        generator = torch.Generator().manual_seed(seed)
        theta = model.init(generator).double()
        images = torch.randn(size, *SHAPE, generator=generator, dtype=torch.double)
        d = torch.randn(size, 3, generator=generator, dtype=torch.double)
        torch.testing.assert_close(own.forward(theta, images), autograd.forward(theta, images))
        torch.testing.assert_close(own.backward(d), autograd.backward(d))


def test_other_networks_train_by_autograd():
    assert isinstance(registry.create("convnet", classes=3, shape=(1, 28, 28)).trainer(), AutogradTrainer)
