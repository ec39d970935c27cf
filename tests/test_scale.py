"""What grows with the federation: the store of client records, a sample of existing clients, offers on record."""

import shutil

import pytest
import torch
from conftest import assert_same_bits, final_tensors, tiny

from pfeddsh.errors import UserError
from pfeddsh.federation.panel import panel
from pfeddsh.federation.run import run
from pfeddsh.live.coordinator.offers import Offers
from pfeddsh.messages import Message, Record, bundle
from pfeddsh.progress import table
from pfeddsh.results import rows
from pfeddsh.results.sampled import standard_error
from pfeddsh.storage import store as storage
from pfeddsh.storage.records import Damaged
from pfeddsh.storage.store import Own, Store


def record(value: float) -> Record:
    return Record({"x": torch.full((50,), value)}, {"value": value})


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(storage, "PACK", 4)


# The store


def test_only_what_changed_is_written_and_the_rest_is_found_again(tmp_path, small):
    store = Store(tmp_path / "s")
    store.update({f"memory/{k}": record(k) for k in range(12)})
    first = store.flush()
    store["memory/5"] = record(500)
    second = store.flush()
    assert len(first) == 3 and second[:3] == first and len(second) == 4, "three packs of four, and one with the change"
    again = Store(tmp_path / "s")
    again.adopt(second, sure=first)
    expected = {f"memory/{k}": record(500 if k == 5 else k) for k in range(12)}
    assert_same_bits(bundle(again).tensors, bundle(expected).tensors)
    assert sorted(Own(again, "memory")) == list(range(12)) and Own(again, "memory")[5].facts == {"value": 500}
    older = Store(tmp_path / "s")
    older.adopt(first)
    assert older["memory/5"].facts == {"value": 5}, "what an older snapshot names is still there"
    again.sweep(second)
    assert {path.name for path in (tmp_path / "s").iterdir()} == set(second)


def test_what_is_left_of_outdated_packs_moves_on_and_they_go(tmp_path, small):
    store = Store(tmp_path)
    store.update({f"memory/{k}": record(k) for k in range(8)})
    store.flush()
    for round in range(20):
        store["memory/1"] = record(100 + round)
        store["memory/6"] = record(200 + round)
        store.sweep(store.flush())
    assert len(list(tmp_path.iterdir())) <= 5
    again = Store(tmp_path)
    again.adopt(store.flush())
    assert {key: own.facts["value"] for key, own in again.items()} == {
        **{f"memory/{k}": k for k in (0, 2, 3, 4, 5, 7)}, "memory/1": 119, "memory/6": 219,
    }  # fmt: skip


def test_nothing_of_a_deleted_record_stays_on_disk(tmp_path, small):
    def on_disk(value: int) -> bool:
        return f'"value\\": {value}'.encode() in b"".join(path.read_bytes() for path in tmp_path.iterdir())

    store = Store(tmp_path)
    store.update({f"memory/{k}": record(1000 + k) for k in range(4)})
    store.flush()
    store["memory/2"] = record(2002)
    store.sweep(store.flush())
    assert on_disk(1002) and on_disk(2002), "an outdated one in one pack, the last in another"
    del store["memory/2"]
    store.sweep(packs := store.flush())
    assert not on_disk(1002) and not on_disk(2002) and on_disk(1001)
    again = Store(tmp_path)
    again.adopt(packs)
    assert sorted(again) == ["memory/0", "memory/1", "memory/3"]
    store["memory/1"] = record(3001)
    store.purge()
    store.sweep(store.flush())
    assert not on_disk(1001) and on_disk(3001) and on_disk(1000)


def test_memory_is_bounded_whatever_is_put_in(tmp_path, small):
    store = Store(tmp_path, room=1000)  # five records
    for k in range(40):
        store[f"memory/{k}"] = record(k)
    assert len(store) == 40 and len(store._changed) + len(store._recent) <= 11
    assert [store[f"memory/{k}"].facts["value"] for k in range(40)] == list(range(40))
    assert len(store._recent) <= 5


@pytest.mark.parametrize("position", [0.05, 0.5, 0.99])
def test_a_damaged_pack_is_noticed_when_it_is_new_and_else_when_it_is_read(tmp_path, position):
    store = Store(tmp_path)
    store.update({f"memory/{k}": record(k) for k in range(4)})
    (pack,) = store.flush()
    content = bytearray((tmp_path / pack).read_bytes())
    content[int(position * len(content))] ^= 4
    (tmp_path / pack).write_bytes(content)
    with pytest.raises(Damaged, match=pack):
        Store(tmp_path).adopt([pack])
    with pytest.raises((Damaged, UserError), match=pack):
        again = Store(tmp_path)
        again.adopt([pack], sure=[pack])
        dict(again)


def test_a_run_whose_newest_pack_is_gone_goes_back_to_the_snapshot_before(reference, tmp_path):
    from conftest import comparable

    from pfeddsh.federation.run import resume

    finished = reference("fedper")
    out = shutil.copytree(finished.out, tmp_path / "run")
    (out / "results.json").unlink()
    max((out / "state" / "clients").iterdir(), key=lambda path: path.stat().st_mtime_ns).unlink()
    with pytest.warns(UserWarning, match="using the checkpoint before it"):
        assert comparable(resume(out)) == comparable(finished.results)
    assert_same_bits(final_tensors(out), final_tensors(finished.out))


def test_rows_come_back_to_the_bit():
    told = {"acc": [None, 100 / 3, 0.0], "siblings/acc_unguarded": [None, None, None]}
    assert rows.unpack(rows.pack({name: rows.told(row) for name, row in told.items()}), 3) == told


# A sample of existing clients


def test_the_sample_follows_from_the_seed_and_stays_as_others_join():
    before, after = panel(0, range(1000), 50), panel(0, range(1200), 50)
    assert before == sorted(set(before)) and len(before) == 50 and before != panel(1, range(1000), 50)
    assert {k for k in after if k < 1000} <= set(before), "only newcomers take a place"
    assert panel(0, [3, 1], 5) == [3, 1]
    assert 350 < sum(panel(3, range(1000), 500)) / 500 < 650


def test_the_standard_error_is_that_of_a_finite_population():
    assert standard_error([1.0], 10) is None and standard_error([1.0, 2.0, 3.0], 3) == 0
    assert standard_error([1.0, 2.0, 3.0, 4.0], 10**9) == pytest.approx(0.6455, abs=1e-4)


FEW = {"schedule": "8+2+2", "rounds_first": 3, "rounds_later": 2}


@pytest.mark.parametrize("method", ["pfeddsh", "fedper"])
def test_who_is_in_the_sample_has_the_accuracy_it_has_when_all_are_evaluated(method, tmp_path):
    full = run(tiny(method, **FEW), tmp_path / "full")
    some = run(tiny(method, **FEW, evaluate=3), tmp_path / "some")
    for step, (row, whole) in enumerate(zip(some["acc"], full["acc"], strict=True), 1):
        seen = {k for k, a in enumerate(row) if a is not None}
        existing = [k for k, joined in enumerate(full["batch"]) if joined < step]
        assert seen == {*(k for k, joined in enumerate(full["batch"]) if joined == step), *panel(0, existing, 3)}
        assert [row[k] for k in seen] == [whole[k] for k in seen]
    assert some["pa"] == full["pa"] and "evaluated" not in full and some["protocol"]["evaluate"] == 3
    told = some["evaluated"]
    assert told["existing"] == [0, 8, 10]
    assert some["acc_end_mean"] == told["acc_everyone"][-1] and told["acc_everyone_error"][-1] > 0
    assert "sample of 3" in str(table(some).caption) and table(full).caption != table(some).caption


# Offers on record


def model(value: float) -> Message:
    return Message({"theta": torch.full((100,), value)})


def test_an_offer_is_a_line_and_its_model_one_file_however_many_get_it(tmp_path):
    offers = Offers(tmp_path / "offers")
    offers.make(1, dict.fromkeys(range(50), model(1)))
    log = tmp_path / "offers" / "log.jsonl"
    size = log.stat().st_size
    assert offers.answer(1, 7, True) and not offers.answer(1, 7, True)
    assert log.stat().st_size - size < 100, "an answer costs a line"
    offers.make(2, {7: model(2), 8: model(2)})
    assert len(list((tmp_path / "offers").glob("*.safetensors"))) == 2
    counted = {"made": 52, "accepted": 1, "declined": 0, "pending": 50}
    with log.open("a") as file:
        file.write('{"client": 9, "st')  # killed while it wrote
    for found in (offers, Offers(tmp_path / "offers")):
        assert found.counts() == counted and found.last(8) == "pending" and found.last(7) == "pending"
        assert found.of(7)[0] == 2 and found.of(9)[1].same(model(1))
    offers.forget(8)
    assert '"client": 8,' not in log.read_text() and offers.counts()["made"] == 50


def test_a_model_that_is_missing_is_named(tmp_path):
    offers = Offers(tmp_path / "offers")
    offers.make(1, {0: model(1)})
    next((tmp_path / "offers").glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="missing; restore"):
        Offers(tmp_path / "offers")
