"""Clients that the data name: read from folders, archives and tables, and turned into a partition as they are."""

import io
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pfeddsh.configure import build
from pfeddsh.data import datasets
from pfeddsh.data.natural import example, natural
from pfeddsh.data.splits import Split, in_order, whole
from pfeddsh.errors import UserError
from pfeddsh.federation.run import run
from pfeddsh.federation.workbench import Workbench, divide, open_data
from pfeddsh.schedule import parse


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))


def noise(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def images(folder, count, seed=0):
    folder.mkdir(parents=True)
    for at, pixels in enumerate(noise(count, 8, 8, seed=seed)):
        Image.fromarray(pixels).save(folder / f"{at:03}.png")


def config(path, schedule, **more):
    return build({"dataset": str(path), "method": "fedavg", "schedule": schedule, "partition": "natural", **more})


def names_of(data, owners):
    return [data.client_names[owner] for owner in owners]


# Properties of the partition

NAMES = st.lists(st.text("ab-_ 0123456789é", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@st.composite
def owned(draw):
    """Labels and owners of a dataset in which every client has enough, and the names of the clients."""
    names = in_order(draw(NAMES))
    rows = []
    for split, least in (("train", 2), ("test", 1)):
        sizes = draw(st.lists(st.integers(least, 9), min_size=len(names), max_size=len(names)))
        owners = np.repeat(np.arange(len(names)), sizes)
        seed = draw(st.integers(0, 99))
        owners = np.random.default_rng(seed).permutation(owners)
        rows.append((np.random.default_rng(seed + 1).integers(0, 4, len(owners)), owners, split))
    return tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(names)


@settings(max_examples=80, deadline=None)
@given(data=owned(), seed=st.integers(0, 99))
def test_every_image_goes_to_its_owner_whatever_the_order(data, seed):
    labels, owners, names = data
    order = [str(name) for name in np.random.default_rng(seed).permutation(np.array(names, dtype=object))]
    for given_order in ((), order):
        parts = natural(labels, owners, names, classes=4, clients=len(names), order=given_order)
        assert parts.names == tuple(given_order or names)
        for got, y, own, counts in (
            (parts.train, labels[0], owners[0], parts.train_counts),
            (parts.test, labels[1], owners[1], parts.test_counts),
        ):
            assert np.array_equal(np.sort(np.concatenate(got)), np.arange(len(y)))
            for client, index in enumerate(got):
                assert (np.diff(index) > 0).all()
                assert {names[number] for number in own[index]} == {parts.names[client]}
                assert counts[client].tolist() == np.bincount(y[index], minlength=4).tolist()


@settings(max_examples=60, deadline=None)
@given(data=owned(), victim=st.integers(0, 11), split=st.sampled_from([0, 1]))
def test_a_client_with_too_few_is_named_and_nobody_else(data, victim, split):
    labels, owners, names = data
    victim %= len(names)
    keep = [np.ones(len(own), bool) for own in owners]
    own = np.flatnonzero(owners[split] == victim)
    keep[split][own[: len(own) - (1 if split == 0 else 0)]] = False  # one train image is left, or no test image
    cut = [tuple(array[mask] for array, mask in zip(arrays, keep, strict=True)) for arrays in (labels, owners)]
    with pytest.raises(UserError, match="too few images at ") as caught:
        natural(*cut, names, classes=4, clients=len(names))
    told = str(caught.value)
    had = [int((own == victim).sum()) for own in owners]
    left = f"{had[0]} train, 0 test" if split else f"1 train, {had[1]} test"
    assert told.startswith(f"too few images at {names[victim]} ({left}): every client")


@settings(max_examples=60, deadline=None)
@given(data=owned(), without=st.sets(st.integers(0, 11)))
def test_a_test_share_comes_from_the_clients_that_lack_one_and_no_others(data, without):
    labels, owners, names = data
    clients = [np.array(names, dtype=np.str_)[own] for own in owners]
    x = [np.arange(len(y)).reshape(-1, 1, 1) + 1000 * at for at, y in enumerate(labels)]
    stays = ~np.isin(owners[1], list(without))
    train = Split(x[0], labels[0], clients[0])
    test = Split(x[1][stays], labels[1][stays], clients[1][stays])
    raw, again = (whole(train, test if stays.any() else None, tuple("abcd")) for _ in range(2))
    found = np.concatenate([raw.train.images, raw.test.images]).ravel().tolist()
    assert sorted(found) == sorted(np.concatenate([train.images, test.images]).ravel().tolist())
    assert np.array_equal(raw.test.images, again.test.images)
    for number, name in enumerate(names):
        had, kept = (clients[0] == name).sum(), (raw.train.clients == name).sum()
        tests = (raw.test.clients == name).sum()
        if number in without and had > 2:
            assert had - kept == tests and 1 <= tests <= max(1, 0.4 * had)
            assert name in clients[0] and raw.notes
        else:
            assert kept == had and tests == (0 if number in without else (clients[1] == name).sum())


@pytest.mark.parametrize("clients", [1, 4, 5, 7, 40, 100])
def test_the_schedule_that_is_proposed_fits(clients):
    assert sum(parse(example(clients))) == clients


def test_names_are_sorted_as_people_do():
    assert in_order(["b-1", "a-10", "a-2", "a", "10", "9"]) == ["9", "10", "a", "a-2", "a-10", "b-1"]


# What the data may look like


def test_a_folder_of_client_folders(tmp_path):
    images(tmp_path / "sites" / "site-10" / "cat", 6)
    images(tmp_path / "sites" / "site-10" / "dog", 5, seed=1)
    images(tmp_path / "sites" / "site-2" / "train" / "dog", 4, seed=2)
    images(tmp_path / "sites" / "site-2" / "test" / "dog" / "deep", 3, seed=3)
    (tmp_path / "sites" / "site-2" / ".DS_Store").write_text("")
    (tmp_path / "sites" / "site-10" / "Thumbs.db").write_text("")
    data = datasets.load(str(tmp_path / "sites"), natural=True)
    assert data.client_names == ("site-2", "site-10") and data.class_names == ("cat", "dog")
    assert np.bincount(data.clients_train).tolist() == [4, 9] and np.bincount(data.clients_test).tolist() == [3, 2]
    assert data.y_train[data.clients_train == 0].tolist() == [1] * 4
    text = "\n".join(data.notes)
    assert "skipped: 2 hidden or system" in text
    assert "set a fifth of theirs apart as such (2 images): site-10" in text


def test_an_archive_with_clients_in_both_sets(tmp_path):
    owner = np.array(["b", "a", "b", "a", "b", "a"])
    x, y = noise(6, 8, 8), np.array([0, 1, 1, 0, 0, 1])
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, client_train=owner, x_test=x[:2], y_test=y[:2],
             client_test=owner[:2])  # fmt: skip
    data = datasets.load(str(tmp_path / "mine.npz"), natural=True)
    assert names_of(data, data.clients_train) == owner.tolist() and names_of(data, data.clients_test) == ["b", "a"]
    assert np.array_equal(data.x_train, x[:, None])


@pytest.mark.parametrize("key", ["client", "client_train"])
def test_an_archive_without_a_test_set(tmp_path, key):
    owner = np.arange(40) % 4 + 7
    np.savez(tmp_path / "mine.npz", x_train=noise(40, 8, 8), y_train=np.arange(40) // 4 % 2, **{key: owner})
    data = datasets.load(str(tmp_path / "mine.npz"), natural=True)
    assert data.client_names == ("7", "8", "9", "10")
    assert np.bincount(data.clients_train).tolist() == [8] * 4 and np.bincount(data.clients_test).tolist() == [2] * 4


def table(path, clients, labels, image="image", struct=True, seed=0):
    blobs = []
    for pixels in noise(len(labels), 8, 8, seed=seed):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        blobs.append(buffer.getvalue())
    cells = [{"bytes": blob, "path": None} for blob in blobs] if struct else blobs
    columns = {image: cells, "label": labels} | ({"client": clients} if clients is not None else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return noise(len(labels), 8, 8, seed=seed)[:, None]


@pytest.mark.parametrize("struct", [True, False])
def test_a_table_with_a_column_of_clients(tmp_path, struct):
    clients = [f"site-{at % 3}" for at in range(30)]
    labels = [("cat", "dog")[at // 3 % 2] for at in range(30)]
    x = table(tmp_path / "mine.parquet", clients, labels, struct=struct)
    data = datasets.load(str(tmp_path / "mine.parquet"), natural=True)
    assert data.class_names == ("cat", "dog") and data.client_names == ("site-0", "site-1", "site-2")
    assert np.bincount(data.clients_test).tolist() == [2, 2, 2] and len(data.y_train) == 24
    where = {pixels.tobytes(): at for at, pixels in enumerate(x)}
    for images_, owners, y in ((data.x_train, data.clients_train, data.y_train),
                               (data.x_test, data.clients_test, data.y_test)):  # fmt: skip
        rows = [where[pixels.tobytes()] for pixels in images_]
        assert names_of(data, owners) == [clients[row] for row in rows]
        assert [data.class_names[label] for label in y] == [labels[row] for row in rows]


def test_a_folder_of_tables_with_numbers_for_labels(tmp_path):
    one = table(tmp_path / "mine" / "train-0.parquet", [1, 1, 2], [0, 1, 0], image="img")
    two = table(tmp_path / "mine" / "train-1.parquet", [2, 1, 2], [1, 1, 0], image="img", seed=1)
    table(tmp_path / "mine" / "test-0.parquet", [2, 1], [1, 1], image="img", seed=2)
    data = datasets.load(str(tmp_path / "mine"), natural=True)
    assert np.array_equal(data.x_train, np.concatenate([one, two])) and data.y_train.tolist() == [0, 1, 0, 1, 1, 0]
    assert names_of(data, data.clients_train) == ["1", "1", "2", "2", "1", "2"]
    plain = datasets.load(str(tmp_path / "mine"))
    assert plain.clients_train is None and plain.fingerprint != data.fingerprint


def test_a_client_whose_name_changes_is_another_dataset(tmp_path):
    found = []
    for name in ("a", "c"):
        np.savez(tmp_path / f"{name}.npz", x_train=noise(8, 8, 8), y_train=np.arange(8) % 2,
                 client=np.array([name, "b"] * 4))  # fmt: skip
        found.append(datasets.load(str(tmp_path / f"{name}.npz"), natural=True).fingerprint)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "lacks client_train: natural clients need the owner of every row"),
        ({"client": np.array(["a"] * 3)}, r"clients are <U1 of shape \(3,\), expected 8 names or whole numbers"),
        ({"client": np.arange(8.0)}, "clients are float64"),
        ({"client": np.array(["a"] * 7 + [" "])}, "row 7: the client's name is empty"),
        ({"client": np.arange(8), "x_test": noise(2, 8, 8)}, "lacks y_test, client_test beside x_test"),
    ],
)
def test_archives_whose_clients_cannot_be_read_are_explained(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", x_train=noise(8, 8, 8), y_train=np.arange(8) % 2, **arrays)
    with pytest.raises(UserError, match=message):
        datasets.load(str(tmp_path / "mine.npz"), natural=True)


def test_tables_whose_clients_cannot_be_read_are_explained(tmp_path):
    table(tmp_path / "mine.parquet", None, [0, 1, 0])
    with pytest.raises(UserError, match=r"mine.parquet has no column 'client' \(it has image, label\)"):
        datasets.load(str(tmp_path / "mine.parquet"), natural=True)
    table(tmp_path / "holes.parquet", ["a", None, "b"], [0, 1, 0])
    with pytest.raises(UserError, match=r"holes.parquet, column 'client': clients are object"):
        datasets.load(str(tmp_path / "holes.parquet"), natural=True)


def test_known_data_have_no_clients_of_their_own():
    with pytest.raises(UserError, match="digits has no clients of its own"):
        datasets.load("digits", natural=True)


# Runs


@pytest.fixture
def sites(tmp_path):
    """Six sites of two classes, twelve images each, and a class that one of them never met."""
    for number, site in enumerate(("oslo", "cork", "essen", "delft", "bergen", "ulm")):
        images(tmp_path / "sites" / site / "cat", 6 if number else 12, seed=number)
        if number:
            images(tmp_path / "sites" / site / "dog", 6, seed=100 + number)
    return tmp_path / "sites"


def test_batches_follow_the_names_a_list_a_file_or_the_seed(sites, tmp_path):
    (tmp_path / "order.txt").write_text("ulm\noslo\n\ncork \nessen\ndelft\nbergen\n")
    listed = ["ulm", "oslo", "cork", "essen", "delft", "bergen"]
    by = {}
    for order in ("names", str(tmp_path / "order.txt"), listed, "seed"):
        settled = config(sites, "4+2", order=order)
        parts = divide(settled, open_data(settled))
        by[str(order)] = [[parts.names[k] for k in batch] for batch in settled.plan().batches]
    assert by["names"] == [["bergen", "cork", "delft", "essen"], ["oslo", "ulm"]]
    assert by[str(tmp_path / "order.txt")] == by[str(listed)] == [listed[:4], listed[4:]]
    drawn = {tuple(config(sites, "4+2", seed=seed).plan().batch(2)) for seed in range(8)}
    assert len(drawn) > 3


def test_a_file_of_names_is_taken_over_into_the_configuration(sites, tmp_path):
    (tmp_path / "order.txt").write_text("b\na\n")
    written = config(sites, "1+1", order=str(tmp_path / "order.txt"))
    assert written.order == ("b", "a") and written.protocol()["order"] == '["b", "a"]'
    (tmp_path / "order.txt").unlink()
    assert build(tomllib.loads(written.toml())) == written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "nowhere.txt"}, "order = nowhere.txt: expected seed, names, a list, or a file of client names"),
        ({"order": "names", "partition": "iid"}, "order: only clients that the data name can be ordered"),
        ({"order": []}, "order: no client is named"),
        ({"order": ["a", 3]}, "order"),
        ({"resize": "squash"}, "resize: Input should be 'pad' or 'crop'"),
        ({"image_size": -1}, "image_size"),
    ],
)
def test_settings_that_cannot_be_are_explained(sites, changes, message):
    with pytest.raises(UserError, match=message):
        config(sites, "4+2", **changes)


@pytest.mark.parametrize(
    ("schedule", "order", "message"),
    [
        ("80+20", "seed", r"the schedule has 100 clients, the data have 6 \(bergen, .* and 1 more\); .*instance 5\+1"),
        ("4+2", ["ulm", "oslo", "cork", "essen", "delft"], "order: bergen is missing; name each of the 6 clients once"),
        ("4+2", ["ulm", "oslo", "cork", "essen", "delft", "ulm"], "order: ulm occurs twice"),
        ("4+2", ["ulm", "olso"], "unknown client in the order 'olso'; did you mean oslo"),
    ],
)
def test_what_does_not_fit_the_data_is_explained_before_anything_is_written(sites, tmp_path, schedule, order, message):
    with pytest.raises(UserError, match=message):
        run(config(sites, schedule, order=order), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_client_with_too_few_images_is_named(sites, tmp_path):
    images(sites / "aachen" / "dog", 2)
    with pytest.raises(UserError, match=r"too few images at aachen \(2 train, 0 test\): every client needs"):
        Workbench(config(sites, "5+2"))


def test_a_run_with_natural_clients_says_what_was_done(sites, tmp_path):
    results = run(config(sites, "4+2", order="names", **{k: v for k, v in TINY.items() if k != "schedule"}),
                  tmp_path / "out")  # fmt: skip
    assert results["batch"] == [1, 1, 1, 1, 2, 2] and results["protocol"]["order"] == "names"
    assert results["environment"]["shape"] == [3, 32, 32]
    assert any("of 1x8x8 fitted to 3x32x32" in note for note in results["environment"]["images"])
