"""HR: centroids at rest, codes that the server keeps and replays, nearest-centroid classification, a local head."""

from itertools import pairwise

import pytest
import torch
from conftest import snapshot_tensors, tiny
from torch import Tensor

from pfeddsh.federation.run import run
from pfeddsh.messages import BadMessage, Memory, Message
from pfeddsh.methods import lennard_jones
from pfeddsh.methods.hr import HR, Settings
from pfeddsh.methods.task import Task, Visit
from pfeddsh.models.autoencoder import DECODER, LATENT, decode, encode
from pfeddsh.models.lenet import STATISTICS, LeNet

SMALL = {"codes": 20, "replay_steps": 2, "replay_batch": 8}
VISIT = Visit(seed=0, step=1, round=0, client=0, lr=0.05)


class Images:
    """Forty images of ten classes, each with a pattern of its own."""

    def __init__(self):
        stream = torch.Generator().manual_seed(1)
        labels = torch.arange(40) % 10
        patterns = torch.randn(10, 3, 2, 2, generator=stream).repeat_interleave(16, 2).repeat_interleave(16, 3)
        images = patterns[labels] + 0.1 * torch.randn(40, 3, 32, 32, generator=stream)
        self.train = self.test = (images, labels)


def opened(**options) -> tuple[HR, Message]:
    method = HR(Task.create(10, 0), Settings(**SMALL | options))
    state = method.init()
    method.open_step(state, 1, 5, {0: method.card(Message(), Images(), Memory(), VISIT)[0]})
    return method, state


# The Lennard-Jones energy


@pytest.mark.parametrize("sigma", [1.0, 5.0])
def test_two_centroids_settle_at_the_bottom_of_their_potential(sigma):
    """I9, from a start that is far too close and from one that is too far."""
    for distance in (1e-3, 1.5 * sigma):
        start = torch.zeros(2, LATENT)
        start[1, 0] = distance
        assert torch.pdist(lennard_jones.place(start, sigma)).item() == pytest.approx(2 ** (1 / 6) * sigma, rel=1e-5)


def test_the_energy_decreases_at_every_step_down_to_that_of_a_simplex():
    start = torch.randn(10, LATENT, generator=torch.Generator().manual_seed(0))
    points, energies = lennard_jones.descend(start, 5.0)
    assert len(energies) > 10
    assert all(later < earlier for earlier, later in pairwise(energies))
    assert energies[-1] == pytest.approx(-45, rel=1e-6)  # each of 45 pairs at its minimum of -1
    assert torch.allclose(points.mean(0), start.double().mean(0))


def test_two_centroids_that_begin_close_together_do_not_scatter_the_others():
    """An untrained encoder may see two classes far closer together than the rest; all must end within reach."""
    start = 0.03 * torch.randn(10, LATENT, generator=torch.Generator().manual_seed(0))
    start[1] = start[0] + 1e-3
    distances = torch.pdist(lennard_jones.place(start, 5.0))
    assert torch.allclose(distances, torch.tensor(2 ** (1 / 6) * 5.0), rtol=1e-4)


def test_the_gradient_is_that_of_the_energy():
    points = (3 * torch.randn(5, LATENT, generator=torch.Generator().manual_seed(0))).double()
    direction = torch.randn(5, LATENT, generator=torch.Generator().manual_seed(1)).double()
    ahead, behind = (lennard_jones.energy(points + s * 1e-5 * direction, 30.0)[0] for s in (1, -1))
    slope = float((lennard_jones.energy(points, 30.0)[1] * direction).sum())
    assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-4)
    assert abs(slope) > 0.1


def test_classes_nobody_holds_are_placed_as_well():
    method = HR(Task.create(10, 0), Settings(**SMALL))
    card = method.expected_card()
    card["sums"][:3], card["counts"][:3] = torch.randn(3, LATENT, generator=torch.Generator().manual_seed(0)), 1
    state = method.init()
    method.open_step(state, 1, 5, {0: card})
    assert torch.allclose(torch.pdist(state["centroids"]), torch.tensor(2 ** (1 / 6) * 5), rtol=1e-3)


# The autoencoder


def test_the_encoder_is_lenet_up_to_fc2_without_its_relu():
    task = Task.create(10, 0)
    assert isinstance(task.model, LeNet)
    images = Images().train[0]
    p = task.model.views(task.theta0)
    codes = encode(task.model, task.theta0[task.model.body], images)
    logits = torch.relu(codes) @ p["fc3.weight"].t() + p["fc3.bias"]
    assert torch.allclose(logits, task.model.forward(task.theta0, images), atol=1e-5)
    assert (codes < 0).any()


@pytest.mark.parametrize(("weights", "lr"), [({}, 0.03), ({"reconstruction": 1.0, "scale": 300.0}, 0.01)])
def test_training_draws_codes_to_their_centroids_or_reconstructions_to_the_images(weights, lr):
    """By default the former is what counts; with much weight on pixels, the latter."""
    method, state = opened(**weights)
    images, labels = Images().train

    def distances() -> tuple[float, float]:
        codes = encode(method.model, state["encoder"], images)
        seen = decode(state["decoder"], codes)
        return float((codes - state["centroids"][labels]).norm()), float((seen - images).norm())

    before = distances()
    for round in range(6):
        visit = Visit(seed=0, step=1, round=round, client=0, lr=lr, epochs=3)
        method.aggregate(state, {0: method.local(method.download(state, [0])[0], Images(), Memory(), visit)[0]})
    after = distances()
    assert after[1] < before[1] - 1
    assert after[1] < 0.95 * before[1] if weights else after[0] < 0.6 * before[0]


def test_an_image_is_of_the_class_whose_centroid_is_nearest():
    method, state = opened()  # centroids start from where the encoder sees the classes
    message = method.personal(state, [0])[0]
    assert method.score(message, Images(), Memory(), VISIT)[0].facts["correct"] == {"acc": 40}
    message["centroids"] = message["centroids"].roll(1, 0)
    assert method.score(message, Images(), Memory(), VISIT)[0].facts["correct"] == {"acc": 0}


# Codes on the server


def upload(method: HR, state: Message, labels: Tensor, value: float) -> dict[int, Message]:
    parts = {"encoder": state["encoder"].clone(), "decoder": state["decoder"].clone()}
    codes = torch.full((len(labels), LATENT), value)
    return {0: Message({**parts, "codes": codes, "labels": labels}, {"samples": 1})}


def test_the_pool_keeps_the_newest_codes_of_every_class_and_those_of_earlier_steps():
    method, state = opened(pool=3)
    method.keep_codes(state, upload(method, state, torch.tensor([0, 0, 1]), 1.0))
    method.keep_codes(state, upload(method, state, torch.tensor([0, 0, 2]), 2.0))
    pairs = sorted(zip(state["labels/1"].tolist(), state["codes/1"][:, 0].tolist(), strict=True))
    assert pairs == [(0, 1.0), (0, 2.0), (0, 2.0), (1, 1.0), (2, 2.0)]
    method.open_step(state, 2, 5, {})
    method.keep_codes(state, upload(method, state, torch.tensor([0]), 3.0))
    assert (len(state["codes/1"]), len(state["codes/2"])) == (5, 1)


def test_rehearsal_trains_the_encoder_alone_and_the_old_encoder_holds_it_back():
    method, state = opened(replay_steps=20)
    method.keep_codes(state, method_codes(method, state))
    method.open_step(state, 2, 5, {})
    start, decoder = state["encoder"].clone(), state["decoder"].clone()
    images = decode(decoder, state["codes/1"])

    def drift() -> Tensor:
        state["encoder"] = start.clone()
        method.rehearse(state)
        now, then = (encode(method.model, encoder, images) for encoder in (state["encoder"], start))
        return (now - then).norm()

    held = drift()
    del state.tensors["before"]
    assert 0 < held < drift()
    assert torch.equal(state["decoder"], decoder)


def method_codes(method: HR, state: Message) -> dict[int, Message]:
    return {0: method.local(method.download(state, [0])[0], Images(), Memory(), VISIT)[0]}


# Whole runs


def snapshots(out) -> list[dict[str, Tensor]]:
    return [snapshot_tensors(path) for path in sorted((out / "state").glob("snapshot-*.safetensors"))]


def test_a_whole_run_counts_decoder_centroids_and_codes(tmp_path, all_states):
    config = tiny("hr", schedule="6+2", rounds_first=3, rounds_later=3, options=SMALL)
    results = run(config, tmp_path / "run")
    visits = [3 * len(config.plan().cohort(step, 0)) for step in (1, 2)]
    down = 61_156 + DECODER.size + 10 * LATENT
    told = 61_156 + 20 * (LATENT + 2)  # a label is 8 bytes
    up = (visits[0] * (told + DECODER.size) + visits[1] * told) / sum(visits)  # the decoder trains in step 1 only
    payload = results["payload_kib"]
    assert (payload["down"], payload["up"]) == (pytest.approx(down / 256), pytest.approx(up / 256))
    assert payload["once_up"] == pytest.approx((10 * LATENT + 10 + STATISTICS) / 256)  # card and report
    before, after = snapshots(tmp_path / "run")
    for name in ("decoder", "centroids", "codes/1"):
        assert torch.equal(before[f"state:{name}"], after[f"state:{name}"]), name
    for name in ("encoder", "statistics"):
        assert not torch.equal(before[f"state:{name}"], after[f"state:{name}"]), name


def test_a_local_head_stays_with_its_client(tmp_path, all_states):
    config = tiny("hr-local-head", schedule="6+2", rounds_first=3, rounds_later=3, options=SMALL)
    results = run(config, tmp_path / "run")
    assert results["acc"][1][config.plan().batch(2)[0]] is not None
    before, after = snapshots(tmp_path / "run")
    assert not any("head" in name for name in after if name.startswith("state"))
    heads = {name: tensor for name, tensor in before.items() if name.endswith(":head")}
    kept = list(heads.values())
    assert len(kept) >= 3 and not torch.equal(kept[0], kept[1])
    assert all(torch.equal(tensor, after[name]) for name, tensor in heads.items())


def test_labels_that_are_no_class_are_refused():
    method, state = opened()
    download = method.download(state, [0])[0]
    upload, _ = method.local(download, Images(), Memory(), VISIT)
    method.check_upload(download, upload)
    upload["labels"][3] = 10
    with pytest.raises(BadMessage, match="no class"):
        method.check_upload(download, upload)
