"""`pfeddsh data`: what there is and where, downloads, and who would own what."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from pfeddsh.commands.options import (
    Assignments,
    DataDir,
    Model,
    Partition,
    Schedule,
    Seed,
    SkipUnreadable,
    configure,
    dataset_names,
)
from pfeddsh.errors import UserError

console = Console(emoji=False)


def listed(data_dir: DataDir = None) -> None:
    """List the datasets known by name, and where their files are on this computer."""
    from pfeddsh.data import known, locate

    rows = []
    for name in known.names():
        origin = known.origin(name)
        if origin is None:
            rows.append((name, "scikit-learn", "embedded"))
            continue
        found = locate.present(origin, data_dir)
        where = str(found[0][0].parent) if found else "not here"
        rows.append((name, origin.home, where))
    heads = ("dataset", "from")
    view = Table(*[Column(head, no_wrap=True) for head in heads], Column("where", overflow="fold"), box=None)
    for row in rows:
        view.add_row(*row)
    console.print(view, highlight=False)
    searched = " and ".join(map(str, locate.roots(data_dir)))
    told = f"Searched: {searched}. `pfeddsh data download NAME` fetches one. Your own data are named by their path."
    console.print(told, soft_wrap=True, highlight=False)


def download(
    name: Annotated[str, typer.Argument(help="a dataset name, see `pfeddsh data list`", autocompletion=dataset_names)],
    data_dir: Annotated[
        Path | None, typer.Option(help="target folder, created if missing; default: PFEDDSH_DATA or the user's cache")
    ] = None,
) -> None:
    """Download a dataset and verify it; needs `pip install 'pfeddsh[hub]'`. An interrupted download continues.

    Example: `pfeddsh data download cifar10 --data-dir ~/data`
    """
    from pfeddsh.data import known, locate
    from pfeddsh.data.download import download as fetch
    from pfeddsh.storage.files import writable

    origin = known.origin(name)
    if origin is None:
        console.print(f"{name} is embedded: there is nothing to download", highlight=False)
        return
    if data_dir:
        writable(data_dir)
    if (data_dir is None or data_dir.is_dir()) and (found := locate.present(origin, data_dir)):
        console.print(f"{name} is already in {found[0][0].parent}", soft_wrap=True, highlight=False)
        return
    root = data_dir.absolute() if data_dir else locate.roots(None)[0]
    again = shlex.join(["pfeddsh", "data", "download", name, *(["--data-dir", str(data_dir)] if data_dir else [])])
    console.print(f"{name}: from {origin.home} into {root / origin.place}", soft_wrap=True, highlight=False)
    try:
        files = fetch(name, origin, root, again)
    except KeyboardInterrupt:
        Console(stderr=True, emoji=False).print(f"interrupted; `{again}` goes on", soft_wrap=True)
        raise typer.Exit(130) from None
    if origin.find(root) is None:
        raise UserError(f"{origin.home} lacks some of {origin.expected}; what it has is in {root / origin.place}")
    size = sum(path.stat().st_size for path in files)
    console.print(
        f"{name}: {len(files)} file{'s' * (len(files) > 1)}, {size / 1e6:.1f} MB, checksums are right", highlight=False
    )


def show(
    dataset: Annotated[str, typer.Argument(help="a dataset name or path")] = "digits",
    schedule: Schedule = None,
    seed: Seed = None,
    partition: Partition = None,
    model: Model = None,
    data_dir: DataDir = None,
    skip_unreadable: SkipUnreadable = None,
    draw: Annotated[Path | None, typer.Option(help="also draw the partition to this PNG or SVG file")] = None,
    set_: Assignments = None,
) -> None:
    """Show the images and classes that each client would get, and how they are fitted to the model."""
    from pfeddsh.data import show as view
    from pfeddsh.federation.workbench import divide, open_data, settled

    if partition == "natural" and schedule is None:
        schedule = "all"  # who they are is asked, not when they join
    config = configure(
        None, set_, dataset=dataset, schedule=schedule, seed=seed, partition=partition, model=model,
        data_dir=data_dir, skip_unreadable=skip_unreadable,
    )  # fmt: skip
    config = settled(config)
    data = open_data(config)
    console.print(view.notes(data), highlight=False, markup=False, soft_wrap=True)
    parts = divide(config, data)
    console.print(view.show(data, parts))
    if draw:
        view.draw(parts, data, draw)
        console.print(f"drawn to {draw}", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the front door."""
    data_app = typer.Typer(
        no_args_is_help=True, help="Datasets: list them, download them, and show how they are divided among clients."
    )
    data_app.command("list")(listed)
    data_app.command()(download)
    data_app.command()(show)
    app.add_typer(data_app, name="data")
