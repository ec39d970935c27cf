"""The user's own data: archives and folders in the usual layouts, and clear words about the others."""

import io

import numpy as np
import pytest
from PIL import Image

from pfeddsh.data import datasets
from pfeddsh.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))


def random_images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encoded(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def nothing_left(tmp_path):
    decoded = tmp_path / "cache" / "decoded"
    return not decoded.exists() or not list(decoded.iterdir())


@pytest.mark.parametrize("shape", [(32, 32, 3), (3, 32, 32), (32, 32), (32, 32, 1), (1, 32, 32)])
def test_own_npz_in_any_usual_layout(tmp_path, shape):
    x, y = random_images(4, *shape), np.array([0, 1, 2, 1])
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = datasets.load(str(tmp_path / "mine.npz"), shape=(3, 32, 32))
    expected = x.reshape(4, 1, 32, 32) if 3 not in shape else x if shape[0] == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(data.x_train, np.broadcast_to(expected, (4, 3, 32, 32)))
    assert data.classes == 3 and data.name == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((4, 8, 8))}, "float64, expected uint8"),
        ({"x_train": np.zeros((4, 8), np.uint8)}, r"shape \(4, 8\)"),
        ({"y_train": np.array([0, 1])}, "4 train images but 2 labels"),
        ({"y_train": np.array([0, 1, 3, 1])}, "labels must be 0, 1, 2"),
        ({"y_test": np.array([0, 1, -1, 1])}, r"mine.npz \(test\), row 2: label -1, expected 0, 1, 2"),
        ({"y_train": np.array([0.0, 1, 1, 1])}, "labels are float64"),
        ({"y_train": np.array([None] * 4)}, "mine.npz is not a readable npz"),
    ],
)
def test_own_npz_that_cannot_be_used_is_explained(tmp_path, change, message):
    good = {"x_train": random_images(4, 8, 8), "y_train": np.array([0, 1, 0, 1])}
    good |= {"x_test": good["x_train"], "y_test": good["y_train"]}
    np.savez(tmp_path / "mine.npz", **(good | change))
    with pytest.raises(UserError, match=message):
        datasets.load(str(tmp_path / "mine.npz"))
    assert nothing_left(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:60] + b"\xff" * 40 + b[100:], lambda b: b""]
)
def test_damaged_npz_is_named(tmp_path, damage):
    x, y = random_images(4, 8, 8), np.array([0, 1, 0, 1])
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"mine.npz"):
        datasets.load(str(path))


def class_folders(root, counts, seed=0):
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for at, image in enumerate(random_images(count, 40, 20, 3, seed=seed + number)):
            (root / name / f"{at:03}.png").write_bytes(encoded(image))


def test_own_folder_with_train_and_test(tmp_path):
    class_folders(tmp_path / "pets" / "train", {"cat": 5, "dog": 3, "owl": 2})
    class_folders(tmp_path / "pets" / "test", {"dog": 1, "owl": 2})
    data = datasets.load(str(tmp_path / "pets"), shape=(3, 32, 32))
    assert data.class_names == ("cat", "dog", "owl") and data.name == "pets"
    assert np.bincount(data.y_train).tolist() == [5, 3, 2] and data.y_test.tolist() == [1, 2, 2]
    assert data.x_train.shape == (10, 3, 32, 32)


def test_own_folder_without_test_is_split_the_same_way_every_time(tmp_path):
    class_folders(tmp_path / "a", {"cat": 10, "dog": 5})
    class_folders(tmp_path / "b", {"cat": 10, "dog": 5})
    one, two = datasets.load(str(tmp_path / "a")), datasets.load(str(tmp_path / "b"))
    assert np.bincount(one.y_train).tolist() == [8, 4] and np.bincount(one.y_test).tolist() == [2, 1]
    assert one.fingerprint == two.fingerprint
    images = {image.tobytes() for image in (*one.x_train, *one.x_test)}
    assert len(images) == 15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda root: (root / "cat" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really"),
            "bad.png: not a readable",
        ),
        (lambda root: Image.new("I", (8, 8), 70000).save(root / "cat" / "deep.tif"), "deep.tif: values from 70000"),
        (lambda root: (root / "owl").mkdir(), "owl: 0 images"),
    ],
)
def test_own_folder_that_cannot_be_used_is_explained(tmp_path, make, message):
    class_folders(tmp_path / "pets", {"cat": 2, "dog": 2})
    make(tmp_path / "pets")
    with pytest.raises(UserError, match=message):
        datasets.load(str(tmp_path / "pets"))
    assert nothing_left(tmp_path)


def test_truncated_image_is_refused(tmp_path):
    class_folders(tmp_path / "pets", {"cat": 2, "dog": 2})
    path = tmp_path / "pets" / "dog" / "001.png"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"001.png: not a readable image"):
        datasets.load(str(tmp_path / "pets"))


def test_test_class_that_was_never_trained_is_refused(tmp_path):
    class_folders(tmp_path / "pets" / "train", {"cat": 2, "dog": 2})
    class_folders(tmp_path / "pets" / "test", {"cat": 2, "dgo": 2})
    with pytest.raises(UserError, match="class 'dgo' is not in"):
        datasets.load(str(tmp_path / "pets"))
