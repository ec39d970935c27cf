"""The state of a running federation, as its coordinator writes it to status.json, on one screen."""

import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.pulse import MINUTES, Moved, Phase, duration, stalled

FILE = "status.json"
SHOWN = 10  # batches on the one screen of a terminal: the latest


class WaitingStatus(BaseModel):
    name: str
    since: datetime.datetime


class ClientStatus(BaseModel):
    id: int
    name: str
    key: str
    batch: int
    state: Literal["training", "served", "quarantined", "revoked", "left"]
    online: bool
    last_seen: datetime.datetime | None = None
    refused: int = 0
    offer: Literal["none", "pending", "accepted", "declined"] = "none"
    accuracy: float | None = None
    accuracy_first: float | None = None
    accuracy_zero_shot: float | None = None  # before its first round, if the method can serve it then
    accuracy_alone: float | None = None  # training on its own data only, with the same effort


class OfferCounts(BaseModel):
    made: int = 0
    accepted: int = 0
    declined: int = 0
    pending: int = 0


class Refused(BaseModel):
    time: datetime.datetime
    client: str
    reason: str


class Notice(BaseModel):
    time: datetime.datetime
    text: str


class Bytes(BaseModel):
    down: int = 0
    up: int = 0


class Status(BaseModel):
    """status.json, a public contract: schema 1."""

    schema_: Literal[1]
    time: datetime.datetime
    moved: Moved | None = None
    phase: Phase
    step: int
    round: int
    rounds: int
    eta_seconds: float | None = None
    queue: list[WaitingStatus] = []
    clients: list[ClientStatus] = []
    offers: OfferCounts = OfferCounts()
    refused: list[Refused] = []
    notices: list[Notice] = []
    bytes: Bytes = Bytes()
    pa: list[float | None] = []
    ri: list[float | None] = []

    model_config = {"alias_generator": lambda name: name.removesuffix("_")}


def read_text(folder: Path) -> str:
    try:
        return (folder / FILE).read_text()
    except OSError as error:
        raise UserError(f"no status in {folder} ({error.strerror}): is it the folder of a `pfeddsh serve`?") from error


def read_status(folder: Path) -> Status:
    """What the coordinator wrote last."""
    try:
        return Status.model_validate_json(read_text(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{folder / FILE} is not a status this version reads: {where}: {first['msg']}") from error


def render(status: Status) -> RenderableType:
    """The whole federation on one screen: how far it is, its clients by batch, who waits, who was refused."""
    alert = stalled(status.phase, status.moved, MINUTES, datetime.datetime.now(datetime.UTC))
    return Group(*([f"[bold red]{plain(alert)}[/]"] if alert else []), _head(status), _batches(status), *_lists(status))


def _head(status: Status) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("phase", Text(status.phase, style="bold"), f"as of {status.time.astimezone():%Y-%m-%d %H:%M:%S}")
    eta = "" if status.eta_seconds is None else f"about {duration(status.eta_seconds)} to go"
    progress = ProgressBar(total=max(status.rounds, 1), completed=status.round, width=24)
    grid.add_row(f"step {status.step}", progress, f"round {status.round} of {status.rounds}  {eta}")
    offers = status.offers
    grid.add_row("offers", f"{offers.accepted} accepted", f"{offers.declined} declined, {offers.pending} pending")
    grid.add_row("traffic", f"{size(status.bytes.down)} down", f"{size(status.bytes.up)} up")
    for name, values in (("PA", status.pa), ("RI", status.ri)):
        grid.add_row(name, "  ".join(points(value) for value in values) or "-", "points, by step")
    return grid


def _batches(status: Status) -> RenderableType:
    table = Table("batch", "clients", "online", "states", "accuracy", "offers", "refused")
    batches: dict[int, list[ClientStatus]] = {}
    for client in status.clients:
        batches.setdefault(client.batch, []).append(client)
    shown = sorted(batches)[-SHOWN:]
    if earlier := sorted(batches)[:-SHOWN]:
        table.caption = f"and {len(earlier)} earlier batches of {sum(len(batches[b]) for b in earlier)} clients"
    for batch in shown:
        members = batches[batch]
        known = [client.accuracy for client in members if client.accuracy is not None]
        table.add_row(
            str(batch),
            str(len(members)),
            str(sum(client.online for client in members)),
            _counts([client.state for client in members]),
            f"{sum(known) / len(known):.1f} %" if known else "-",
            _counts([client.offer for client in members if client.offer != "none"]),
            str(sum(client.refused for client in members)),
        )
    return table


def _counts(words: list[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "-"


def _lists(status: Status) -> list[RenderableType]:
    shown: list[RenderableType] = []
    if status.queue:
        names = ", ".join(plain(entry.name) for entry in status.queue[:8])
        more = f" and {len(status.queue) - 8} more" if len(status.queue) > 8 else ""
        shown.append(f"waiting to join: {names}{more}")
    for notice in status.notices[-3:]:
        shown.append(f"[yellow]note[/] {notice.time.astimezone():%m-%d %H:%M:%S}  {plain(notice.text)}")
    for entry in status.refused[-5:]:
        when = f"{entry.time.astimezone():%m-%d %H:%M:%S}"
        shown.append(f"[red]refused[/] {when}  {plain(entry.client)}: {plain(entry.reason)}")
    return shown


def plain(text: str) -> str:
    """A name as it is shown: neither markup nor control characters, by which it could take over the terminal.

    >>> plain("a[red]\\x1b[2J")
    'a\\\\[red]?[2J'
    """
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def points(value: float | None) -> str:
    """
    >>> points(1.25), points(-0.04), points(None)
    ('+1.2', '-0.0', '-')
    """
    return "-" if value is None else f"{value:+.1f}"


def size(count: int) -> str:
    """
    >>> size(999), size(2_500_000)
    ('999 B', '2.5 MB')
    """
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"
