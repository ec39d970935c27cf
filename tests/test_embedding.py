"""The client's card tells what it should and no more; the server makes usable embeddings of any set of cards."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pfeddsh.mechanisms import hypernet
from pfeddsh.mechanisms.embedding import CardOptions, describe, embed, fit, image_features, label_histogram
from pfeddsh.mechanisms.privacy import Uniform, repeatable

PLAIN = CardOptions()


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(seed: int) -> Uniform:
    return repeatable(stream(seed))


def client(own: list[int], seed: int, options: CardOptions = PLAIN) -> dict[str, Tensor]:
    """The card of a client with 40 images, whose colour depends a little on the class, of the given classes."""
    labels = torch.tensor(own)[torch.randint(len(own), (40,), generator=stream(seed))]
    images = torch.randn(40, 3, 32, 32, generator=stream(seed)) + 0.1 * labels.view(-1, 1, 1, 1)
    return describe(images, labels, 10, options, seed=0, generator=stream(seed), uniform=noise(seed))


def batch(options: CardOptions = PLAIN) -> list[dict[str, Tensor]]:
    return [client([k % 10, (k * 3 + 1) % 10], seed=k, options=options) for k in range(20)]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def test_features_depend_on_the_images_and_the_common_seed_only() -> None:
    images = torch.randn(100, 3, 32, 32, generator=stream(0))
    features = image_features(images, seed=3)
    assert features.shape == (32,)
    torch.testing.assert_close(image_features(images.flip(0), seed=3), features)
    assert not torch.allclose(image_features(images, seed=4), features, atol=1e-2)
    assert not torch.allclose(image_features(images[:, [1, 0, 2]] + images, seed=3), features, atol=1e-2)


def test_histogram_is_exact_unless_asked_otherwise() -> None:
    labels = torch.tensor([0, 0, 0, 2])
    assert label_histogram(labels, 4, PLAIN, noise(0)).tolist() == [0.75, 0.0, 0.25, 0.0]


def test_rounding_makes_different_clients_tell_the_same() -> None:
    options = CardOptions(rounding=0.1)
    one = label_histogram(torch.tensor([0] * 48 + [1] * 52), 3, options, noise(0))
    two = label_histogram(torch.tensor([0] * 53 + [1] * 47), 3, options, noise(0))
    assert torch.equal(one, two)
    assert one.tolist() == [0.5, 0.5, 0.0]


def test_rounding_everything_away_leaves_the_uniform_histogram() -> None:
    told = label_histogram(torch.arange(100), 100, CardOptions(rounding=0.05), noise(0))
    assert torch.allclose(told, torch.full((100,), 0.01))


def test_noise_is_laplace_of_the_given_scale() -> None:
    classes = 100_000
    labels = torch.arange(classes)
    options = CardOptions(noise=0.1)
    told = label_histogram(labels, classes, options, noise(0))
    assert not torch.equal(told, label_histogram(labels, classes, options, noise(1)))
    assert torch.equal(told, label_histogram(labels, classes, options, noise(0)))
    # clamped at 0 and renormalised: half are left, exponential, so their standard deviation equals their mean
    left = told[told > 0]
    assert abs(len(left) / classes - 0.5) < 0.01
    assert abs(float(left.std() / left.mean()) - 1) < 0.02
    # the scale itself, where nothing is clamped: one label holds all and the others a share of the noise
    first = [float(label_histogram(torch.zeros(9).long(), 2, options, noise(k))[1]) for k in range(400)]
    assert abs(sum(first) / 400 - 0.05) < 0.015


@pytest.mark.parametrize("options", [replace(PLAIN, histogram=False), CardOptions("random", histogram=False)])
def test_a_withheld_histogram_is_not_in_the_card(options: CardOptions) -> None:
    one = client([1], 5, options)
    assert "histogram" not in one
    assert embed(fit(batch(options), options, seed=0), one).shape == (32,)


def test_the_random_control_ignores_the_data() -> None:
    options = CardOptions("random")
    card = client([1], 5, options)
    assert "image" not in card
    whitening = fit(batch(options), options, seed=0)
    other = {**client([7, 8], 6, options), "signature": card["signature"]}
    assert torch.equal(embed(whitening, card), embed(whitening, other))


def test_the_image_control_ignores_labels() -> None:
    options = CardOptions("image")
    whitening = fit(batch(options), options, seed=0)
    card = client([1], 5, options)
    other = {**card, "histogram": card["histogram"].flip(0)}
    assert torch.equal(embed(whitening, card), embed(whitening, other))


def test_similar_data_mean_similar_keys() -> None:
    whitening = fit(batch(), PLAIN, seed=0)
    params = hypernet.create(torch.zeros(1), stream(0))
    keys = {
        name: hypernet.key(params, embed(whitening, client(own, seed)))
        for name, own, seed in (("a", [2, 6], 100), ("b", [2, 6], 101), ("c", [0, 9], 102))
    }
    assert cosine(keys["a"], keys["b"]) > 0.6
    assert cosine(keys["a"], keys["c"]) < 0.4


def test_embeddings_of_the_first_batch_are_centred_and_of_unit_variance() -> None:
    cards = batch()
    whitening = fit(cards, PLAIN, seed=0)
    e = torch.stack([embed(whitening, card) for card in cards])
    assert 0.5 < float(e.square().mean()) < 1.5
    assert float(e.mean(0).square().sum() / e.square().sum(1).mean()) < 0.2


@pytest.mark.parametrize("count", [1, 2])
def test_few_or_equal_clients_still_get_finite_distinct_keys(count: int) -> None:
    cards = [client([3], seed=k) for k in range(count)]
    whitening = fit(cards, PLAIN, seed=0)
    params = hypernet.create(torch.zeros(1), stream(0))
    keys = []
    for card in (*cards, client([4, 5, 6], seed=9)):
        e = embed(whitening, card)
        assert e.isfinite().all()
        assert 0.49 * 32**0.5 < float(e.norm()) < 2.01 * 32**0.5
        keys.append(hypernet.key(params, e))
        assert abs(float(keys[-1].norm()) - 1) < 1e-5
    assert cosine(keys[0], keys[-1]) < 0.9


def test_a_single_client_defines_a_space_in_which_its_like_is_near() -> None:
    whitening = fit([client([3], seed=0)], PLAIN, seed=0)
    params = hypernet.create(torch.zeros(1), stream(0))
    keys = [hypernet.key(params, embed(whitening, client([3], seed))) for seed in (0, 1)]
    assert 0.5 < cosine(*keys) < 0.99


def test_clients_with_equal_data_have_keys_of_their_own() -> None:
    whitening = fit(batch(), PLAIN, seed=0)
    card = client([3, 4], seed=0)
    other = {**card, "signature": client([3, 4], seed=1)["signature"]}
    params = hypernet.create(torch.zeros(1), stream(0))
    assert 0.5 < cosine(*(hypernet.key(params, embed(whitening, each)) for each in (card, other))) < 0.95


def test_equal_cards_average_cards_and_outliers_have_embeddings_of_bounded_length() -> None:
    signature = torch.full((32,), 0.1)
    equal = {"signature": signature, "histogram": torch.full((4,), 0.25), "image": torch.full((32,), 0.5)}
    whitening = fit([equal] * 3, PLAIN, seed=0)
    assert embed(whitening, equal).norm() == pytest.approx(0.5 * 32**0.5)
    outlier = {**equal, "image": torch.rand(32, generator=stream(0))}
    assert embed(whitening, outlier).norm() == pytest.approx(2 * 32**0.5)


def test_a_class_unseen_in_the_first_batch_does_not_drown_the_rest() -> None:
    whitening = fit([client([k % 9, (k * 3 + 1) % 9], seed=k) for k in range(20)], PLAIN, seed=0)
    assert embed(whitening, client([9, 0], seed=50)).norm() < 1.9 * 32**0.5
