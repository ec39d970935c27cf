"""A site that leaves for good: the wish, which survives restarts, and the coordinator's confirmation."""

import json
from pathlib import Path
from typing import Any

from pfeddsh.errors import UserError
from pfeddsh.storage.files import write_text

WISH, RECEIPT = "leaving", "left.json"


def begin(home: Path) -> None:
    """From now on this site answers nothing but that it leaves."""
    write_text(home / WISH, "this site leaves the federation; `pfeddsh leave` ends it\n")


def under_way(home: Path) -> bool:
    return (home / WISH).exists()


def confirm(home: Path, facts: dict[str, Any]) -> None:
    """Keep what the coordinator says it has deleted."""
    told = {name: facts.get(name) for name in ("since", "known", "deleted", "stays")}
    write_text(home / RECEIPT, json.dumps(told, indent=1) + "\n")


def receipt(home: Path) -> dict[str, Any] | None:
    """The confirmation, once there is one."""
    try:
        content: dict[str, Any] = json.loads((home / RECEIPT).read_text())
        return content
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{home / RECEIPT} is damaged ({error}); remove it and leave again") from error


def refuse_to_join(home: Path) -> None:
    if receipt(home):
        raise UserError(f"{home} has left the federation; to come back, join from a new folder, under a new key")
    if under_way(home):
        raise UserError(f"{home} is leaving the federation; `pfeddsh leave {home}` waits for the confirmation")
