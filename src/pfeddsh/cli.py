"""The front door: all commands, and mistakes that end with one line. Each part registers commands of its own."""

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

import pfeddsh
from pfeddsh.commands import data, lists, runs
from pfeddsh.compare import cli as compare_cli
from pfeddsh.errors import UserError
from pfeddsh.live import cli as live_cli
from pfeddsh.live import edge_cli, leave_cli, operate_cli
from pfeddsh.report import cli as report_cli

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
UsageError: Any = typer.BadParameter.__base__  # of whichever click typer works with
console = Console(emoji=False)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"pfeddsh {pfeddsh.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def front(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Onboard new clients into a personalised federation without retraining those already served."""


for part in (runs, compare_cli, report_cli, lists, data, live_cli, edge_cli, leave_cli, operate_cli):
    part.register(app)


def main() -> None:
    """Run the command line; a user's mistake ends with its explanation, not with a traceback."""
    warnings.showwarning = lambda message, *_: console.print(
        f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True
    )
    try:
        _readable(sys.argv[1:])
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        _refuse(str(error))
    except UsageError as error:
        _refuse_usage(error)
    except typer.Abort:
        sys.exit(130)
    except OSError as error:  # of the surroundings: a folder without permission, a full disk
        where = f"{error.filename}: " if error.filename else ""
        _refuse(f"{where}{error.strerror or error}")
    except UnicodeEncodeError as error:
        _refuse(f"a name that is not valid UTF-8: {ascii(error.object)[:200]}; rename the file or folder")


def _readable(arguments: list[str]) -> None:
    """What is not UTF-8 could neither be shown nor written into a configuration."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument!a} is not valid UTF-8; rename the file or folder") from None


def _refuse_usage(error: Any) -> NoReturn:
    """An option or command that does not exist, or a value that is none: one line, and where to look."""
    if type(error).__name__ == "NoArgsIsHelpError":  # `pfeddsh` alone: the help is what it wants
        error.show()
        sys.exit(2)
    where = error.ctx.command_path if error.ctx is not None else "pfeddsh"
    _refuse(f"{error.format_message().strip().rstrip('.')}; see `{where} --help`")


def _refuse(text: str) -> NoReturn:
    Console(stderr=True, emoji=False).print("[red]error:[/]", escape(text), soft_wrap=True, highlight=False)
    sys.exit(2)
