"""README and docs: every command in them parses, names what exists, and runs in small where that is cheap."""

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest
import typer
from fabricate import results, write
from PIL import Image
from typer.testing import CliRunner

from pfeddsh import config
from pfeddsh.cli import app
from pfeddsh.data.known import KNOWN

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|((?:^ {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(pfeddsh [^`]+)`")
SMALL = {"rounds_first": 1, "rounds_later": 1, "engine": "serial"}
COVERED = {  # what needs a federation, a network or minutes, and the test that runs it; all else runs here
    "demo": "test_demo.py",
    "download": "test_data_download.py",
    "--track": "test_tracking.py",
    "--engine": "test_compare.py",
    "serve": "test_live_say.py",
    "join": "test_live_flower.py",
    "leave": "test_live_leave.py",
    "sign": "test_live_signing.py",
    "nodes": "test_live_certs.py",
    "status": "test_live_site.py",
    "doctor": "test_live_doctor.py",
    "predict": "test_live_export.py",
    "export": "test_live_export.py",
}


class Command(NamedTuple):
    page: str
    words: list[str]


def blocks(page: Path) -> list[str]:
    """The code of a page, fenced or indented."""
    return [fenced or re.sub("^ {4}", "", indented, flags=re.M) for fenced, indented in CODE.findall(page.read_text())]


def commands(page: Path, program: str) -> list[Command]:
    """What a page tells the reader to type that starts this program, without settings of the environment before it."""
    found = []
    for line in "\n".join(blocks(page)).replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            start = re.match(rf"(?:sudo -u \w+ )?(?:[A-Z_]+=\S+ )*(?:/\S+/)?{program} (?!=)(.*)", part)
            found += [Command(page.name, shlex.split(start[1], comments=True))] if start else []
    return found


def resolved(words: list[str]) -> tuple[click.Command, list[str], click.Context | None]:
    """The command that these words name, and what is left of them."""
    command: click.Command = typer.main.get_command(app)
    context = None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, context, info_name=words[0])
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    return command, words, context


ALL = [command for page in PAGES for command in commands(page, "pfeddsh")]


def test_commands_are_found() -> None:
    assert len(ALL) > 50 and {command.page for command in ALL} >= {
        "README.md",
        "start.md",
        "operations.md",
        "medical.md",
    }
    with pytest.raises(click.UsageError):
        resolved(["jion", "x"])


def test_every_command_parses() -> None:
    for command in ALL:
        found, words, context = resolved(command.words)
        try:
            found.make_context("pfeddsh", list(words), context)
        except click.UsageError as error:
            pytest.fail(f"{command.page}: pfeddsh {shlex.join(command.words)}: {error.format_message()}")


def test_every_command_named_in_a_sentence_exists_with_its_options() -> None:
    for page in PAGES:
        for text in INLINE.findall(page.read_text()):
            words = [word for word in text.split()[1:] if word not in ("...", "…")]
            found, rest, _ = resolved(words)
            options = {name for parameter in found.params for name in parameter.opts} | {"--help"}
            if any(word.startswith("--install") for word in rest):
                continue
            wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]
            assert not wrong, f"{page.name}: {text}"


def test_every_target_of_make_and_every_script_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        named = re.findall(r"`make ([a-z-]+)`", text) + [c.words[0] for c in commands(page, "make") if c.words]
        assert set(named) <= targets, page.name
        scripts = [shlex.split(found) for found in re.findall(r"`python ([^`]+\.py[^`]*)`", text)]
        for script, *rest in [*scripts, *(c.words for c in commands(page, "python"))]:
            if script.startswith("-"):
                continue
            source = (ROOT / script).read_text()
            lacking = [word for word in rest if word.startswith("--") and f'"{word}"' not in source]
            assert not lacking, f"{page.name}: {script} has no {lacking}"


def test_links_of_pages_outside_the_site_lead_to_files() -> None:
    for page in PAGES[:3]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page.name}: {target}"


def made_up_sites() -> dict[str, np.ndarray]:
    """What the script of the walk-through makes of an archive like PneumoniaMNIST; pixels number the images."""
    counts, number, source = {"train": (150, 250), "val": (200, 300), "test": (100, 300)}, 0, {}
    for split, (normal, sick) in counts.items():
        numbers = np.arange(number, number := number + normal + sick)
        source[f"{split}_labels"] = np.repeat([0, 1], [normal, sick])[:, None]
        source[f"{split}_images"] = np.tile(np.stack([numbers // 256, numbers % 256], 1)[:, None], (1, 28, 14)).astype(
            np.uint8
        )
    script = runpy.run_path(str(ROOT / "examples" / "pneumonia_sites.py"))
    return script["divide"](source, 0)


def test_made_up_sites_are_as_the_table_says_and_use_no_image_twice() -> None:
    sites, script = made_up_sites(), runpy.run_path(str(ROOT / "examples" / "pneumonia_sites.py"))
    for name, size, share, *_ in script["SITES"]:
        own = sites["y_train"][sites["client_train"] == name]
        assert len(own) == size and abs(own.mean() - share) <= 0.5 / size
        assert (sites["client_test"] == name).sum() == script["TEST"]
    plain = sites["x_train"][sites["client_train"] == "site-01"].astype(int)  # its pixels are as published
    numbers = plain[:, 0, 0] * 256 + plain[:, 0, 1]
    assert len(set(numbers)) == len(numbers) and numbers.max() < 400, "training images alone, each once"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder: images, sites, a method, and names of datasets that stand for the embedded digits here."""
    draw = np.random.default_rng(0)
    for path in ("photos/cat", "photos/dog", *(f"hospitals/site-{n}/{c}" for n in range(6) for c in ("cat", "dog"))):
        (tmp_path / path).mkdir(parents=True)
        for number in range(40 if "photos" in path else 4):
            Image.fromarray(draw.integers(0, 255, (8, 8), np.uint8)).save(tmp_path / path / f"{number}.png")
    example = next(block for block in blocks(ROOT / "README.md") if "class FedPer" in block)
    (tmp_path / "mymethod.py").write_text(example)
    (tmp_path / "mynet.py").write_text(
        next(block for block in blocks(ROOT / "docs" / "models.md") if "def factory" in block)
    )
    write(tmp_path / "runs" / "made", results())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    np.savez(tmp_path / "sites.npz", **made_up_sites())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))  # `cache clean` is among the commands
    monkeypatch.setitem(KNOWN, "cifar10", KNOWN["digits"])
    yield tmp_path
    sys.modules.pop("mymethod", None)


def small(words: list[str]) -> list[str]:
    """The same command on few clients and rounds, and in this folder alone."""
    words = [re.sub(r"^\d\d+\+\S+$", "4+2", word).replace("evaluate=500", "evaluate=2").lstrip("/") for word in words]
    if words[0] == "compare":
        return small_comparison(words)
    if words[0] == "run":
        words = [word for i, word in enumerate(words) if "--rounds" not in (word, words[i - 1])]
        words += [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
        words += [] if "--schedule" in words or "config.toml" in " ".join(words) else ["--schedule", "4+2"]
    return words


def small_comparison(words: list[str]) -> list[str]:
    """Plans of the paper are only forecast; others are of one seed on the digits, which its processes know too."""
    if words[1].endswith(".toml"):
        return [*words, *(["--dry-run"] if "--dry-run" not in words else [])]
    if words[1:] == ["--out", "runs/table1"]:
        return ["compare", "--out", "runs/first"]  # the one that was made
    changed = (
        {"--seeds": "0"} if "sites.npz" in words else {"--seeds": "0", "--schedules": "4+2", "--dataset": "digits"}
    )
    for option, value in changed.items():
        if option in words:
            words[words.index(option) + 1] = value
    words += [] if "--schedules" in words else ["--schedules", "4+2"]
    return [*words, "--set", "rounds_first=1", "--set", "rounds_later=1"]


def covered(words: list[str]) -> str | None:
    """The test that runs this command elsewhere."""
    return next((test for word, test in COVERED.items() if word == words[0] or word in words[1:]), None)


def test_what_does_not_run_here_runs_in_the_test_that_is_named() -> None:
    elsewhere = {covered(command.words) for command in ALL} - {None}
    assert elsewhere == set(COVERED.values()), "no exception that nothing needs"
    for word, test in COVERED.items():
        assert re.search(rf"\b{word.strip('-')}", (ROOT / "tests" / test).read_text()), f"{test} has no {word}"


@pytest.mark.parametrize("page", sorted({command.page for command in ALL if not covered(command.words)}))
def test_commands_run(page, folder) -> None:
    runner = CliRunner()
    for words in [command.words for command in ALL if command.page == page and not covered(command.words)]:
        done = runner.invoke(app, small(list(words)))
        assert done.exit_code == 0, f"{words}: {done.output} {done.exception}"
    if page == "medical.md":  # its snippet reads the run just made
        exec(next(block for block in blocks(ROOT / "docs" / page) if "import json" in block), {})


def test_the_plan_of_the_guide_is_one(folder) -> None:
    plan = next(block for block in blocks(ROOT / "docs" / "compare.md") if "[variants]" in block)
    (folder / "plan.toml").write_text(plan)
    done = CliRunner().invoke(app, ["compare", "plan.toml", "--out", "study", "--dry-run"])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert "18 runs" in done.output and not (folder / "study").exists()


@pytest.mark.parametrize("page", ["README.md", "start.md", "tracking.md"])
def test_python_snippets_run(page, folder, monkeypatch) -> None:
    """As pasted; only the embedded digits' protocol is smaller."""
    for key, value in {**SMALL, "schedule": "4+2"}.items():
        monkeypatch.setitem(config.DEMO, key, value)
    snippets = [
        block for block in blocks(ROOT / "docs" / page if page != "README.md" else ROOT / page) if "import " in block
    ]
    for number, snippet in enumerate(block for block in snippets if "class FedPer" not in block):
        (folder / f"snippet{number}.py").write_text(snippet)
        runpy.run_path(str(folder / f"snippet{number}.py"), run_name="snippet")
