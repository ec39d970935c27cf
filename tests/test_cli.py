"""The command line: what it shows, and mistakes that end with an explanation instead of a traceback."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import comparable, tiny
from PIL import Image

from pfeddsh import cli
from pfeddsh.configure import build
from pfeddsh.data.known import names
from pfeddsh.methods.registry import METHODS
from pfeddsh.storage.files import locked
from pfeddsh.values import read


@pytest.fixture
def pfeddsh(monkeypatch, capsys):
    """Run the command line in this process; returns exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfeddsh", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = capsys.readouterr()
        return end.value.code or 0, output.out, output.err

    return command


def refused(answer):
    """The explanation of a command that ended with a mistake of the user."""
    code, _, errors = answer
    assert code == 2
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    return errors


def test_help_names_the_commands(pfeddsh):
    code, text, _ = pfeddsh("--help")
    assert code == 0
    for name in ("run", "resume", "report", "methods", "data"):
        assert name in text


def test_methods_are_listed(pfeddsh):
    code, text, _ = pfeddsh("methods")
    assert code == 0
    assert all(name in text for name in METHODS)
    assert "every client alone" in text


def test_datasets_are_listed(pfeddsh):
    code, text, _ = pfeddsh("data", "list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()][1:-1] == names()


def test_data_show_tells_who_owns_what(pfeddsh):
    code, text, _ = pfeddsh("data", "show", "digits", "--schedule", "6+2", "--set", "partition=classes=2")
    assert code == 0
    assert "who owns what" in text
    assert "8 clients with" in text


def sites(folder):
    """Three sites, named so that sorting matters, with a broken image at one of them."""
    for number, site in enumerate(("site-10", "site-2", "[red]")):
        for name in ("cat", "dog"):
            (folder / site / name).mkdir(parents=True)
            for at in range(6):
                Image.new("L", (20, 10), 40 * number + at).save(folder / site / name / f"{at}.png")
    (folder / "site-2" / "dog" / "0.png").write_bytes(b"broken")
    return folder


def test_data_show_names_natural_clients_shapes_and_what_was_left_out(pfeddsh, tmp_path):
    arguments = ("data", "show", sites(tmp_path / "sites"), "--partition", "natural")
    assert "site-2/dog/0.png: not a readable image" in refused(pfeddsh(*arguments))
    code, text, _ = pfeddsh(*arguments, "--skip-unreadable")
    assert code == 0
    assert "sites: 29 train and 6 test, 2 classes, of 3 clients" in text
    assert "sites: 35 images of 1x10x20 fitted to 3x32x32 (channels x height x width)" in text
    _, other, _ = pfeddsh(*arguments, "--skip-unreadable", "--model", "mlp")
    assert "sites: 35 images of 1x10x20 (channels x height x width), as they are" in other
    assert "sites: 1 of 30 train images could not be read and are left out: site-2/dog/0.png" in text
    rows = [line.replace("\u2502", " ").split() for line in text.splitlines()]
    assert [row[0] for row in rows if len(row) > 4 and row[0] in ("[red]", "site-2", "site-10")] == [
        "[red]",
        "site-2",
        "site-10",
    ]


def test_a_run_begins_with_what_was_done_to_the_images(pfeddsh, tmp_path):
    settings = ("--set", "rounds_first=1", "--set", "engine=serial", "--set", "order=names", "--set", "resize=crop")
    arguments = ("--partition", "natural", "--schedule", "all", "--method", "fedavg", "--skip-unreadable")
    out = tmp_path / "out"
    code, text, _ = pfeddsh("run", "--dataset", sites(tmp_path / "sites"), *arguments, *settings, "--out", out)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("sites: ") and lines[0].endswith("2 classes, of 3 clients")
    assert "resized, cut at the sides, grey repeated in three channels" in lines[1]
    results = json.loads((out / "results.json").read_text())
    assert results["schedule"] == "3" and results["protocol"]["skip_unreadable"] is True
    assert any("could not be read" in note for note in results["environment"]["images"])
    assert "cut at the sides" in (out / "report.html").read_text()


def test_only_natural_clients_can_be_scheduled_without_counting(pfeddsh):
    assert "schedule 'all': cannot read" in refused(pfeddsh("run", "--schedule", "all"))


def test_lenet_takes_one_size_alone(pfeddsh):
    assert "image_size = 64: lenet takes images of 32x32 alone" in refused(pfeddsh("run", "--set", "image_size=64"))


def test_data_show_draws_a_picture(pfeddsh, tmp_path):
    code, text, _ = pfeddsh("data", "show", "--schedule", "6+2", "--draw", tmp_path / "who.png")
    assert code == 0
    assert f"drawn to {tmp_path / 'who.png'}" in text
    assert Image.open(tmp_path / "who.png").width > 500


def test_a_run_takes_a_file_options_and_assignments_the_later_ones_winning(pfeddsh, tmp_path):
    (tmp_path / "mine.toml").write_text(tiny("fedper", schedule="6+2", seed=5, lr=0.5, alpha=0.3).toml())
    out = tmp_path / "run"
    code, text, _ = pfeddsh(
        "run", tmp_path / "mine.toml", "--method", "fedavg", "--seed", 7, "--out", out,
        "--set", "rounds_first=2", "--set", "rounds_later=1", "--set", "later=frozen",
    )  # fmt: skip
    assert code == 0
    assert "fedavg on digits, 6+2, seed 7" in text
    assert f"results in {out}" in text
    config = build(read(out / "config.toml"))
    assert (config.method, config.seed, config.lr, config.alpha, config.later) == ("fedavg", 7, 0.5, 0.3, "frozen")
    assert (config.rounds_first, config.rounds_later) == (2, 1)
    results = json.loads((out / "results.json").read_text())
    assert f"{results['pa'][1]:+.2f}" in text
    assert "+0.00" in text  # RI of a frozen federation
    assert f"report page: {out / 'report.html'}" in text
    page = (out / "report.html").read_text()
    assert re.search(rf"fedavg.* is the only method here: .*, PA .{abs(results['pa'][1]):.2f} \(1 seed\)", page)


def test_the_configuration_of_a_run_runs_again_to_the_same_results(pfeddsh, reference, tmp_path):
    finished = reference("fedavg")
    code, _, _ = pfeddsh("run", finished.out / "config.toml", "--out", tmp_path / "again")
    assert code == 0
    assert comparable(json.loads((tmp_path / "again" / "results.json").read_text())) == comparable(finished.results)


def test_resuming_a_finished_run_shows_its_table(pfeddsh, reference, tmp_path):
    code, text, _ = pfeddsh("resume", shutil.copytree(reference("fedper").out, tmp_path / "run"))
    assert code == 0
    assert "fedper on digits, 6+2x2, seed 0" in text


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (["--method", "fedperr"], "unknown method 'fedperr'; did you mean fedper"),
        (["--dataset", "cifar11"], "unknown dataset 'cifar11'; did you mean cifar10"),
        (["--dataset", "no/such/folder"], "no dataset at no/such/folder"),
        (["--schedule", "80+"], "schedule '80+': cannot read ''"),
        (["--schedule", "[bold]80"], "schedule '[bold]80': cannot read"),
        (["--schedule", "80+[/x]"], "cannot read '[/x]'"),
        (["--set", "rounds_frist=3"], "command line: unknown key 'rounds_frist'; did you mean rounds_first"),
        (["--set", "alpha=large"], "command line: alpha: Input should be a valid number"),
        (["--set", "alpha"], "--set alpha: write key=value"),
        (["--set", "options=3"], "options"),
        (["--track", "tensorbord"], "unknown tracker 'tensorbord'; did you mean tensorboard"),
        (["--seed", "-1"], "seed: Input should be greater than or equal to 0"),
        (["none.toml"], "none.toml: no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_explained_and_leaves_nothing(pfeddsh, tmp_path, monkeypatch, arguments, explanation):
    monkeypatch.chdir(tmp_path)
    assert explanation in refused(pfeddsh("run", *arguments, "--out", "run"))
    assert list(tmp_path.iterdir()) == []


def test_bad_toml_is_explained(pfeddsh, tmp_path):
    (tmp_path / "bad.toml").write_text("seed = = 3")
    assert "bad.toml: not valid TOML" in refused(pfeddsh("run", tmp_path / "bad.toml", "--out", tmp_path / "run"))


def test_an_existing_run_is_not_overwritten(pfeddsh, reference, tmp_path):
    out = shutil.copytree(reference("fedavg").out, tmp_path / "run")
    assert f"pfeddsh resume {out}" in refused(pfeddsh("run", "--out", out))


def test_a_folder_without_a_run_cannot_be_resumed(pfeddsh, tmp_path):
    assert "holds no run" in refused(pfeddsh("resume", tmp_path))


def test_a_folder_in_use_is_refused(pfeddsh, tmp_path):
    (tmp_path / "config.toml").write_text(tiny().toml())
    with locked(tmp_path):
        assert "in use by another process" in refused(pfeddsh("resume", tmp_path))


def test_an_interruption_says_how_to_go_on(pfeddsh, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pfeddsh.federation.run.run", interrupted)
    code, _, errors = pfeddsh("run", "--out", tmp_path / "run")
    assert code == 130
    assert f"pfeddsh resume {tmp_path / 'run'}" in errors


def test_the_installed_command_ends_with_an_explanation_too():
    command = Path(sys.executable).with_name("pfeddsh")
    done = subprocess.run([command, "run", "--method", "fedperr"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown method 'fedperr'; did you mean fedper")
    assert "Traceback" not in done.stderr
