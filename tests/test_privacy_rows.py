"""What docs/privacy.md says is computed from rows as the benchmarks write them."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "results")]
privacy, membership, privacy_rows, runs = map(
    pytest.importorskip, ("privacy", "membership", "privacy_rows", "runs")
)  # fmt: skip


def made_up(clip, noise, epsilon, accuracies, seed="0"):
    """A row a method."""
    same = {"protocol": "digits", "clip": clip, "noise": noise, "seed": seed, "epsilon": epsilon, "alone": "50"}
    return [
        same | {"method": method, "accuracy": str(accuracy), "uploads": "3" if clip != "0" else ""}
        for method, accuracy in zip(privacy_rows.METHODS, accuracies, strict=True)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """In place of results/."""
    monkeypatch.setattr(runs, "HERE", tmp_path)
    return tmp_path


def keep(folder, found):
    with (folder / "privacy.csv").open("w") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def test_noise_is_useless_up_to_the_last_epsilon_before_any_method_beats_training_alone(folder):
    keep(folder, [
        *made_up("0", "0", "", (90, 80, 85)), *made_up("1", "0", "", (88, 80, 85)),
        *made_up("1", "0.1", "900", (70, 40, 60)), *made_up("1", "0.5", "300", (49, 40, 20)),
        *made_up("0.1", "3", "100", (51, 10, 20)), *made_up("1", "9", "30", (9, 10, 12)),
    ])  # fmt: skip
    assert privacy_rows.useless("digits") == 30, "at 100 one of them is better, whatever follows at 300"
    assert privacy_rows.ahead("digits", "fedavg") == "3 of 4"
    assert privacy_rows.change("digits", 1, 0.1) == -20 and privacy_rows.change("digits", 1) == -2
    assert privacy_rows.table("digits").splitlines()[4] == "| 1 | 0.1 | 900 | 70.0 | 40.0 | 60.0 |"
    with pytest.raises(LookupError):
        privacy_rows.level("digits", 1, 0.2)


def test_a_level_is_the_mean_of_its_seeds_at_the_epsilon_of_whoever_uploaded_most(folder):
    plain = [row for seed in "01" for row in made_up("0", "0", "", (90, 80, 85), seed)]
    keep(folder, [*plain, *made_up("1", "2", "7.5", (50, 40, 30)), *made_up("1", "2", "9.5", (60, 44, 30), "1")])
    assert privacy_rows.levels("digits")[1:] == [(1, 2, 9.5, {"pfeddsh": 55, "fedavg": 42, "fedavg-prior": 30})]
    assert privacy_rows.table("digits").endswith("means of 2 seeds.") and privacy_rows.useless("digits") == 0


def test_rows_of_the_benchmark_are_what_the_document_reads_and_its_models_can_be_attacked(folder, monkeypatch):
    monkeypatch.setitem(privacy.PROTOCOLS, "digits", TINY | {"dataset": "digits"})
    measured = {}
    for method in privacy_rows.METHODS:
        what = "digits", method, 0.5, 0.1, 0
        measured[method] = privacy.row(*what, privacy.measure(*what, folder / "runs"))
    keep(folder, list(measured.values()))
    (level,) = privacy_rows.levels("digits")
    assert level[:3] == (0.5, 0.1, float(measured["fedavg"]["epsilon"])) and level.epsilon > 0
    assert level.accuracy == {method: float(row["accuracy"]) for method, row in measured.items()}
    seen, unseen = membership.losses(folder / "runs" / privacy.name(*what))
    assert len(seen) > len(unseen) > 0 and np.isfinite([*seen, *unseen]).all()


def test_a_guess_of_membership_lies_in_the_range_that_the_document_gives_it():
    draw, trained, others = np.random.default_rng(0), 400, 150
    least, most, low, high = privacy_rows.by_chance(trained, others)
    guesses = [membership.found(draw.random(trained), draw.random(others)) for _ in range(600)]
    areas, caught = np.array(guesses).T
    assert 0.92 < ((areas >= least) & (areas <= most)).mean() < 0.98
    assert 0.92 < ((caught >= low) & (caught <= high)).mean() < 0.98
