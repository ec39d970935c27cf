"""`pfeddsh doctor` and `pfeddsh sign`: is all as it should be, and whose code runs at the sites."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pfeddsh.errors import UserError
from pfeddsh.live.edge_cli import _flower
from pfeddsh.storage.files import writable

console = Console(emoji=False)
COLOURS = {"ok": "green", "warning": "yellow", "stop": "bold red"}


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(sign)


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder of a coordinator or of a site")],
    port: Annotated[int, typer.Option(help="coordinator: port of the SuperLink, as given to serve")] = 9092,
    listen: Annotated[str, typer.Option(help="coordinator: proxy address, as given to serve")] = "0.0.0.0:9443",
    host: Annotated[
        list[str] | None, typer.Option(help="coordinator: a host name that sites use; may be repeated")
    ] = None,
    insecure: Annotated[bool, typer.Option(help="coordinator: runs without TLS and keys")] = False,
) -> None:
    """Check a coordinator or a site: versions, disk, clock, certificates, keys, ports, data. It changes nothing.

    It prints one line per check: ok, warning, or stop, and what to do. The exit code is 1 if anything
    would prevent it from working.

    Example: `pfeddsh doctor site-a`, `pfeddsh doctor fed --host fed.example.org`
    """
    with _flower():
        from pfeddsh.live.doctor import coordinator, site

    if (folder / "site.toml").exists() or (folder / "node.key").exists():
        findings = site.examine(folder)
    elif (folder / "federation.toml").exists() or (folder / "tls").exists():
        findings = coordinator.examine(folder, port, listen, host or [], insecure)
    else:
        raise UserError(f"{folder} is neither a coordinator's folder (`pfeddsh serve`) nor a site's (`pfeddsh join`)")
    failed = False
    for finding in findings:
        failed |= finding.level == "stop"
        colour = COLOURS[finding.level]
        console.print(
            f"[{colour}]{finding.level:7}[/]  {finding.what:11}  {escape(finding.said)}",
            soft_wrap=True,
            highlight=False,
        )
    if failed:
        raise typer.Exit(1)


def sign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the coordinator's folder")],
    key: Annotated[Path, typer.Option(help="an Ed25519 private key; created if missing")],
) -> None:
    """Sign the app that Flower sends to the sites, so that they can refuse any other app (`join --trust`).

    Sign again after each upgrade. Keep the key off the coordinator's host: anyone who has both can run code at
    the sites.

    Example: `pfeddsh sign fed --key /media/stick/publisher`
    """
    with _flower():
        from pfeddsh.live.security import signing
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the coordinator's, or elsewhere one to copy `signed` from")
    writable(key.parent)
    public = signing.sign(folder, key)
    console.print(
        f"signed {folder / 'signed' / signing.APP}\ngive every site {public}, for `pfeddsh join --trust`",
        soft_wrap=True,
    )
