"""Tables of numbers as .npz: every feature brought to mean 0 and deviation 1, for models that take vectors."""

import numpy as np
import pytest
import torch

from pfeddsh.configure import build
from pfeddsh.data import datasets
from pfeddsh.errors import UserError
from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import Shard


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))


def archive(path, **changes):
    rng = np.random.default_rng(0)
    scale, shift = np.array([1e-6, 1.0, 1e6, 0.0]), np.array([3.0, -2.0, 5e6, 7.0])
    x = rng.normal(size=(60, 4)) * scale + shift
    arrays = {"x_train": x[:40], "y_train": np.arange(40) % 3, "x_test": x[40:], "y_test": np.arange(20) % 3}
    np.savez(path, **(arrays | changes))
    return arrays


def test_vectors_are_kept_as_they_are_and_standardised_when_used(tmp_path):
    arrays = archive(tmp_path / "mine.npz")
    data = datasets.load(str(tmp_path / "mine.npz"))
    assert data.shape == (4, 1, 1) and data.x_train.dtype == np.float32 and data.classes == 3
    assert np.array_equal(data.x_train[:, :, 0, 0], arrays["x_train"].astype(np.float32))
    assert "60 vectors of 4 features" in data.notes[0]
    x, y = Shard(data, np.arange(40), np.arange(20)).train
    assert x.dtype == torch.float32 and x.shape == (40, 4, 1, 1) and y.tolist() == arrays["y_train"].tolist()
    mean, std = x.flatten(1).mean(0), x.flatten(1).std(0, correction=0)
    assert torch.allclose(mean[1:3], torch.zeros(2), atol=1e-4) and torch.allclose(std[1:3], torch.ones(2), atol=1e-3)
    assert x.isfinite().all() and (x[:, 3] == 0).all()  # a feature that never changes says nothing


@pytest.mark.parametrize("kind", [np.int32, np.uint8, bool, np.float64, np.float16])
def test_numbers_of_any_kind_will_do(tmp_path, kind):
    x = np.arange(240).reshape(60, 4).astype(kind)
    archive(tmp_path / "mine.npz", x_train=x[:40], x_test=x[40:])
    assert np.array_equal(datasets.load(str(tmp_path / "mine.npz")).x_test[:, :, 0, 0], x[40:].astype(np.float32))


def test_a_test_set_is_split_off_and_clients_are_read(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(60) % 2, client=np.arange(60) // 20)
    plain, natural = (datasets.load(str(tmp_path / "mine.npz"), natural=natural) for natural in (False, True))
    assert len(plain.x_test) == 12 and plain.notes[-1].startswith("no test images came with the data: 12 of 60")
    assert np.bincount(natural.clients_test).tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.full((40, 4), np.nan)}, r"mine.npz \(train\), row 0, feature 0: nan; fill in"),
        ({"x_test": np.full((20, 4), 1e300)}, r"mine.npz \(test\), row 0, feature 0: 1e\+300"),
        ({"x_test": np.zeros((20, 5))}, r"x_train has shape \(40, 4\) and x_test has shape \(20, 5\)"),
        ({"x_test": np.zeros((20, 4, 4), np.uint8)}, r"x_test has shape \(20, 4, 4\); expected images in both"),
        ({"x_train": np.zeros((40, 0))}, r"shape \(40, 0\)"),
        ({"x_train": np.full((40, 4), "a")}, "features are <U1"),
        ({"y_train": np.arange(39) % 3}, "40 train images but 39 labels"),
    ],
)
def test_what_cannot_be_used_is_explained(tmp_path, changes, message):
    archive(tmp_path / "mine.npz", **changes)
    with pytest.raises(UserError, match=message):
        datasets.load(str(tmp_path / "mine.npz"))


def test_a_model_of_images_says_which_takes_vectors(tmp_path):
    archive(tmp_path / "mine.npz")
    config = build({"dataset": str(tmp_path / "mine.npz"), "method": "fedavg", "schedule": "4+2"})
    message = r"vectors of 4 features, and this model takes images of 3x32x32; .*--model mlp"
    with pytest.raises(UserError, match=message):
        run(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
