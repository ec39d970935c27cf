"""Wheel and sdist: what is in them, and that what is installed from the wheel runs on its own."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import lacking

import pfeddsh

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
DATA = {".j2", ".css", ".js", ".toml", ".html", ".typed"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The two files that a release consists of."""
    try:
        import hatchling.build
    except ModuleNotFoundError:
        lacking("needs the package hatchling")
    folder, before = tmp_path_factory.mktemp("dist"), Path.cwd()
    os.chdir(ROOT)
    try:
        names = hatchling.build.build_wheel(str(folder)), hatchling.build.build_sdist(str(folder))
    finally:
        os.chdir(before)
    return [folder / name for name in names]


def test_they_hold_all_of_the_package_and_nothing_else(built):
    wheel, sdist = built
    files = {path for path in SOURCES.rglob("*") if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts}
    wanted = {str(path.relative_to(SOURCES)) for path in files}
    assert {"pfeddsh/py.typed", "pfeddsh/report/page.html.j2", "pfeddsh/live/app/pyproject.toml"} <= wanted
    inside = set(zipfile.ZipFile(wheel).namelist())
    about = f"pfeddsh-{pfeddsh.__version__}.dist-info"
    assert {name for name in inside if not name.startswith(about)} == wanted
    assert f"{about}/licenses/LICENSE" in inside
    with tarfile.open(sdist) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    assert {f"src/{name}" for name in wanted} | {"pyproject.toml", "README.md", "LICENSE"} <= packed


def test_what_the_wheel_installs_runs(built, tmp_path):
    """Without its dependencies, which are those of this environment; `make package` installs all of it."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*pip, str(built[0])], check=True)
    command = "import pfeddsh, sys; from pfeddsh.cli import main; print(pfeddsh.__file__); sys.argv[1:] = ['--version']"
    own = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", f"{command}; main()"], env=own, cwd=tmp_path, capture_output=True)
    place, version = told.stdout.decode().splitlines()
    assert Path(place).is_relative_to(tmp_path) and version == f"pfeddsh {pfeddsh.__version__}"
    assert (tmp_path / "bin" / "pfeddsh").exists()
