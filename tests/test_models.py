"""Every shipped network as a function of a flat vector: against the ordinary module, autograd, and running averages."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfeddsh.errors import UserError
from pfeddsh.models import module as modules
from pfeddsh.models import registry
from pfeddsh.models.base import Model, split_statistics, statistics_size
from pfeddsh.models.lenet import LeNet
from pfeddsh.models.moments import _variance, moments
from pfeddsh.models.parts import added, part
from pfeddsh.models.training import cross_entropy, sgd_epoch

SHAPES = {
    "lenet": (3, 32, 32),
    "resnet8": (3, 16, 16),
    "resnet20": (1, 16, 16),
    "resnet18": (3, 64, 64),
    "convnet": (1, 28, 28),
    "mlp": (12, 1, 1),
}


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=list(SHAPES), scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    return registry.create(request.param, 5, SHAPES[request.param])


def some(model: Model, count: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    images = torch.randn(count, *model.shape, generator=stream(1), dtype=dtype)
    return images, torch.randint(model.classes, (count,), generator=stream(2))


def test_every_shipped_network_is_tested_here() -> None:
    assert set(registry.shipped()) == set(SHAPES)


def test_the_vector_and_the_module_hold_the_same_weights(model: Model) -> None:
    """Round trip: vector, named tensors of an ordinary module, vector."""
    theta = model.init(stream(0))
    assert theta.shape == (model.size,) and torch.equal(theta, model.init(stream(0)))
    assert not torch.equal(theta, model.init(stream(1)))
    statistics = model.calibrate(theta, some(model)[0])
    state = model.module(theta, statistics).state_dict()
    assert torch.equal(torch.cat([state[name].flatten() for name in model.shapes]), theta)
    assert {name: tuple(state[name].shape) for name in model.shapes} == dict(model.shapes)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_lenet_pools_first_where_nothing_is_differentiated_to_the_same_bits(layout: torch.memory_format) -> None:
    model, gates = LeNet(5), torch.rand(226, generator=stream(4)).round(decimals=1)
    images = some(model, 40)[0].contiguous(memory_format=layout)
    images[:, :, :9] = 0.5  # windows of equal elements
    theta = model.init(stream(0)).requires_grad_()
    for statistics in (None, model.calibrate(theta, images, gates)):
        differentiable = model.forward(theta, images, statistics, gates)
        assert differentiable.requires_grad
        assert torch.equal(model.forward(theta.detach(), images, statistics, gates), differentiable)


@pytest.mark.parametrize("shape", [(500, 6, 28, 28), (3, 16, 5, 5), (1, 4, 1, 1), (70, 64)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_moments_have_the_bits_of_pytorch(shape: tuple[int, ...], offset: float) -> None:
    x = torch.randn(shape, generator=stream(0)) + offset
    x = x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x
    x[:, 0] = 0.1  # nothing but rounding is left of its variance
    over = [0, *range(2, len(shape))]
    mean, variance = moments(x)
    assert torch.equal(mean, x.mean(over)) and torch.equal(variance, x.var(over, unbiased=False))


def test_most_variances_are_found_the_fast_way() -> None:
    x = torch.randn(50, 8, 8, 6, generator=stream(0))
    assert _variance(x) is not None and _variance(x.fill_(0.1)) is None


def test_slices_tile_the_vector_and_the_head_ends_it(model: Model) -> None:
    places = list(model.slices.values())
    assert [place.start for place in places] == [0, *(place.stop for place in places[:-1])]
    assert [p.stop - p.start for p in places] == [math.prod(shape) for shape in model.shapes.values()]
    assert model.body == slice(0, model.head.start) and model.head.stop == model.size == places[-1].stop
    assert places[-1] == model.bias and model.dense.start <= model.head.start and model.dense.stop == model.size
    weight = model.shapes[list(model.shapes)[-2]]
    rows = torch.arange(model.classes)
    assert model.head_classes.tolist() == [*rows.repeat_interleave(weight[1]).tolist(), *rows.tolist()]


def test_the_function_is_the_modules(model: Model) -> None:
    theta, images = model.init(stream(0)), some(model)[0]
    statistics = model.calibrate(theta, images)
    assert statistics.shape == (statistics_size(model),)
    module = model.module(theta, statistics)
    with torch.no_grad():
        torch.testing.assert_close(model.forward(theta, images, statistics), module(images))
        torch.testing.assert_close(model.forward(theta, images), module.train()(images))
        features = model.features(theta, images, statistics)
        torch.testing.assert_close(model.classify(theta, features), model.forward(theta, images, statistics))


def test_the_gradient_is_autograds(model: Model) -> None:
    """In double precision, of the ordinary module in training mode."""
    theta, (images, labels) = model.init(stream(0)).double(), some(model, 4, torch.float64)
    ordinary = model.module(theta, torch.ones(statistics_size(model))).double().train()
    loss = F.cross_entropy(ordinary(images), labels)
    names, leaves = zip(*ordinary.named_parameters(), strict=True)
    wanted = dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))
    trainer = model.trainer()
    found, d = cross_entropy(trainer.forward(theta, images), labels)
    gradient = trainer.backward(d)
    torch.testing.assert_close(found, loss.detach())
    for name, place in model.slices.items():
        torch.testing.assert_close(gradient[place].view(model.shapes[name]), wanted[name], rtol=1e-7, atol=1e-10)
    whole = gradient.clone()
    trainer.forward(theta, images)
    torch.testing.assert_close(trainer.backward(d, dense_only=True)[model.dense], whole[model.dense])


def test_training_is_that_of_torch_optim(model: Model) -> None:
    theta, (images, labels) = model.init(stream(0)).double(), some(model, 9, torch.float64)
    ordinary = model.module(theta, torch.ones(statistics_size(model))).double().train()
    optimiser = torch.optim.SGD(ordinary.parameters(), lr=0.05, momentum=0.9)
    order = [*torch.randperm(9, generator=stream(3)).split(4), torch.arange(4)]  # one batch is of one image: skipped
    for batch in order:
        if len(batch) > 1:
            optimiser.zero_grad()
            F.cross_entropy(ordinary(images[batch]), labels[batch]).backward()
            optimiser.step()
    sgd_epoch(model.trainer(), theta, images, labels, batches=order, lr=0.05, momentum=0.9)
    weights = dict(ordinary.named_parameters())
    trained = torch.cat([weights[name].detach().flatten() for name in model.shapes])
    torch.testing.assert_close(theta, trained, rtol=1e-6, atol=1e-8)


def test_statistics_are_the_running_averages_of_one_pass(model: Model) -> None:
    """With momentum 1, and with PyTorch's correction of the variance taken back."""
    theta, images = model.init(stream(0)), some(model, 8)[0]
    ordinary = model.module(theta, torch.ones(statistics_size(model))).train()
    counts: dict[nn.Module, int] = {}
    norms = [layer for layer in ordinary.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.register_forward_pre_hook(lambda norm, x: counts.update({norm: x[0].numel() // x[0].shape[1]}))
    with torch.no_grad():
        ordinary(images)
    found = split_statistics(model, model.calibrate(theta, images))
    for norm, (mean, variance) in zip(norms, found, strict=True):
        biased = norm.running_var * (counts[norm] - 1) / counts[norm]
        torch.testing.assert_close(mean, norm.running_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance, biased, rtol=1e-4, atol=1e-5)


def test_many_images_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = registry.create("convnet", 5, (1, 12, 12))
    theta, images = model.init(stream(0)), some(model, 30)[0]
    statistics = model.calibrate(theta, images)
    with torch.no_grad():
        whole = model.forward(theta, images, statistics)
        monkeypatch.setattr(modules, "AT_ONCE", 10 * 144)
        torch.testing.assert_close(model.forward(theta, images, statistics), whole)
        assert model.features(theta, images, statistics).shape == (30, 288)
    parts = split_statistics(model, model.calibrate(theta, images))
    (mean, variance), _ = split_statistics(model, statistics)
    torch.testing.assert_close(parts[0][0], mean, rtol=1e-4, atol=1e-6)  # nothing is normalised before the first
    torch.testing.assert_close(parts[0][1], variance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parts[1][1], split_statistics(model, statistics)[1][1], rtol=0.2, atol=0.1)


def test_the_personal_part(model: Model) -> None:
    theta = torch.zeros(model.size)
    for personal, wanted in (("all", slice(0, model.size)), ("head", model.head), ("dense", model.dense)):
        assert part(model, personal) == wanted
    place = part(model, "norm+head")
    marked = added(theta, place, torch.ones(len(theta[place])))
    scales = {i for one in model.scales for i in range(one.start, one.stop)}
    assert set(marked.nonzero().flatten().tolist()) == scales | set(range(model.head.start, model.head.stop))
    rows = added(theta, place, torch.stack([torch.ones(len(theta[place])), torch.zeros(len(theta[place]))]))
    assert torch.equal(rows, torch.stack([marked, theta])) and not theta.any()
    assert len(theta[part(model, "auto")]) == (model.size if model.size <= 150_000 else int(marked.sum()))


def test_a_large_networks_hypernetwork_is_small() -> None:
    model = registry.create("resnet18", 10, (3, 64, 64))
    assert model.size > 11e6
    assert 4 * 512 * len(torch.zeros(model.size)[part(model, "auto")]) < 300e6


def test_lenet_wants_its_own_images_and_says_so() -> None:
    with pytest.raises(UserError, match=r"1x28x28 .*resized to 32x32, or choose a model"):
        registry.create("lenet", 10, (1, 28, 28))
    assert registry.create("lenet", 10) == LeNet(10)
