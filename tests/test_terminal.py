"""What is printed when a run or a comparison ends: read as a person would, from the text."""

import io

import pytest
from conftest import tiny
from fabricate import NEW, results, write
from rich.console import Console

from pfeddsh import progress
from pfeddsh.compare import summary
from pfeddsh.compare.plan import make
from pfeddsh.progress import table
from pfeddsh.results.metrics import summary as derived

WIDTH = 80


def printed(view):
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(view)
    return out.getvalue()


def row(text, start):
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [start])


def test_a_run_ends_with_the_accuracy_of_everyone_and_who_lost():
    run = results("fedavg", "80+10x2", drift=-2.0)
    text = printed(table(run))
    last = row(text, "11")
    assert last[-1] == f"{run['acc_end_mean']:.1f}"
    assert last[-3:-1] == [f"{run['lost_share'][-1]:.0f}", "%"]
    assert 0 < run["lost_share"][-1] < 100
    assert "zero" not in text.split("accuracies in %")[0]


def test_zero_shot_stands_beside_pa_and_the_table_still_fits():
    run = results("pefll", "80+4x5", drift=-20.0) | {"pa_zero_shot": [-65.02, 1.25, -50.0, 0.0, None]}
    text = printed(table(run))
    assert "\u2026" not in text, "nothing is cut off"
    assert "+1.25" in row(text, "2") and "+0.00" in row(text, "4")


def test_a_finished_run_of_an_older_version_can_be_shown():
    run = results("fedper")
    assert printed(table({key: value for key, value in run.items() if key not in NEW})) == printed(table(run))


def compared(tmp_path, contents, **lists):
    plan = make({"datasets": ["cifar10"], "schedules": ["8+2x3"], "seeds": [0], **lists})
    for run in plan.runs():
        if content := contents.get((run.config.method, run.config.seed)):
            write(tmp_path / run.name, content)
    return printed(summary.table(plan.runs(), tmp_path))


def test_a_comparison_is_ordered_by_everyone_at_the_end(tmp_path):
    low, high = results("fedavg", drift=-9.0), results("fedper", drift=3.0)
    old = {key: value for key, value in high.items() if key not in NEW}
    text = compared(tmp_path, {("fedavg", 0): low, ("fedper", 0): old}, methods=["fedavg", "fedper"])
    assert [line.split()[1] for line in text.splitlines() if line.split()[:1] == ["8+2x3"]] == ["fedper", "fedavg"]
    best = row(text, "8+2x3")
    assert best[2:5] == [f"{high['acc_end_mean']:.2f}", "0", f"{high['pa'][-1]:+.2f}"]
    assert "zero-shot" not in text


def test_a_comparison_shows_zero_shot_where_a_method_has_it_and_says_what_is_missing(tmp_path):
    some = results("pefll", seed=0) | {"pa_zero_shot": [-60.0, 1.0, 2.5]}
    text = compared(tmp_path, {("pefll", 0): some}, methods=["pefll", "fedavg"], seeds=[0, 1])
    found = {line.split()[1]: line.split()[2:] for line in text.splitlines() if line.split()[:1] == ["8+2x3"]}
    assert "zero-shot" in text and "+2.50" in found["pefll"]
    assert "(1)" in found["pefll"], "one of two seeds"
    assert set(found["fedavg"]) == {"-"}


def test_the_line_of_a_run_begins_with_everyone():
    acc = [[50.0, None], [40.0, 70.0]]
    found = {"acc": acc, **derived(acc, [1, 2], [45.0, 60.0])}
    assert summary.line(found) == "everyone 55.00 %  PA +10.00  RI -10.00"


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(("visit", "evaluation", "replay"), [(1.0, 30.0, 0.0), (1.0, 0.01, 500.0), (1.0, 3.0, 20.0)])
def test_the_time_left_counts_evaluations_replay_and_training_alone(monkeypatch, visit, evaluation, replay):
    plan, clock, said = tiny(schedule="20+3x5", rounds_first=10).plan(), Clock(), []
    monkeypatch.setattr(progress, "time", clock)
    line = progress.ProgressLine(plan, "a run", Console(file=io.StringIO()))
    monkeypatch.setattr(line, "_show", lambda text, left: said.append((clock.now, left)))
    alone = sum(plan.rounds(t) * len(plan.cohort(t, 0)) for t in plan.steps) * 1.0
    line.event("controls", {"visits": alone, "over": False})
    for step in plan.steps:
        clock.now += evaluation * len(plan.batch(step))
        for number in range(plan.rounds(step)):
            took = visit * len(plan.cohort(step, number))
            clock.now += took
            told = {"seconds": took, "server_seconds": 0.0, "samples": 1, "loss": 1.0}
            line.event("round", {"step": step, "round": number, **told})
        clock.now += evaluation * len(plan.onboarded(step)) + (replay if step > 1 else 0.0)
        line.event("step", {"step": step, "replay_seconds": replay * (step > 1), "ri": None, "accuracy": 50.0})
    while alone > 0:
        line.event("controls", {"visits": alone, "over": True})
        clock.now, alone = clock.now + 4 * visit, alone - 4
    for at, left in said[plan.rounds(1) + plan.rounds(2) :]:  # whatever there is was seen once
        assert left == pytest.approx(clock.now - at, rel=0.1, abs=5)
    begun = said[0]
    if not replay:
        assert begun[1] == pytest.approx(clock.now - begun[0], rel=0.25), "an opening tells what evaluations cost"
