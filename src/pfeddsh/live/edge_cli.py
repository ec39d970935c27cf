"""Commands around a live federation: certificates, keys, sites, status, export, prediction."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pfeddsh.errors import UserError
from pfeddsh.storage.files import writable

console = Console(emoji=False)
nodes_app = typer.Typer(no_args_is_help=True, help="Sites that the federation admits, and their keys.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the coordinator's folder")]
Home = Annotated[Path, typer.Argument(metavar="HOME", help="the site's folder")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="name of the site")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (certs, keygen, export, predict, status):
        app.command()(command)
    nodes_app.command("add")(nodes_add)
    nodes_app.command("revoke")(nodes_revoke)
    nodes_app.command("forget")(nodes_forget)
    nodes_app.command("list")(nodes_list)
    app.add_typer(nodes_app, name="nodes")


@contextmanager
def _flower() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'pfeddsh[flower]'") from error


def coordinators(folder: Path) -> None:
    """Raise unless this is a coordinator's folder: a mistyped one is neither empty nor new."""
    if not (folder / "federation.toml").exists() and not (folder / "tls").exists():
        raise UserError(f"{folder} is no coordinator's folder; `pfeddsh certs` and `pfeddsh serve` make one")


def certs(
    folder: Folder,
    host: Annotated[
        list[str] | None, typer.Option(help="a host name or address that sites use; may be repeated")
    ] = None,
) -> None:
    """Create the federation's CA and the server's certificate. Existing files are kept.

    Give every site DIR/tls/ca.crt over a channel you trust. Keep DIR/tls/ca.key off the server: only
    this command needs it.

    Example: `pfeddsh certs coordinator --host fed.example.org`
    """
    with _flower():
        from pfeddsh.live.security import certs as certificates
    writable(folder)
    created = certificates.make(folder, host or [])
    for path in created:
        console.print(f"made {path}", soft_wrap=True)
    if not created:
        console.print(f"nothing to do: {folder / 'tls'} has both certificates", soft_wrap=True)


def keygen(home: Home) -> None:
    """Create a site's key pair. The private key never leaves the site; an existing key is kept.

    Send HOME/node.key.pub to the operator, and tell them the fingerprint over another channel.

    Example: `pfeddsh keygen my-site`
    """
    with _flower():
        from pfeddsh.live.security import certs as certificates
    writable(home)
    console.print(f"{home / 'node.key.pub'}\n{certificates.make_node_key(home)}", soft_wrap=True, highlight=False)


def nodes_add(
    folder: Folder, name: Name, public: Annotated[Path, typer.Argument(metavar="KEY.pub", help="the site's public key")]
) -> None:
    """Admit a site by its public key. First compare the fingerprint with the one that the site tells you.

    Example: `pfeddsh nodes add coordinator north node.key.pub`
    """
    with _flower():
        from pfeddsh.live.security import nodes
    coordinators(folder)
    key = nodes.add(folder, name, public)
    console.print(f"{name} is admitted with the key {key}{_apply(folder)}", soft_wrap=True, highlight=False)


def nodes_revoke(folder: Folder, name: Name) -> None:
    """Revoke a site's key. The key can never be used again; a connected site is cut off within seconds.

    Example: `pfeddsh nodes revoke coordinator north`
    """
    with _flower():
        from pfeddsh.live.security import nodes
    key = nodes.revoke(folder, name)
    console.print(f"{name} is revoked, key {key}{_apply(folder)}", soft_wrap=True, highlight=False)


def nodes_forget(folder: Folder, name: Name) -> None:
    """Delete the data that belong only to one site, for a site that cannot run pfeddsh leave itself.

    The site is no longer admitted. The coordinator deletes the data between two rounds, or at its next start. What the
    common model has learnt from the site cannot be undone; docs/privacy.md says what else remains.

    Example: `pfeddsh nodes forget coordinator north`
    """
    with _flower():
        from pfeddsh.live.coordinator import forget
    for key in forget.ask(folder, name):
        console.print(f"{name} will be deleted, key {key}", soft_wrap=True, highlight=False)
    secured = (folder / "tls" / "ca.crt").exists()
    console.print(
        f"the coordinator deletes the data that belong only to this site{_apply(folder) if secured else ''}",
        soft_wrap=True,
    )


def _apply(folder: Path) -> str:
    """Tell the SuperLink, if one runs; otherwise `serve` does at its start. One that runs and refuses is an error."""
    from pfeddsh.live.security import nodes

    try:
        nodes.synchronise(folder, nodes.superlink_address(folder))
    except nodes.Unreachable as error:
        return f"; it takes effect when the coordinator starts ({error})"
    return "; in effect now"


def nodes_list(folder: Folder) -> None:
    """List the sites, their keys' fingerprints and whether they are connected."""
    with _flower():
        from pfeddsh.live.security import listed, nodes
    coordinators(folder)
    try:
        sites = nodes.connected(folder, nodes.superlink_address(folder))
    except nodes.Unreachable as error:
        sites = listed.sites(folder)
        Console(stderr=True, emoji=False).print(f"[yellow]by the folder alone:[/] {escape(str(error))}", soft_wrap=True)
    view = Table("site", "state", "key")
    for site in sites:
        view.add_row(site.name, site.state, site.key)
    console.print(view)


def export(
    home: Home,
    out: Annotated[Path, typer.Option(help="output folder")],
    onnx: Annotated[bool, typer.Option("--onnx", help="also write an ONNX graph (needs pfeddsh[onnx])")] = False,
) -> None:
    """Write the site's current model as a plain PyTorch module that does not need pfeddsh.

    Example: `pfeddsh export my-site --out model`, then `python model/model.py photo.png`
    """
    from pfeddsh.live.site.export import export as write

    for path in write(home, out, onnx):
        console.print(f"wrote {path}", soft_wrap=True)


def predict(
    home: Home,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="images, or folders of images")],
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON per image")] = False,
) -> None:
    """Predict with the site's current model, offline. The exit code is 1 if an image could not be read.

    Example: `pfeddsh predict my-site photo.png more-photos/`
    """
    from pfeddsh.live.site.model import read_model
    from pfeddsh.live.site.predict import find_images
    from pfeddsh.live.site.predict import predict as classify

    failed = False
    for result in classify(read_model(home), find_images(images)):
        failed |= bool(result.error)
        if as_json:
            print(json.dumps({key: value for key, value in asdict(result).items() if value not in ("", None)}))
        elif result.error:
            Console(stderr=True, emoji=False).print(
                f"[red]error:[/] {escape(result.image)}: {escape(result.error)}", soft_wrap=True
            )
        else:
            console.print(
                f"{escape(result.image)}: {escape(result.label)} ({result.probability:.1%})",
                soft_wrap=True,
                highlight=False,
            )
    if failed:
        raise typer.Exit(1)


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the coordinator or of a site")],
    as_json: Annotated[
        bool, typer.Option("--json", help="machine-readable: status.json as the coordinator wrote it")
    ] = False,
) -> None:
    """Show the status of a federation: clients, queue, step and round, offers, refusals, PA and RI.

    For a site: its policy, the privacy budget spent, the messages sent, and its model.

    Example: `pfeddsh status coordinator`, or `pfeddsh status my-site`
    """
    from pfeddsh.live.site import status as site

    if site.is_site(folder):
        own = site.read_status(folder)
        console.print(site.text(own) if as_json else site.render(own), highlight=False, soft_wrap=True)
        return
    from pfeddsh.live.coordinator.status import read_status, read_text, render

    state = read_status(folder)
    if as_json:
        print(read_text(folder))
    else:
        console.print(render(state))
