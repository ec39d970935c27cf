"""Whether the federation gets on: when it last got further than ever before, and whether that is too long ago.

A coordinator that dies and starts again repeats what it had done. That is no progress: only what lies beyond the
furthest point so far counts, and that point is kept in status.json through restarts.
"""

import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

Phase = Literal["waiting", "training", "replaying", "offering", "done"]
PHASES: tuple[Phase, ...] = ("waiting", "training", "replaying", "offering", "done")
MINUTES = 30.0  # without progress before there is an alert
IDLE = ("waiting", "done")  # nothing is under way that could stall


class Moved(BaseModel):
    """The furthest point so far, and since when."""

    time: datetime.datetime
    step: int
    phase: Phase
    round: int
    answers: int = 0  # to offers

    def beyond(self, other: "Moved") -> bool:
        place, before = ((m.step, PHASES.index(m.phase), m.round) for m in (self, other))
        return place > before or self.answers > other.answers


class Pulse:
    """Notes progress for as long as the folder exists, not just this process."""

    def __init__(self, status: Path) -> None:
        self._furthest = _before(status)

    def note(self, time: str, step: int, phase: Phase, round: int, answers: int) -> dict[str, Any]:
        """The furthest point, in the form of status.json, given where the federation is now."""
        here = Moved(time=datetime.datetime.fromisoformat(time), step=step, phase=phase, round=round, answers=answers)
        if self._furthest is None or here.beyond(self._furthest):
            self._furthest = here
        return self._furthest.model_dump(mode="json")


def _before(status: Path) -> Moved | None:
    class Told(BaseModel):
        moved: Moved | None = None

    try:
        return Told.model_validate_json(status.read_bytes()).moved
    except (OSError, ValidationError):
        return None


def stalled(phase: str, moved: Moved | None, minutes: float, now: datetime.datetime) -> str | None:
    """A sentence if something is under way and has not moved for so long; waiting for newcomers is no stall."""
    if moved is None or phase in IDLE or minutes <= 0:
        return None
    still = (now - moved.time).total_seconds()
    if still < 60 * minutes:
        return None
    return (
        f"no progress for {duration(still)}, since step {moved.step}, {moved.phase}, round {moved.round}: "
        "check which sites are online, the last refusals, and `pfeddsh doctor`"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(125), duration(7320), duration(200_000)
    ('42 s', '2 min', '2 h 2 min', '2 days')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} days"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
