"""`pfeddsh report`: runs in, one page and its tables out."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="run folders, folders of runs, or results.json files", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="the page; tables go to a folder next to it")] = Path("report.html"),
) -> None:
    """Make one page of tables and figures from finished runs, and the tables as Markdown, CSV and LaTeX.

    The page is one file and works offline. Runs that cannot be read are named, also on the page, and left out.

    Example: `pfeddsh report runs/table1 runs/mine --out page.html`
    """
    from pfeddsh.report.build import build, typed

    built = build(places, out, typed(places, out))
    console = Console(emoji=False)
    for problem in built.problems:
        console.print(f"[yellow]warning:[/] {escape(problem)}", soft_wrap=True, highlight=False)
    for line in built.summary:
        console.print(escape(line), soft_wrap=True, highlight=False)
    made = "1 run" if built.runs == 1 else f"{built.runs} runs"
    console.print(f"{made} in {out}, tables in {built.tables}", soft_wrap=True, highlight=False)
