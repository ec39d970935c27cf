"""The documentation site: it builds strictly, loads nothing from elsewhere, and its notebooks and figures are true."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from axe import serious
from nbclient import NotebookClient
from test_imports import imports, package

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "docs" / "tools"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LOADED = re.compile(r'<(?:script|img|iframe|link (?!rel="canonical"))[^>]*(?:src|href)="(?:https?:)?//')


def test_the_site_builds_strictly_works_offline_and_keeps_nobody_out(tmp_path, browser):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "quick-start.html", "own-method.html", "medical.html", "api.html"} <= pages.keys()
    assert not {name: found[0] for name, page in pages.items() if (found := LOADED.findall(page))}
    assert "Continue an interrupted run" in pages["api.html"] and "Dirichlet concentration" in pages["api.html"]
    assert pages["concepts.html"].count('<svg xmlns="http://www.w3.org/2000/svg" class="figure"') == 6
    assert "zero-shot PA" in pages["quick-start.html"]
    page = browser.new_page()
    page.goto((tmp_path / "site" / "start.html").as_uri())
    assert serious(page) == set()
    page.close()


def test_figures_are_as_the_script_draws_them():
    script = runpy.run_path(str(TOOLS / "figures.py"))
    drawn = {path.stem: path.read_text() for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert drawn == {name: script["svg"](name) for name in script["DRAWN"]}


def test_in_the_picture_of_the_house_imports_point_downwards():
    floors = runpy.run_path(str(TOOLS / "figures.py"))["FLOORS"]
    rows = [[re.sub(r"/|\.py", "", name) for room, _, _ in floor for name in room.split(", ")] for floor in floors]
    level = {name: row for row, names in enumerate(rows) for name in names}
    up = [
        (a, b)
        for a, wanted in imports().items()
        for b in wanted
        if level.get(package(a), -1) > level.get(package(b), 99)
    ]
    assert len(level) == 11 and not up


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_run(path, tmp_path, monkeypatch):
    """In a kernel of their own, with fewer rounds; they leave what the stored ones show, in the same places."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    stored = [[output.output_type for output in cell.get("outputs", [])] for cell in notebook.cells]
    for cell in notebook.cells:
        cell.source = re.sub(r'(rounds_(?:first|later)"?[=:] ?)\d+', r"\g<1>2", cell.source)
    done = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [[output.output_type for output in cell.get("outputs", [])] for cell in done.cells] == stored
    assert sum(map(len, stored)) >= 2
