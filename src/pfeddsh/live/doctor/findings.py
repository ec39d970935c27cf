"""What a check found: one line, which ends with what to do if something has to be done."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pfeddsh.errors import UserError

Level = Literal["ok", "warning", "stop"]


@dataclass(frozen=True)
class Finding:
    """`stop` is what keeps the coordinator or the site from working, `warning` what will one day, or may."""

    level: Level
    what: str
    said: str


def ok(what: str, said: str) -> Finding:
    return Finding("ok", what, said)


def warning(what: str, said: str) -> Finding:
    return Finding("warning", what, said)


def stop(what: str, said: str) -> Finding:
    return Finding("stop", what, said)


Check = Callable[[], Iterable[Finding]]


def examined(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """All findings of all checks; one that cannot be made is a finding too."""
    for what, check in checks:
        try:
            yield from check()
        except UserError as error:
            yield stop(what, str(error))
        except OSError as error:
            yield stop(what, f"{error.filename or ''} {error.strerror or error}".strip())
