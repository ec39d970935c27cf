"""The hand-written training step against autograd through the readable network."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.models.fast import CHANNELS, GATES, LeNetTrainer
from pfeddsh.models.lenet import LeNet
from pfeddsh.models.training import cross_entropy, sgd_epoch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def data(model: LeNet, count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 32, 32, generator=generator).to(dtype)
    images[:, :, :12] = 0.5  # flat regions, where all elements of a pooling window are equal
    return images, torch.randint(model.classes, (count,), generator=generator)


def vector(model: LeNet, dtype: torch.dtype = torch.float32) -> Tensor:
    return model.init(torch.Generator().manual_seed(1)).to(dtype)


def some_gates(dtype: torch.dtype = torch.float32) -> Tensor:
    return (0.1 + torch.rand(GATES, generator=torch.Generator().manual_seed(2))).to(dtype)


def batches(count: int, size: int, epochs: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    return [order[start : start + size] for order in orders for start in range(0, count, size)]


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("batch", "classes"), [(2, 10), (7, 10), (32, 10), (32, 200)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-3)])
def test_gradient_equals_autograd(batch: int, classes: int, gated: bool, dtype: torch.dtype, tolerance: float) -> None:
    model = LeNet(classes)
    images, labels = data(model, batch, dtype)
    theta = vector(model, dtype).requires_grad_()
    gates = some_gates(dtype).requires_grad_() if gated else None
    expected = model.forward(theta, images, None, gates)
    expected_loss = F.cross_entropy(expected, labels)
    d_theta, *d_gates = torch.autograd.grad(expected_loss, [theta] if gates is None else [theta, gates])

    trainer = LeNetTrainer(model)
    logits = trainer.forward(theta.detach(), images, None if gates is None else gates.detach())
    loss, d_logits = cross_entropy(logits, labels)
    gradient = trainer.backward(d_logits)

    assert distance(logits, expected) < tolerance / 10
    assert distance(loss, expected_loss) < tolerance / 10
    for name, part in model.slices.items():
        if name in ("conv1.bias", "conv2.bias"):  # zero up to rounding, because the normalisation removes constants
            assert not gradient[part].any()
            assert d_theta[part].norm() < tolerance * d_theta.norm()
        else:
            assert distance(gradient[part], d_theta[part]) < tolerance, name
    for d_gate in d_gates:
        for actual, wanted in zip(
            *(gate.split_with_sizes(CHANNELS) for gate in (trainer.d_gates, d_gate)), strict=True
        ):
            assert distance(actual, wanted) < tolerance


@pytest.mark.parametrize("gated", [False, True])
def test_epochs_equal_an_optimiser_over_autograd(gated: bool) -> None:
    model = LeNet(10)
    images, labels = data(model, 21, torch.float64)
    gates = some_gates(torch.float64) if gated else None
    order = batches(21, 10, epochs=2)  # the last batch of each epoch has one image
    start = vector(model, torch.float64)
    expected = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([expected], lr=0.05, momentum=0.9)
    losses = []
    for batch in order:
        if len(batch) > 1:
            optimiser.zero_grad()
            loss = F.cross_entropy(model.forward(expected, images[batch], None, gates), labels[batch])
            (expected.grad,) = torch.autograd.grad(loss, [expected])
            optimiser.step()
            losses.append(loss.item())

    theta = start.clone()
    mean = sgd_epoch(LeNetTrainer(model), theta, images, labels, batches=order, lr=0.05, momentum=0.9, gates=gates)
    assert mean == pytest.approx(sum(losses) / len(losses), rel=1e-9)
    assert distance(theta - start, expected - start) < 1e-8


@pytest.mark.parametrize("name", ["body", "head", "dense"])
def test_part_trains_that_part_alone(name: str) -> None:
    model = LeNet(10)
    images, labels = data(model, 40)
    start, part = vector(model), getattr(model, name)
    inside = torch.zeros(model.size, dtype=torch.bool)
    inside[part] = True
    theta, gated = start.clone(), start.clone()
    trainer = LeNetTrainer(model)
    order = batches(40, 16)
    sgd_epoch(trainer, theta, images, labels, batches=order, lr=0.1, momentum=0.9, part=part)
    sgd_epoch(trainer, gated, images, labels, batches=order, lr=0.1, momentum=0.9, gradient_gate=inside.float())
    assert torch.equal(theta[~inside], start[~inside])
    assert not torch.equal(theta[inside], start[inside])
    assert torch.equal(gated, theta)


def test_bits_do_not_depend_on_earlier_work() -> None:
    model = LeNet(10)
    images, labels = data(model, 50)
    gates = some_gates()

    def train(trainer: LeNetTrainer) -> tuple[float, Tensor]:
        theta = vector(model)
        loss = sgd_epoch(trainer, theta, images, labels, batches=batches(50, 16), lr=0.1, momentum=0.9, gates=gates)
        return loss, theta

    loss, theta = train(LeNetTrainer(model))
    used = LeNetTrainer(model)
    others, other_labels = data(model, 96, seed=9)
    for size in (2, 18, 16, 96):
        sgd_epoch(used, vector(model) * 3, others, other_labels, batches=batches(96, size), lr=1.0, momentum=0.5)
    used.forward(vector(model, torch.float64), others.double())
    again, theta_again = train(used)
    assert loss == again
    assert torch.equal(theta, theta_again)


def trained_hash() -> str:
    model = LeNet(10)
    images, labels = data(model, 40)
    theta = vector(model)
    sgd_epoch(LeNetTrainer(model), theta, images, labels, batches=batches(40, 16), lr=0.1, momentum=0.9)
    return hashlib.sha256(theta.numpy().tobytes()).hexdigest()


def test_bits_are_the_same_in_another_process() -> None:
    program = "import torch, test_fast; torch.set_num_threads(1); print(test_fast.trained_hash())"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == trained_hash()


def test_memory_format_of_images_does_not_matter() -> None:
    model = LeNet(10)
    images, _ = data(model, 16)
    trainer = LeNetTrainer(model)
    logits = trainer.forward(vector(model), images)
    assert torch.equal(logits, trainer.forward(vector(model), images.contiguous(memory_format=torch.channels_last)))


def test_nothing_to_train_on() -> None:
    model = LeNet(10)
    images, labels = data(model, 3)
    theta = vector(model)
    assert sgd_epoch(LeNetTrainer(model), theta, images, labels, batches=batches(3, 1), lr=0.1, momentum=0.9) == 0.0
    assert torch.equal(theta, vector(model))
