"""`pfeddsh demo` in small: the result first, whoever wins, and what was computed is not computed again."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from pfeddsh.compare import demo
from pfeddsh.compare.demo import NAMES, Outcome

SMALL = {"rounds_first": 1, "rounds_later": 1, "sample_fraction": 0.5, "alpha": 0.5, "lr": 0.05}
OURS = Outcome("pfeddsh", 95.0, 97.0, 97.0, 96.5, 1.0, 96.7)
THEIRS = Outcome("fedavg", None, 93.0, 92.0, 74.0, 48.0, 74.1)


def shown(out):
    text = io.StringIO()
    demo.demonstrate(out, Console(file=text, width=300))
    return text.getvalue()


def test_the_demo_opens_with_the_result_and_goes_on_from_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SETTING", SMALL)
    monkeypatch.setattr(demo, "SCHEDULE", "4+2x1")
    told = shown(tmp_path / "demo")
    sentence, page = (told.index(words) for words in ("pFedDSH: ", "The page: "))
    assert sentence < page < told.index("change of existing clients")
    assert (tmp_path / "demo" / "report.html").exists()
    assert all(name in told for name in NAMES.values())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").glob("*/results.json")}
    assert len(before) == len(NAMES)
    again = shown(tmp_path / "demo")
    assert again[again.index("pFedDSH: ") :] == told[sentence:]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_sentence_is_exact_whoever_wins():
    won = demo.sentence([OURS, THEIRS])
    assert won.startswith("pFedDSH: best for everyone, 96.7 % at the end (next: FedAvg, 74.1 %)")
    assert "newcomers had 95.0 % before their first round, 97.0 % after their step" in won
    assert won.endswith("1 % of existing clients lost more than 2 points in a step, 48 % under FedAvg.")
    lost = demo.sentence([replace(THEIRS, everyone=98.0), OURS])
    assert lost.startswith("pFedDSH: 96.7 % for everyone at the end (best: FedAvg, 98.0 %)")


def test_an_outcome_is_of_the_right_clients(reference):
    run = reference("pfeddsh").results
    found = demo.outcome(run)
    later, existing = (
        [k for k, b in enumerate(run["batch"]) if keep(b)] for keep in (lambda b: b > 1, lambda b: b < 3)
    )
    assert found.end == pytest.approx(sum(run["acc"][-1][k] for k in existing) / len(existing))
    assert found.after == pytest.approx(sum(run["acc"][run["batch"][k] - 1][k] for k in later) / len(later))
    assert found.everyone == run["acc_end_mean"] and found.at_once is not None


def test_the_figure_has_bars_to_both_sides():
    lines = demo.figure([replace(OURS, end=99.0), THEIRS]).plain.splitlines()[1:]
    assert lines[0].endswith(" +2.0") and lines[1].endswith(" -18.0")
    assert lines[0].index("\u2502") < lines[0].index("\u2588") and lines[1].index("\u2588") < lines[1].index("\u2502")
