"""`pfeddsh leave`: a site takes back what is its own."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pfeddsh.errors import UserError
from pfeddsh.live.edge_cli import _flower

console = Console(emoji=False)


def register(app: typer.Typer) -> None:
    app.command()(leave)


def leave(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="the site's folder")],
    wait: Annotated[float, typer.Option(help="seconds to wait for the coordinator's confirmation")] = 600.0,
) -> None:
    """Leave the federation for good: the coordinator deletes the data that belong only to this site, and confirms it.

    Stop `pfeddsh join` first. What the common model has learnt from the site cannot be undone. The site keeps its
    model, and `predict` and `export` still work. Run it again to see the confirmation again.

    Example: `pfeddsh leave my-site`
    """
    from pfeddsh.live.site import departure

    with _flower():
        from pfeddsh.live.site.join import SiteConfig, alone, supervise

    SiteConfig.load(home)
    if departure.receipt(home) is None:
        with alone(home):
            departure.begin(home)
            deadline = time.monotonic() + wait
            supervise(home, _say, until=lambda: departure.receipt(home) is not None or time.monotonic() > deadline)
    told = departure.receipt(home)
    if told is None:
        raise UserError(
            f"the coordinator has not confirmed within {wait:.0f} s; nothing is trained or told any more. It deletes "
            f"between two rounds: run `pfeddsh leave {home}` again"
        )
    if told["known"]:
        _say(f"left on {told['since']}; deleted at the coordinator: {', '.join(told['deleted'])}")
        _say(f"not deleted: {told['stays']}")
    else:
        _say(f"left on {told['since']}; the coordinator had not onboarded this site, and keeps nothing of it")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)
