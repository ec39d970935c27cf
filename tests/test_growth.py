"""The figure of a growing federation: when it is drawn, what it shows, and that a method looks the same everywhere."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from fabricate import results, write
from matplotlib.figure import Figure

from pfeddsh.report import growth
from pfeddsh.report.grouping import group_runs
from pfeddsh.report.looks import looks
from pfeddsh.report.read import gather

SCRIPT = Path(__file__).parents[1] / "results" / "figure.py"


def groups(tmp_path, *contents):
    for number, content in enumerate(contents):
        write(tmp_path / str(number), content)
    return group_runs(gather([tmp_path])[0])[0]


@pytest.mark.parametrize(("schedule", "drawn"), [("8+2", False), ("8+2x1", True), ("2+8", True), ("8", False)])
def test_it_is_drawn_for_schedules_that_grow(tmp_path, schedule, drawn):
    group = groups(tmp_path, results("fedper", schedule), results("fedavg", schedule))[0]
    assert (growth.drawing(group) is not None) == drawn


def test_lines_are_the_first_batch_by_the_number_of_clients(tmp_path):
    runs = [results("fedper", "4+3x2", seed, drift=2.0) for seed in (0, 1)]
    group = groups(tmp_path, *runs)[0]
    axes = Figure().subplots()
    growth.plot(axes, group, group.cells)
    line = axes.lines[0]
    first = [[k for k, joined in enumerate(run["batch"]) if joined == 1] for run in runs]
    expected = [
        np.mean([run["acc"][t][k] for run, members in zip(runs, first, strict=True) for k in members]) for t in range(4)
    ]
    assert list(line.get_xdata()) == [4, 6, 8, 10]
    assert list(line.get_ydata()) == pytest.approx(expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients in the federation", "accuracy of the first batch, %")


def test_panels_that_share_an_axis_show_all_lines(tmp_path):
    flat, steep = groups(tmp_path, results("fedper", "4+2x2", drift=0.0), results("fedper", "4+5x2", drift=-9.0))
    panels = Figure().subplots(1, 2, sharey=True)
    for axes, group in zip(panels, (flat, steep), strict=True):
        growth.plot(axes, group, group.cells)
    low, high = panels[0].get_ylim()
    assert all(low <= y <= high for axes in panels for line in axes.lines for y in line.get_ydata())


def test_a_method_looks_the_same_whoever_stands_beside_it(tmp_path):
    names = ("fedavg", "fedper", "pfeddsh", "pfeddsh-hyper-gate", "pfeddsh-deviation")
    many = groups(tmp_path / "many", *(results(name) for name in names))[0]
    few = groups(tmp_path / "few", *(results(name) for name in ("pfeddsh-deviation", "fedper")))[0]
    styles = {cell.label: looks(many)[cell.id] for cell in many.cells}
    assert {cell.label: looks(few)[cell.id] for cell in few.cells}.items() <= styles.items()
    assert len({(str(style["color"]), str(style["linestyle"])) for style in styles.values()}) == len(names)


def test_the_documentations_figure_is_drawn_from_runs_only(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    script = runpy.run_path(str(SCRIPT))
    groups(tmp_path / "plain", results("fedper", "80+20"))
    script["draw_growth"](script["Runs"](tmp_path / "plain"), tmp_path / "growth.png")
    assert "no runs of a growing federation" in capsys.readouterr().out
    assert not (tmp_path / "growth.png").exists()
    groups(tmp_path / "growing", results("fedper", "20+80"), results("fedavg", "10+9x10"))
    script["draw_growth"](script["Runs"](tmp_path / "growing"), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 10_000
