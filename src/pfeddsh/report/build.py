"""From the places a user names to files: read, group, tabulate, draw, and only then write."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pfeddsh.errors import UserError
from pfeddsh.report import page, tables
from pfeddsh.report.grouping import group_runs
from pfeddsh.report.read import gather
from pfeddsh.report.summary import sentences
from pfeddsh.report.writers import FORMATS
from pfeddsh.storage.files import write_text


class Built(NamedTuple):
    """What was made, and what to tell the user."""

    runs: int
    tables: Path
    problems: list[str]
    summary: list[str]


def build(places: Sequence[Path], out: Path, command: str) -> Built:
    """Write the page and its tables; a file that cannot be written leaves the one before it as it was."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; give the page a name, for instance --out {out / 'page.html'}")
    runs, unread = gather(places)
    groups, odd = group_runs(runs)
    made = tables.build(groups)
    text = page.render(groups, made, unread + odd, command)
    folder = out.with_name(f"{out.stem}-tables")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out.parent}: {error.strerror or error}; choose another --out") from error
    for table in made:
        for kind, write in FORMATS.items():
            write_text(folder / f"{table.name}.{kind}", write(table))
    write_text(out, text)
    summary = [f"{g.setting.dataset}, {g.schedule}: {line}" for g in groups for line in sentences(g)]
    return Built(len(runs), folder, unread + odd, summary)


def beside(folder: Path) -> Path:
    """The page of a finished run or comparison, in its own folder and without the files of tables."""
    runs, unread = gather([folder])
    groups, odd = group_runs(runs)
    out = folder / "report.html"
    write_text(out, page.render(groups, tables.build(groups), unread + odd, typed([folder], out)))
    return out


def typed(places: Sequence[Path], out: Path) -> str:
    """What one would type to make the page again."""
    return shlex.join(["pfeddsh", "report", *map(str, places), "--out", str(out)])
