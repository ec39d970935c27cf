"""Benchmarks that reach into the package still run: nobody else would notice that what they use has moved."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def ran(name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, FOLDER / name, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_cost_of_a_step_is_measured_beside_registered_clients_and_survives_a_kill():
    printed = ran("scale.py", "150,300", "--turns", "1")
    assert "| 150 |" in printed and "300 against 150 registered: open" in printed


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_what_each_imports_is_there(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / name), run_name="imported")
