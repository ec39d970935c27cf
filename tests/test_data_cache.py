"""The decoded copy: made once, checked at every start, never half there."""

import json
import os
import threading

import numpy as np
import pytest
from conftest import nothing_to_warn_of

from pfeddsh.data import datasets, own, store
from pfeddsh.errors import UserError


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A small dataset of the user's and a cache of its own."""
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8), np.arange(50) % 5
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return tmp_path / "mine.npz"


def copies(path):
    return sorted((path.parent / "cache" / "decoded").iterdir())


def forbid_reading(monkeypatch):
    def fail(*_args):
        raise AssertionError("the source was read again")

    monkeypatch.setattr(own, "read_npz", fail)


def same(one, two):
    arrays = ("x_train", "y_train", "x_test", "y_test", "mean", "std")
    return one.fingerprint == two.fingerprint and all(
        np.array_equal(getattr(one, name), getattr(two, name)) for name in arrays
    )


def test_the_second_load_maps_the_decoded_copy(mine, monkeypatch):
    first = datasets.load(str(mine))
    forbid_reading(monkeypatch)
    second = datasets.load(str(mine))
    assert isinstance(second.x_train, np.memmap) and not second.x_train.flags.writeable
    assert same(first, second)


def test_a_changed_source_is_decoded_anew(mine):
    first = datasets.load(str(mine))
    os.utime(mine, ns=(0, 0))
    assert same(first, datasets.load(str(mine)))
    assert len(copies(mine)) == 2


def test_the_fingerprint_is_of_the_contents(mine, tmp_path):
    first = datasets.load(str(mine))
    arrays = dict(np.load(mine))
    np.savez(tmp_path / "copy.npz", **arrays)
    arrays["x_test"][0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "other.npz", **arrays)
    assert datasets.load(str(tmp_path / "copy.npz")).fingerprint == first.fingerprint
    assert datasets.load(str(tmp_path / "other.npz")).fingerprint != first.fingerprint


def truncate(folder):
    with (folder / "x_train.npy").open("r+b") as file:
        file.truncate(1000)


def garble_header(folder):
    with (folder / "x_train.npy").open("r+b") as file:
        file.write(b"garbage")


def alter_meta(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"classes": 4}))


DAMAGE = {
    "truncated": truncate,
    "header": garble_header,
    "meta altered": alter_meta,
    "meta unreadable": lambda folder: (folder / "meta.json").write_text("{"),
    "meta of another kind": lambda folder: (folder / "meta.json").write_text("[]"),
    "meta lost": lambda folder: (folder / "meta.json").unlink(),
    "labels lost": lambda folder: (folder / "y_test.npy").unlink(),
    "longer": lambda folder: (folder / "y_train.npy").open("ab").write(b"more"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_copy_is_named_and_made_again(mine, monkeypatch, damage):
    first = datasets.load(str(mine))
    x_train = first.x_train.copy()
    (folder,) = copies(mine)
    damage(folder)
    with pytest.warns(RuntimeWarning, match=f"{folder.name} is damaged"):
        second = datasets.load(str(mine))
    assert np.array_equal(second.x_train, x_train) and second.fingerprint == first.fingerprint
    assert copies(mine) == [folder]
    forbid_reading(monkeypatch)
    with nothing_to_warn_of():
        datasets.load(str(mine))


def test_a_failure_while_writing_leaves_nothing(mine, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_fingerprint", full)
        with pytest.raises(UserError, match=r"No space left on device.*PFEDDSH_CACHE"):
            datasets.load(str(mine))
    assert copies(mine) == []
    assert len(datasets.load(str(mine)).x_train) == 50


def test_with_a_cache_that_cannot_be_written_only_the_saving_is_lost(mine, monkeypatch):
    kept = datasets.load(str(mine))
    (mine.parent / "file").write_text("")
    monkeypatch.setenv("PFEDDSH_CACHE", str(mine.parent / "file"))
    with pytest.warns(RuntimeWarning, match=r"cannot write the cache .*set PFEDDSH_CACHE"):
        found = datasets.load(str(mine))
    assert found.fingerprint == kept.fingerprint and np.array_equal(found.x_train, kept.x_train)


def test_two_builders_at_once_both_succeed(mine, monkeypatch):
    """Both find no copy, both build, one rename wins."""
    meet = threading.Barrier(2, timeout=300)
    write = store._write

    def write_together(*arguments):
        write(*arguments)
        meet.wait()

    monkeypatch.setattr(store, "_write", write_together)
    loaded = []
    threads = [threading.Thread(target=lambda: loaded.append(datasets.load(str(mine)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 2 and same(*loaded)
    assert len(copies(mine)) == 1
