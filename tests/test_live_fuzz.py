"""A bounded part of `make fuzz`: the same messages every time, over every door."""

from fuzz import DOORS, run


def test_no_mutated_message_breaks_a_door_or_gets_through_without_meaning(tmp_path):
    outcomes, faults = run(2_600, seed=1, folder=tmp_path)
    assert faults == []
    for door in DOORS:
        assert outcomes[door, "refused"] > 0, door
        harmless = door == "checkpoint" or outcomes[door, "accepted"] > 0
        assert harmless, f"some mutations are harmless; if none gets in at {door}, nothing was tried"
