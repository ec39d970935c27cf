"""One self-contained HTML page from groups of runs: nothing is loaded from elsewhere.

A picture, one table, and the rest folded. The only script sorts tables; without it the page is complete.
"""

import base64
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from pfeddsh.report import figures, first, images, spark, steps
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.looks import signs
from pfeddsh.report.measures import Spread
from pfeddsh.report.repeat import recipe
from pfeddsh.report.summary import headline, protocol, sentences
from pfeddsh.report.svg import Drawing, variables
from pfeddsh.report.table import Table, Value
from pfeddsh.report.words import together, words
from pfeddsh.report.writers import FORMATS

MEDIA = {"csv": "text/csv", "md": "text/markdown", "tex": "application/x-tex"}


def render(groups: Sequence[Group], tables: Sequence[Table], problems: Sequence[str], command: str) -> str:
    """The whole page."""
    here = files("pfeddsh.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["raw"] = _raw
    template = environment.from_string(here.joinpath("page.html.j2").read_text())
    ordered = sorted(groups, key=lambda group: -len(group.contest))  # the widest comparison first, else as they come
    return template.render(
        style=Markup(here.joinpath("page.css").read_text() + variables()),
        script=Markup(here.joinpath("page.js").read_text()),
        groups=[_group(group, tables) for group in ordered],
        runs=sum(len(cell.runs) for group in groups for cell in group.cells),
        methods=len({cell.variant.method for group in groups for cell in group.cells}),
        problems=problems,
        recipes=[recipe(cell) for group in groups for cell in group.cells],
        downloads=[(table.title, [(kind, _download(table, kind)) for kind in FORMATS], table.name) for table in tables],
        command=command,
    )  # fmt: skip


def _group(group: Group, tables: Sequence[Table]) -> dict[str, Any]:
    found, missing = images.sheets(group)
    run = group.cells[0].runs[0].results
    cells = [cell for cell in group.cells if not cell.variant.settings or cell in group.main.values()]
    matrices = {cell.id: figures.matrix(cell) for cell in cells}
    every = [a for matrix in matrices.values() for row in matrix for a in row if a is not None] or [0.0]
    high = max(every)
    low = max(0.0, min([*every, high - 10]))  # a tenth of a point should not look like a cliff
    picture = first.picture(group)
    unlike = words(group.setting.differs())
    return {
        "id": group.cells[0].id,
        "name": f"{group.setting.dataset}, {group.schedule}{unlike and f', {unlike}'}",
        "protocol": protocol(group.setting),
        "headline": together(headline(group)),
        "picture": _drawing(picture) if picture else None,
        "main": "steps" if steps.single(group) else "standings",
        "signs": signs(group),
        "clients": run.clients,
        "steps": run.steps,
        "sentences": [together(sentence) for sentence in sentences(group)],
        "tables": {table.name: part for table in tables if (part := table.of(group)).rows},
        "drawings": [_drawing(drawing) for drawing in figures.of_group(group)],
        "cards": [_card(cell, matrices[cell.id], low, high) for cell in cells],
        "low": low,
        "high": high,
        "capacity": [_drawing(drawing) for cell in cells if (drawing := figures.capacity(cell))],
        "sheets": found,
        "missing": missing,
    }


def _card(cell: Cell, matrix: list[list[float | None]], low: float, high: float) -> dict[str, Any]:
    """A heat map as a table, so that its numbers can be read, and the same as lines; shades share the group's scale."""
    span = max(high - low, 1e-9)
    heat = [[None if a is None else (a, round(6 + 64 * (a - low) / span)) for a in row] for row in matrix]
    lines = spark.chart(
        matrix, low, high, f"{cell.label}: accuracy of each batch after each step, n = {len(cell.runs)}"
    )
    return {"cell": cell, "heat": heat, "lines": Markup(lines)}


def _drawing(drawing: Drawing) -> dict[str, Any]:
    return {"name": drawing.name, "svg": Markup(drawing.svg), "caption": drawing.caption, "runs": drawing.runs}


def _raw(value: Value) -> str:
    """The exact number behind a cell, for programs that read the page."""
    if isinstance(value, Spread):
        return repr(value.mean)
    return repr(value) if isinstance(value, int | float) else ""


def _download(table: Table, kind: str) -> str:
    text = FORMATS[kind](table)
    return f"data:{MEDIA[kind]};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
