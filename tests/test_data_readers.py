"""Every format a dataset may come in: what is read from good files, and what is said about bad ones."""

import gzip
import io
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pfeddsh.data import datasets, decode, parquet
from pfeddsh.data.images import Fit
from pfeddsh.errors import UserError

REAL = Path(os.environ.get("PFEDDSH_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No cache, data or hub but those of the test."""
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PFEDDSH_DATA", raising=False)
    for module in ("huggingface_hub", "pooch"):
        monkeypatch.setitem(sys.modules, module, None)


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def random_images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_parquet(path, blobs, labels, image="img", label="label", names=None, group=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [None if blob is None else {"bytes": blob, "path": None} for blob in blobs]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(images, kind), label: pa.array(labels)})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)


def cifar10(root, images, kind="PNG", shards=1):
    """A CIFAR-10 of these training images and one test image a class; returns the files of the training set."""
    folder = root / "uoft-cs" / "cifar10" / "plain_text"
    parts = np.array_split(np.arange(len(images)), shards)
    files = [folder / f"train-{number:05}-of-{shards:05}.parquet" for number in range(shards)]
    for file, part in zip(files, parts, strict=True):
        write_parquet(file, [encoded(images[at], kind) for at in part], part % 10)
    write_parquet(folder / "test-00000-of-00001.parquet", [encoded(image) for image in images[:10]], np.arange(10))
    return files


def nothing_left(tmp_path):
    decoded = tmp_path / "cache" / "decoded"
    return not decoded.exists() or not list(decoded.iterdir())


def test_digits_need_no_files_and_are_split_by_class():
    data = datasets.load("digits", shape=(3, 32, 32))
    assert data.x_train.shape[1:] == (3, 32, 32) and data.x_train.dtype == np.uint8
    assert len(data.x_train) + len(data.x_test) == 1797
    share = np.bincount(data.y_test) / (np.bincount(data.y_test) + np.bincount(data.y_train))
    assert np.allclose(share, 0.2, atol=0.01)
    assert (data.x_train[:, 0] == data.x_train[:, 1]).all() and data.x_train.max() == 255
    expected = data.x_train.mean((0, 2, 3)) / 255, data.x_train.std((0, 2, 3)) / 255
    assert np.allclose((data.mean, data.std), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_parquet_in_several_shards_keeps_every_image_and_its_order(tmp_path, kind):
    images = random_images(23, 32, 32, 3)
    cifar10(tmp_path, images, kind, shards=3)
    data = datasets.load("cifar10", tmp_path)
    assert np.array_equal(data.x_train, images.transpose(0, 3, 1, 2))
    assert data.y_train.tolist() == [at % 10 for at in range(23)]
    assert data.classes == 10 and data.class_names[3] == "cat"


def test_processes_decode_the_same_as_one(tmp_path, monkeypatch):
    images = random_images(23, 32, 32, 3)
    cifar10(tmp_path, images, shards=2)
    monkeypatch.setattr(decode, "WORTH_A_PROCESS", 5)
    monkeypatch.setattr(decode, "_cores", lambda: 2)
    monkeypatch.setattr(decode, "_write", None)  # the processes must do it
    assert np.array_equal(datasets.load("cifar10", tmp_path).x_train, images.transpose(0, 3, 1, 2))


def test_a_bad_image_found_by_a_process_is_named(tmp_path, monkeypatch):
    (file,) = cifar10(tmp_path, random_images(20, 32, 32, 3))
    blobs = [encoded(image) for image in random_images(20, 32, 32, 3)]
    write_parquet(file, [*blobs[:17], b"no image", *blobs[18:]], np.arange(20) % 10)
    monkeypatch.setattr(decode, "WORTH_A_PROCESS", 5)
    monkeypatch.setattr(decode, "_cores", lambda: 2)
    with pytest.raises(UserError, match=r"train-00000-of-00001.parquet, row 17: not a readable image"):
        datasets.load("cifar10", tmp_path)
    assert nothing_left(tmp_path)


def test_cifar100_takes_fine_labels_and_names_from_the_file(tmp_path):
    names = [f"kind {number}" for number in range(100)]
    for split in ("train", "test"):
        path = tmp_path / "uoft-cs/cifar100/cifar100" / f"{split}-00000-of-00001.parquet"
        blobs = [encoded(image) for image in random_images(3, 32, 32, 3)]
        write_parquet(path, blobs, [99, 0, 5], label="fine_label", names=names)
    data = datasets.load("cifar100", tmp_path)
    assert data.y_train.tolist() == [99, 0, 5] and data.class_names == tuple(names)


def test_tiny_imagenet_is_resized_and_grey_is_repeated(tmp_path):
    flat = np.full((64, 64, 3), (10, 200, 90), dtype=np.uint8)
    grey = np.full((64, 64), 77, dtype=np.uint8)
    for split in ("train", "valid"):
        path = tmp_path / "zh-plus/tiny-imagenet/data" / f"{split}-00000-of-00001-0a1b.parquet"
        write_parquet(path, [encoded(flat), encoded(grey, "JPEG")], [199, 0], image="image")
    data = datasets.load("tiny-imagenet", tmp_path, shape=(3, 32, 32))
    assert data.classes == 200 and data.x_test.shape == (2, 3, 32, 32)
    assert (data.x_train[0] == np.array([10, 200, 90])[:, None, None]).all()
    assert (data.x_train[1] == data.x_train[1, 0, 0, 0]).all()


def test_shrinking_averages_instead_of_dropping_pixels(tmp_path):
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 255
    for split in ("train", "valid"):
        path = tmp_path / "zh-plus/tiny-imagenet/data" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, [encoded(stripes)], [0], image="image")
    inner = datasets.load("tiny-imagenet", tmp_path, shape=(3, 32, 32)).x_train[0, :, :, 1:-1]
    assert inner.min() > 100 and inner.max() < 155


def test_a_file_that_changes_under_a_running_program_is_read_anew(tmp_path):
    for seed in (0, 1):
        images = random_images(10, 32, 32, 3, seed=seed)
        (file,) = cifar10(tmp_path, images)
        os.utime(file, ns=(seed, seed))
        assert np.array_equal(datasets.load("cifar10", tmp_path).x_train, images.transpose(0, 3, 1, 2))


def test_pneumoniamnist(tmp_path):
    (tmp_path / "medmnist").mkdir()
    images, labels = random_images(6, 28, 28), np.array([[0], [1]] * 3, dtype=np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:2], "test_labels": labels[:2]}
    np.savez(tmp_path / "medmnist" / "pneumoniamnist.npz", **arrays)
    data = datasets.load("pneumoniamnist", tmp_path, shape=(3, 32, 32))
    assert data.x_train.shape == (6, 3, 32, 32) and data.y_train.tolist() == [0, 1] * 3
    assert data.class_names == ("normal", "pneumonia")


def write_idx(path, array):
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def fashion(root):
    folder = root / "fashion-mnist"
    folder.mkdir()
    for split, count in (("train", 20), ("t10k", 10)):
        write_idx(folder / f"{split}-images-idx3-ubyte.gz", random_images(count, 28, 28))
        write_idx(folder / f"{split}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    return folder


def test_fashion_mnist(tmp_path):
    fashion(tmp_path)
    data = datasets.load("fashion-mnist", tmp_path, shape=(3, 32, 32))
    assert data.x_train.shape == (20, 3, 32, 32) and data.y_test.tolist() == list(range(10))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"x" + b, lambda b: gzip.compress(b"abc")])
def test_damaged_idx_is_named(tmp_path, damage):
    path = fashion(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz"):
        datasets.load("fashion-mnist", tmp_path)
    assert nothing_left(tmp_path)


def test_idx_with_fewer_pixels_than_promised_is_refused(tmp_path):
    path = fashion(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz .* cut short"):
        datasets.load("fashion-mnist", tmp_path)


def test_damaged_parquet_is_named(tmp_path):
    (file,) = cifar10(tmp_path, random_images(12, 32, 32, 3))
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:4] + b"\xff" * 3000 + whole[3004:]):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=file.name):
            datasets.load("cifar10", tmp_path)
        assert nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("blobs", "labels", "names", "message"),
    [
        ([b"?", b"?"], [0, 10], {}, "row 1: label 10, expected 0 to 9"),
        ([b"?", b"?"], [0, None], {}, "none missing"),
        ([encoded(np.zeros((32, 32, 3), np.uint8)), None], [0, 1], {}, "row 1: column 'img' holds no image"),
        ([b"?", b"?"], [0, 1], {"image": "image"}, r"no column 'img' \(it has image, label\)"),
    ],
)
def test_parquet_with_wrong_content_is_explained(tmp_path, blobs, labels, names, message):
    (file,) = cifar10(tmp_path, random_images(10, 32, 32, 3))
    write_parquet(file, blobs, labels, **names)
    with pytest.raises(UserError, match=message):
        datasets.load("cifar10", tmp_path)
    assert nothing_left(tmp_path)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"unknown dataset 'cifar-10'; did you mean cifar10"):
        datasets.load("cifar-10")
    with pytest.raises(UserError, match=r"no dataset at .*nowhere.npz"):
        datasets.load("nowhere.npz")


def test_missing_dataset_says_where_it_was_sought_and_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError) as caught:
        datasets.load("cifar10", tmp_path / "data")
    text = str(caught.value)
    assert "train-*.parquet" in text and "pip install 'pfeddsh[hub]'" in text
    for root in (tmp_path / "data", tmp_path / "cache" / "data"):
        assert str(root / "uoft-cs" / "cifar10" / "plain_text") in text
    with pytest.raises(UserError, match=r"expected pneumoniamnist.npz in .*pip install"):
        datasets.load("pneumoniamnist")
    monkeypatch.setenv("PFEDDSH_DATA", str(tmp_path / "typo"))
    with pytest.raises(UserError, match=r"PFEDDSH_DATA: .*typo is not a folder"):
        datasets.load("cifar10")


def test_the_environment_names_the_data_folder(tmp_path, monkeypatch):
    cifar10(tmp_path, random_images(10, 32, 32, 3))
    monkeypatch.setenv("PFEDDSH_DATA", str(tmp_path))
    assert len(datasets.load("cifar10").x_train) == 10


def test_a_dataset_with_a_shard_missing_is_not_used(tmp_path):
    files = cifar10(tmp_path, random_images(20, 32, 32, 3), shards=2)
    files[0].unlink()
    with pytest.raises(UserError, match="all shards"):
        datasets.load("cifar10", tmp_path)


@pytest.mark.skipif(not (REAL / "medmnist").is_dir(), reason=f"no real data in {REAL} (set PFEDDSH_DATA)")
def test_the_real_pneumoniamnist():
    data = datasets.load("pneumoniamnist", REAL)
    assert data.classes == 2 and len(data.x_test) == 624
    assert 0.5 < data.mean[0] < 0.65


@pytest.mark.skipif(not (REAL / "uoft-cs").is_dir(), reason=f"no real data in {REAL} (set PFEDDSH_DATA)")
@pytest.mark.parametrize(
    ("file", "image", "label", "classes"),
    [
        ("uoft-cs/cifar10/plain_text/test-*", "img", "label", 10),
        ("uoft-cs/cifar100/cifar100/test-*", "img", "fine_label", 100),
        ("zh-plus/tiny-imagenet/data/valid-*", "image", "label", 200),
    ],
)
def test_real_parquet_files(tmp_path, file, image, label, classes):
    """All labels, and the first images, of the files people download."""
    split, _ = parquet.read_parquet(sorted(REAL.glob(file)), image, label, classes)
    assert set(np.unique(split.labels)) == set(range(classes))
    assert sum(map(len, split.images)) == len(split.labels)
    decode.fill([(tmp_path / "x.npy", split.images[:1])], Fit((3, 32, 32)))
    images = np.load(tmp_path / "x.npy")
    assert len(images) == len(split.images[0])
    assert np.allclose(images.mean((0, 2, 3)) / 255, (0.49, 0.47, 0.43), atol=0.06)
