"""How often each client was sampled in its own step: the schedule and the seed decide, so old runs can tell it too."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pfeddsh.schedule import Schedule, parse

MOST = 100_000  # rounds of a run that a reader draws again; a file that claims more is not believed


def visits(plan: Schedule) -> list[int]:
    """Per client; rounds of later steps, in which an oracle may sample it again, do not count."""
    count: Counter[int] = Counter()
    for step in plan.steps:
        own = set(plan.batch(step))
        count.update(k for round in range(plan.rounds(step)) for k in plan.cohort(step, round) if k in own)
    return [count[k] for k in range(plan.clients)]


def repeated(schedule: str, seed: int, batch: Sequence[int], protocol: Mapping[str, Any] | None) -> list[int] | None:
    """The visits of a run that did not write them down; None where its protocol is not known, or its batches differ."""
    known = protocol or {}
    try:
        rounds = int(known["rounds_first"]), int(known["rounds_later"])
        fraction = float(known["sample_fraction"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    sizes = parse(schedule)
    if min(rounds) < 1 or max(rounds) * len(sizes) > MOST or not 0 < fraction <= 1 or seed < 0:
        return None
    plan = Schedule(sizes, seed, *rounds, fraction, lr=0.0, everyone=known.get("later") == "everyone")
    if any(batch[k] != step for step in plan.steps for k in plan.batch(step)):
        return None
    return list(_visits(plan))


_visits = cache(visits)  # methods share their draws: a report of many runs draws once a schedule and seed
