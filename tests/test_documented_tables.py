"""The tables in README and docs: made from the runs in results/, and as the script makes them now."""

import runpy
from pathlib import Path

import pytest
from fabricate import results, write

from pfeddsh.report.grouping import group_runs
from pfeddsh.report.read import gather

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "results" / "tables.py"))


def cells(folder):
    groups, _ = group_runs(gather([folder])[0])
    return {(group.setting.dataset, group.schedule, cell.label): cell for group in groups for cell in group.cells}


def rows(text):
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines()]
    return lines[0], lines[2:]


def test_methods_are_ordered_by_everyone_at_the_end_and_the_best_is_bold(script, tmp_path):
    for method, drift in {"fedavg": -9.0, "fedper": 3.0, "fedrep": -4.0}.items():
        write(tmp_path / method, results(method, "80+20", drift=drift))
    headings, lines = rows(script["main_table"](cells(tmp_path), "cifar10", "80+20"))
    assert [line[0] for line in lines] == ["FedPer", "FedRep", "FedAvg"]
    best = results("fedper", "80+20", drift=3.0)
    found = dict(zip(headings, lines[0], strict=True))
    assert found["everyone at the end, %"] == f"**{best['acc_end_mean']:.1f}**"
    assert found["lost > 2 points, %"] == "0"
    assert found["3+ visits"] == f"{best['pa_sampled'][1]:+.1f}"
    assert "zero-shot" not in headings


def test_a_column_that_says_nothing_new_is_left_out(script, tmp_path):
    write(tmp_path / "run", results("pefll", "8+2x3") | {"pa_zero_shot": [-60.0, 1.0, 3.0]})
    headings, lines = rows(script["main_table"](cells(tmp_path), "cifar10", "8+2x3"))
    assert "3+ visits" not in headings, "everyone was sampled often"
    assert dict(zip(headings, lines[0], strict=True))["zero-shot"] == "+2.0"


def test_the_readme_shows_what_the_runs_say(script):
    assert script["main_table"](cells(ROOT / "results"), "cifar10", "80+20") in (ROOT / "README.md").read_text()
