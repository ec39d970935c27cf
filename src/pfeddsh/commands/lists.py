"""`pfeddsh methods` and `pfeddsh models`: what there is to choose from."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from pfeddsh.errors import UserError

console = Console(emoji=False)


def methods() -> None:
    """List the methods and their settings."""
    from pfeddsh.methods.registry import METHODS, find, offered

    view = Table(Column("method", no_wrap=True), "what it is", "settings (--set options.NAME=VALUE)")
    for name in [*METHODS, *offered()]:
        try:
            entry = find(name)
        except UserError as error:  # of an installed package that is broken
            view.add_row(name, escape(str(error)), "")
            continue
        settings = entry.preset or entry.options({})
        view.add_row(name, entry.summary, "\n".join(f"{k} = {v}" for k, v in settings.items() if v is not None))
    console.print(view)


def models(
    classes: Annotated[int, typer.Option(min=2, help="the number of classes")] = 10,
    shape: Annotated[
        tuple[int, int, int] | None,
        typer.Option(help="channels, height and width of images; default: those of the default model"),
    ] = None,
) -> None:
    """List the networks known by name, with their size. Use your own with `--model package.module:factory`."""
    from pfeddsh.models import registry

    if shape and min(shape) < 1:
        raise UserError(f"--shape {' '.join(map(str, shape))}: channels, height and width are at least 1")
    shape = shape or registry.fixed_shape(registry.DEFAULT)
    view = Table(Column("model", no_wrap=True), "weights", "what it is")
    for name in registry.names():
        try:
            summary = (registry.find(name).__doc__ or "").strip().partition("\n")[0]
        except UserError as error:  # of an installed package that is broken
            view.add_row(name, "", escape(str(error)))
            continue
        try:
            size = f"{registry.create(name, classes, shape).size:,}"
        except UserError:
            size = "not for this shape"
        view.add_row(name, size, summary)
    console.print(view)


def register(app: typer.Typer) -> None:
    """Add the commands to the front door."""
    app.command()(methods)
    app.command()(models)
