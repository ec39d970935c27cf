"""Checkpoints: written whole or not at all, read whole or passed over, and enough to reach the same bits."""

import os
import shutil
import time
import warnings

import pytest
import torch
from conftest import assert_same_bits, comparable, events, final_tensors
from safetensors import SafetensorError
from safetensors import torch as storage

from pfeddsh.errors import UserError
from pfeddsh.federation.run import resume
from pfeddsh.messages import Message, Record
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.files import write_text
from pfeddsh.storage.records import Damaged, digest, read_record, write_record

RECORD = Record({"state:theta": torch.arange(6.0), "memory/3:x": torch.tensor([1, 2])}, {"state": {"a": [1, None]}})


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1000] ^= 4
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


DAMAGE = pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty])


# Files


def test_a_record_is_read_as_it_was_written(tmp_path):
    write_record(tmp_path / "a", RECORD)
    again = read_record(tmp_path / "a")
    assert_same_bits(again.tensors, RECORD.tensors)
    assert again.facts == RECORD.facts


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "a"
    write_record(path, RECORD)
    good = path.read_bytes()
    for position in range(0, 8 * len(good), 13):
        bad = bytearray(good)
        bad[position // 8] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises(Damaged, match=str(path)):
            read_record(path)


def test_a_file_cut_anywhere_is_noticed(tmp_path):
    path = tmp_path / "a"
    write_record(path, RECORD)
    good = path.read_bytes()
    for length in range(0, len(good), 7):
        path.write_bytes(good[:length])
        with pytest.raises(Damaged, match=str(path)):
            read_record(path)


def test_the_checksum_covers_names_types_shapes_and_facts():
    one = Record({"a": torch.zeros(2, 2)}, {"n": 1})
    others = [
        Record({"b": torch.zeros(2, 2)}, {"n": 1}),
        Record({"a": torch.zeros(4)}, {"n": 1}),
        Record({"a": torch.zeros(2, 2, dtype=torch.int32)}, {"n": 1}),
        Record({"a": torch.zeros(2, 2)}, {"n": 2}),
    ]
    assert len({digest(record) for record in [one, *others]}) == 5


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_text_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    write_text(tmp_path / "results.json", "old")
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(UserError, match=r"cannot write .*results.json: No space left"):
        write_text(tmp_path / "results.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.json", "old")]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SafetensorError("No space left")])
def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch, error):
    def half_written(tensors, path, metadata):
        path.write_bytes(b"half")
        raise error

    write_record(tmp_path / "a", RECORD)
    monkeypatch.setattr(storage, "save_file", half_written)
    with pytest.raises(UserError, match="No space left"):
        write_record(tmp_path / "a", Record())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert read_record(tmp_path / "a").facts == RECORD.facts


def test_a_write_broken_off_by_the_user_leaves_the_old_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "a", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_a_record_whose_parts_share_memory_can_be_written(tmp_path):
    shared = torch.arange(3.0)
    write_record(tmp_path / "a", Record({"private/1:gates": shared, "private/2:gates": shared}))
    assert read_record(tmp_path / "a")["private/2:gates"].tolist() == [0, 1, 2]


# The state folder


def parts(value):
    return {"state": Record({"theta": torch.full((500,), float(value))}, {"value": value})}


def test_the_newest_snapshot_counts(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for moment in [(1, 9), (1, 10), (2, 0)]:
        checkpoints.snapshot(moment, parts(sum(moment)))
    moment, found = Checkpoints(tmp_path).latest()
    assert (moment, found["state"].facts) == ((2, 0), {"value": 2})


def test_the_last_two_snapshots_stay_with_the_journal_since_the_older(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for moment in [(1, 1), (1, 2), (1, 3), (1, 4)]:
        checkpoints.round(moment, parts(0))
        if moment != (1, 3):
            checkpoints.snapshot(moment, parts(0))
    assert sorted(path.stem for path in tmp_path.iterdir()) == [
        "round-001-00002", "round-001-00003", "round-001-00004", "snapshot-001-00002", "snapshot-001-00004",
    ]  # fmt: skip


@DAMAGE
def test_a_damaged_snapshot_is_named_and_the_one_before_used(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.snapshot((1, 5), parts(1))
    checkpoints.snapshot((2, 0), parts(2))
    damage(tmp_path / "snapshot-002-00000.safetensors")
    with pytest.warns(UserWarning, match=r"snapshot-002-00000.*using the checkpoint before it"):
        moment, found = checkpoints.latest()
    assert (moment, found["state"].facts) == ((1, 5), {"value": 1})


def test_a_round_that_cannot_be_written_stops_the_run_at_the_next(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)

    def full(*_, **__):
        raise UserError("no space")

    monkeypatch.setattr("pfeddsh.storage.checkpoint.write_record", full)
    checkpoints.round((1, 1), {"state": RECORD})
    with pytest.raises(UserError, match="no space"):
        checkpoints.round((1, 2), {"state": RECORD})


def test_whoever_changes_an_upload_that_is_being_recorded_is_told_and_leaves_no_wrong_round(tmp_path):
    checkpoints, upload = Checkpoints(tmp_path), Message({"delta": torch.ones(3)})
    checkpoints.round((1, 1), {"upload/0": upload})
    upload["delta"].add_(1)
    with pytest.raises(UserError, match="changed an upload in place"):
        checkpoints.round((1, 2), {"upload/0": Message({"delta": torch.ones(3)})})
    assert checkpoints.recorded((1, 1)) is None
    checkpoints.round((1, 1), {"upload/0": Message({"delta": torch.ones(3)})})
    checkpoints.wait()
    assert checkpoints.recorded((1, 1)) is not None


def test_a_live_coordinator_has_its_journal_before_it_goes_on(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, strict=True)

    def slowly(*args, **options):
        time.sleep(0.1)
        write_record(*args, **options)

    monkeypatch.setattr("pfeddsh.storage.checkpoint.write_record", slowly)
    checkpoints.round((1, 1), {"state": RECORD})
    assert checkpoints.recorded((1, 1)) is not None


def test_nothing_written_means_nothing_found(tmp_path):
    checkpoints = Checkpoints(tmp_path / "state")
    assert checkpoints.latest() is None
    assert checkpoints.recorded((1, 1)) is None


def test_snapshots_within_a_step_wait_for_the_interval(tmp_path):
    assert not Checkpoints(tmp_path, interval=1000).due((1, 1))
    assert Checkpoints(tmp_path, interval=-1).due((1, 1))


# A run continued from what is left

JOURNAL = {"rounds_later": 4}  # of several rounds after the last snapshot


@pytest.fixture
def unfinished(reference, tmp_path):
    """A copy of a FedPer run that lost its results and everything after the third round of its last step."""
    out = shutil.copytree(reference("fedper", **JOURNAL).out, tmp_path / "run")
    for name in ("results.json", "state/snapshot-004-00000.safetensors", "state/round-003-00004.safetensors"):
        (out / name).unlink()
    return out


def assert_same_end(out, finished):
    assert comparable(resume(out)) == comparable(finished.results)
    assert_same_bits(final_tensors(out), final_tensors(finished.out))
    assert events(out) == events(finished.out)


def test_snapshot_and_journal_lead_to_the_same_end(unfinished, reference):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_same_end(unfinished, reference("fedper", **JOURNAL))


@DAMAGE
def test_a_run_with_a_damaged_last_snapshot_reaches_the_same_end(tmp_path, reference, damage):
    out = shutil.copytree(reference("fedper", **JOURNAL).out, tmp_path / "run")
    (out / "results.json").unlink()
    damage(out / "state" / "snapshot-004-00000.safetensors")
    with pytest.warns(UserWarning, match="snapshot-004-00000"):
        assert_same_end(out, reference("fedper", **JOURNAL))


@DAMAGE
def test_a_damaged_round_is_computed_again(unfinished, reference, damage):
    damage(unfinished / "state" / "round-003-00002.safetensors")
    with pytest.warns(UserWarning, match=r"round-003-00002.*computing that round again"):
        assert_same_end(unfinished, reference("fedper", **JOURNAL))


def test_a_run_with_no_usable_snapshot_starts_again_and_reaches_the_same_end(unfinished, reference):
    flip_a_bit(unfinished / "state" / "snapshot-003-00000.safetensors")
    with pytest.warns(UserWarning, match="snapshot-003-00000"):
        assert_same_end(unfinished, reference("fedper", **JOURNAL))


def test_a_torn_last_line_of_the_event_log_is_dropped(unfinished, reference):
    log = unfinished / "events.jsonl"
    log.write_text(log.read_text()[:-30])
    assert_same_end(unfinished, reference("fedper", **JOURNAL))


def test_what_a_killed_process_left_half_written_is_cleared_away(unfinished):
    (unfinished / "state" / ".snapshot-003-00003.safetensors.4711.tmp").write_bytes(b"half")
    resume(unfinished)
    assert not list(unfinished.rglob("*.tmp"))


def test_snapshots_within_a_step_do_not_change_the_results(reference, tmp_path, monkeypatch):
    out = shutil.copytree(reference("fedper", **JOURNAL).out, tmp_path / "run")
    for path in [out / "results.json", out / "events.jsonl", *(out / "state").rglob("*.*")]:
        path.unlink()
    monkeypatch.setattr(Checkpoints, "due", lambda *_: True)
    assert_same_end(out, reference("fedper", **JOURNAL))


def test_a_run_that_has_ended_keeps_its_last_state_alone(reference, tmp_path):
    finished = reference("fedper", **JOURNAL)
    out = shutil.copytree(finished.out, tmp_path / "run")
    Checkpoints(out / "state").thin()
    assert [path.name for path in (out / "state").glob("*.safetensors")] == ["snapshot-004-00000.safetensors"]
    assert_same_bits(final_tensors(out), final_tensors(finished.out))
