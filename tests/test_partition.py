"""Who owns what: every image once, minima, the same proportions in train and test, the same bits from the same seed."""

import numpy as np
import pytest
from conftest import nothing_to_warn_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pfeddsh.data.partition import partition
from pfeddsh.errors import UserError


def labels(sizes):
    return np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))


def divide(y_train, y_test, **options):
    options = {"classes": int(y_train.max()) + 1, "clients": 10, "rule": "dirichlet", "alpha": 0.1, "seed": 0} | options
    return partition(y_train, y_test, **options)


def every_image_once(parts, y):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))


def counted(parts, y, classes):
    return np.stack([np.bincount(y[part], minlength=classes) for part in parts])


RULES = st.sampled_from(["dirichlet", "iid", "classes=1", "classes=2", "classes=5"])
ALPHA = st.floats(0.05, 100)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=2, max_size=20),
    clients=st.integers(2, 150),
    rule=RULES,
    alpha=ALPHA,
    seed=st.integers(0, 1000),
)
def test_every_image_has_one_owner_and_counts_are_true(sizes, clients, rule, alpha, seed):
    y_train, y_test = labels(sizes), labels([-(-size // 5) for size in sizes])
    try:
        parts = divide(y_train, y_test, clients=clients, rule=rule, alpha=alpha, seed=seed)
    except UserError:
        few = len(y_train) < 2 * clients or len(y_test) < clients
        assert few or rule.startswith("classes=")
        return
    for got, y, counts in ((parts.train, y_train, parts.train_counts), (parts.test, y_test, parts.test_counts)):
        assert len(got) == clients and all((np.diff(part) > 0).all() for part in got)
        assert every_image_once(got, y)
        assert np.array_equal(counts, counted(got, y, len(sizes)))
        assert counts.sum(1).min() >= (2 if y is y_train else 1)


@settings(max_examples=60, deadline=None)
@given(images=st.integers(2, 12_000), clients=st.integers(2, 150), alpha=ALPHA, seed=st.integers(0, 1000))
def test_dirichlet_keeps_the_minimum_the_data_allow(images, clients, alpha, seed):
    y_train, y_test = np.arange(images) % 10, np.arange(images // 4) % 10
    assume(len(y_train) >= 2 * clients and len(y_test) >= clients and images >= 10)
    parts = divide(y_train, y_test, classes=10, clients=clients, alpha=alpha, seed=seed)
    for counts, total, wanted, floor in (
        (parts.train_counts, len(y_train), 32, 2),
        (parts.test_counts, len(y_test), 8, 1),
    ):
        least = wanted if total >= wanted * clients else max(floor, total // (2 * clients))
        assert counts.sum(1).min() >= least


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(2, 60), alpha=st.floats(1, 100), seed=st.integers(0, 1000))
def test_train_and_test_are_divided_by_the_same_proportions(clients, alpha, seed):
    """Where nothing had to move, a client's share of a class differs by rounding only."""
    y_train, y_test = labels([5000] * 5), labels([1000] * 5)
    parts = divide(y_train, y_test, clients=clients, alpha=alpha, seed=seed)
    assume(parts.train_counts.sum(1).min() > 32 and parts.test_counts.sum(1).min() > 8)
    assert np.abs(parts.train_counts / 5000 - parts.test_counts / 1000).max() <= 1 / 5000 + 1 / 1000


@pytest.mark.parametrize("clients", [50, 150])
def test_clients_that_were_topped_up_have_alike_train_and_test(clients):
    parts = divide(labels([5000] * 10), labels([1000] * 10), clients=clients, alpha=0.05)
    train, test = (counts / counts.sum(1, keepdims=True) for counts in (parts.train_counts, parts.test_counts))
    assert parts.train_counts.sum(1).min() == 32  # so some were topped up
    assert np.abs(train - test).sum(1).max() / 2 < 0.2


@pytest.mark.parametrize("rule", ["dirichlet", "iid", "classes=3"])
def test_the_seed_decides(rule):
    y_train, y_test = labels([500] * 10), labels([100] * 10)
    one, again, other = (divide(y_train, y_test, rule=rule, seed=seed) for seed in (4, 4, 5))
    for mine, theirs in ((one.train, again.train), (one.test, again.test)):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True))


def test_alpha_sets_how_unequal_the_clients_are():
    y_train, y_test = labels([2000] * 10), labels([400] * 10)
    held = [(divide(y_train, y_test, alpha=alpha).train_counts > 20).sum(1).mean() for alpha in (0.05, 0.5, 100)]
    assert held[0] < held[1] < held[2] == 10


def test_a_tiny_alpha_still_gives_every_client_something():
    with nothing_to_warn_of():  # shares that underflow to nothing must not be divided by
        parts = divide(labels([500] * 4), labels([100] * 4), clients=40, alpha=1e-4)
    assert parts.train_counts.sum(1).min() >= 32 and parts.test_counts.sum(1).min() >= 8


@pytest.mark.parametrize("rule", ["dirichlet", "iid", "classes=2"])
def test_no_client_is_special_for_its_number(rule):
    """Mean sizes over many seeds agree; rounding or topping up in order of clients would favour the first."""
    y_train, y_test = labels([101] * 7), labels([51] * 7)
    runs = [divide(y_train, y_test, rule=rule, clients=6, alpha=0.3, seed=seed) for seed in range(300)]
    sizes = np.stack([run.train_counts.sum(1) for run in runs])
    standard_error = sizes.std(0).mean() / np.sqrt(len(runs))
    assert np.abs(sizes.mean(0) - sizes.mean()).max() < 4 * standard_error


def test_iid_parts_are_equal():
    parts = divide(labels([333] * 3), labels([100] * 3), rule="iid", clients=7)
    assert np.ptp(parts.train_counts.sum(1)) <= 1 and np.ptp(parts.test_counts.sum(1)) <= 1
    assert np.abs(parts.train_counts / parts.train_counts.sum(1, keepdims=True) - 1 / 3).max() < 0.15


@pytest.mark.parametrize(("k", "clients"), [(1, 10), (2, 5), (2, 37), (3, 100), (10, 4)])
def test_classes_k_gives_each_client_k_and_each_class_an_owner(k, clients):
    parts = divide(labels([400] * 10), labels([80] * 10), rule=f"classes={k}", clients=clients)
    held = parts.train_counts > 0
    assert (held.sum(1) == k).all() and held.any(0).all()
    assert np.array_equal(held, parts.test_counts > 0)
    assert np.ptp(held.sum(0)) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "dirichelt"}, "unknown partition rule 'dirichelt'; did you mean dirichlet"),
        ({"rule": "classes=11"}, "whole number from 1 to 10"),
        ({"rule": "classes=two"}, "whole number from 1 to 10"),
        ({"rule": "classes=2", "clients": 3}, "use classes=4 or more"),
        ({"alpha": 0.0}, "alpha = 0.0"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"clients": 0}, "clients = 0"),
        ({"clients": 60}, "too few for 60 clients"),
    ],
)
def test_what_cannot_be_divided_is_explained(options, message):
    with pytest.raises(UserError, match=message):
        divide(labels([10] * 10), labels([5] * 10), **options)
