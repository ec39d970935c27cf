"""PeFLL and ODPFL-HN: what a descriptor sees, the gradient that arrives a visit late, and what travels."""

import pytest
import torch
import torch.nn.functional as F
from conftest import snapshot_tensors, tiny

from pfeddsh.federation.run import run
from pfeddsh.mechanisms.hypernet import EMBEDDING
from pfeddsh.messages import Memory
from pfeddsh.methods.odpfl_hn import ODPFLHN
from pfeddsh.methods.pefll import PeFLL, Settings, constants
from pfeddsh.methods.task import Task, Visit

SMALL = {"hidden": 32}
VISIT = Visit(seed=0, step=1, round=0, client=0, lr=0.05)


class Images:
    """Forty random images, whose labels can be chosen."""

    def __init__(self, first: int = 0, seed: int = 1):
        stream = torch.Generator().manual_seed(seed)
        self.train = self.test = (torch.randn(40, 3, 32, 32, generator=stream), (first + torch.arange(40)) % 5)


@pytest.fixture(params=[PeFLL, ODPFLHN])
def method(request):
    return request.param(Task.create(10, 0), Settings(**SMALL))


def opened(method):
    state = method.init()
    greeting = method.greeting(state)
    cards = {k: method.card(greeting, Images(k, k), Memory(), VISIT)[0] for k in range(3)}
    method.open_step(state, 1, 5, cards)
    return state


def test_a_descriptor_sees_labels_in_pefll_and_only_images_in_odpfl_hn(method):
    eta = method.init()["eta"]
    one, other = (method.descriptor(eta, Images(first)) for first in (0, 1))
    relabelled = Images()
    relabelled.train = (relabelled.train[0], relabelled.train[1] + 5)
    assert torch.equal(one, method.descriptor(eta, relabelled)) == (not method.labelled)
    assert torch.equal(one, other) == (not method.labelled)
    assert not torch.allclose(one, method.descriptor(eta, Images(seed=2)))


def test_label_channels_are_those_of_one_hot_planes():
    """The short cut for constant channels against the convolution of 3 + 10 channels."""
    method = PeFLL(Task.create(10, 0), Settings())
    images, labels = Images().train
    eta = method.init()["eta"]
    p = method.network.views(eta)
    planes = F.one_hot(labels, 10).float()[:, :, None, None].expand(-1, -1, 32, 32)
    x = torch.cat([images, planes], 1)
    for layer in ("conv1", "conv2"):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"{layer}.weight"], p[f"{layer}.bias"])), 2)
    x = F.relu(F.linear(x.flatten(1), p["fc1.weight"], p["fc1.bias"]))
    x = F.linear(F.relu(F.linear(x, p["fc2.weight"], p["fc2.bias"])), p["fc3.weight"], p["fc3.bias"])
    assert torch.allclose(method.descriptor(eta, Images()), x.mean(0), atol=1e-5)


def test_the_gradient_of_a_descriptor_reaches_the_embedding_network_at_the_next_visit(method):
    state = opened(method)
    start = state["eta"].clone()
    for round in range(3):
        download = method.download(state, [0])[0]
        upload, _ = method.local(download, Images(), Memory(), VISIT)
        # W2 is zero until the first update, so the first slope that is not zero is that of the second visit
        assert bool(upload["gradient"].any()) == bool(download["slope"].any()) == (round == 2)
        method.aggregate(state, {0: upload})
        assert torch.equal(state["eta"], start) == (round < 2)
    assert "slope/0" in state and "slope/1" not in state


def test_the_uploaded_gradient_is_that_of_the_descriptor_along_the_slope(method):
    """With all images behind it, a small step along it changes the descriptor by its squared length."""
    method.settings = Settings(images=40, **SMALL)
    download = method.download(opened(method), [0])[0]
    download["slope"] = torch.linspace(-1, 1, EMBEDDING)
    upload, _ = method.local(download, Images(), Memory(), VISIT)
    eta, gradient = download["eta"].double(), upload["gradient"].double()
    step = 1e-5 / gradient.norm()
    data = Images()
    data.train = (data.train[0].double(), data.train[1])
    change = method.descriptor(eta + step * gradient, data) - method.descriptor(eta - step * gradient, data)
    rise = float(change @ download["slope"].double()) / float(2 * step)
    assert rise == pytest.approx(float(gradient.square().sum()), rel=1e-2)


def test_a_client_is_served_from_the_descriptor_it_sent_last(method):
    state = opened(method)
    before = {k: state[f"e/{k}"].clone() for k in range(3)}
    state["eta"].mul_(1.1)
    upload, _ = method.local(method.download(state, [1])[1], Images(1, 1), Memory(), VISIT)
    method.aggregate(state, {1: upload})
    assert [k for k in range(3) if not torch.equal(before[k], state[f"e/{k}"])] == [1]
    assert torch.equal(state["e/1"], (upload["descriptor"] - state["centre"]) / state["scale"])


def test_newcomers_describe_themselves_with_the_embedding_network_as_it_is_now(method):
    state = opened(method)
    state["eta"].mul_(1.2)
    card, _ = method.card(method.greeting(state), Images(), Memory(), VISIT)
    assert torch.equal(card["descriptor"], method.descriptor(state["eta"], Images()))
    assert not torch.equal(card["descriptor"], method.descriptor(method.init()["eta"], Images()))


@pytest.mark.parametrize("scaling", ["common", "each"])
def test_normalised_descriptors_of_the_first_step_have_the_size_of_a_normal_vector(scaling):
    raw = 5 + 0.01 * torch.randn(80, EMBEDDING, generator=torch.Generator().manual_seed(0))
    centre, scale = constants(raw, scaling)
    normal = (raw - centre) / scale
    assert normal.square().mean() == pytest.approx(1, abs=0.1)
    assert bool(torch.isfinite((raw[:1] - constants(raw[:1], scaling)[0]) / constants(raw[:1], scaling)[1]).all())


@pytest.mark.parametrize(("name", "channels"), [("pefll", 13), ("odpfl-hn", 3)])
def test_a_whole_run_counts_the_embedding_network_both_ways(name, channels, tmp_path, all_states):
    config = tiny(name, schedule="6+2", rounds_first=4, rounds_later=3, options=SMALL | {"rate": 1e-3})
    results = run(config, tmp_path / "run")
    eta = 16 * (25 * channels + 1) + 32 * 401 + 120 * 801 + 84 * 121 + EMBEDDING * 85
    kib = (62_006 + eta + EMBEDDING) * 4 / 1024
    payload, descriptor = results["payload_kib"], EMBEDDING * 4 / 1024
    assert payload == {
        "down": pytest.approx(kib),
        "up": pytest.approx(kib),
        "once_down": pytest.approx(eta * 4 / 1024),  # with the greeting
        "once_up": pytest.approx(2 * descriptor),  # card and report
    }
    assert all(value is not None for value in results["pa_zero_shot"])
    before, after = (snapshot_tensors(p) for p in sorted((tmp_path / "run" / "state").glob("snapshot-*.safetensors")))
    assert not torch.equal(before["state:eta"], after["state:eta"])  # newcomers go on training it
    for k in config.plan().batch(1):
        assert torch.equal(before[f"state:e/{k}"], after[f"state:e/{k}"])
    for name in ("centre", "scale"):
        assert torch.equal(before[f"state:{name}"], after[f"state:{name}"])
    assert not any("slope" in name or name.startswith("memory") for name in after)
