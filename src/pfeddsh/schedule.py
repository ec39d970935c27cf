"""Who joins when, who is sampled when, and with which learning rate.

All of it is drawn from the seed and the schedule up to the step in question, never from the method: all methods and the
local-only control see the same clients in the same rounds, and schedules share their common beginning.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import Literal

from pfeddsh.errors import UserError
from pfeddsh.rng import numpy_stream

Sampling = Literal["random", "round-robin"]
EVALUATION = 0.2  # of a client, in units of one visit for training: a rule of thumb for the time left


def parse(text: str) -> tuple[int, ...]:
    """Batch sizes of a schedule.

    >>> parse("80+4x5")
    (80, 5, 5, 5, 5)
    """
    sizes: list[int] = []
    for part in text.replace(" ", "").split("+"):
        match = re.fullmatch(r"(?:(\d+)x)?(\d+)", part)
        if not match or int(match[2]) == 0 or match[1] == "0":
            raise UserError(f"schedule '{text}': cannot read '{part}'; write for instance 80+20, 80+4x5 or 80+10x2")
        sizes += [int(match[2])] * int(match[1] or 1)
    return tuple(sizes)


def parse_rounds(text: str | None) -> dict[str, int]:
    """The rounds of the first and of each later step, as keys of a run.

    >>> parse_rounds("60"), parse_rounds("200,100")
    ({'rounds_first': 60, 'rounds_later': 60}, {'rounds_first': 200, 'rounds_later': 100})
    """
    if text is None:
        return {}
    match = re.fullmatch(r"\s*(\d+)\s*(?:,\s*(\d+)\s*)?", text)
    if not match:
        raise UserError(f"--rounds {text}: write one number, or two with a comma, such as 200,100")
    return {"rounds_first": int(match[1]), "rounds_later": int(match[2] or match[1])}


@dataclass(frozen=True)
class Schedule:
    """Onboarding steps are numbered from 1, rounds within a step from 0."""

    sizes: tuple[int, ...]
    seed: int
    rounds_first: int
    rounds_later: int
    sample_fraction: float
    lr: float
    sampling: Sampling = "random"
    drawn: bool = True  # who joins when; else clients join in the order of their numbers
    everyone: bool = False  # later steps sample from all clients onboarded so far: the oracle the setting forbids

    @property
    def clients(self) -> int:
        return sum(self.sizes)

    @property
    def steps(self) -> range:
        return range(1, len(self.sizes) + 1)

    def rounds(self, step: int) -> int:
        return self.rounds_first if step == 1 else self.rounds_later

    @cached_property
    def batches(self) -> tuple[tuple[int, ...], ...]:
        """The clients of each batch, sorted; a seeded permutation decides who comes early, not size or number.

        Where an order is given, numbers follow it.
        """
        order = numpy_stream(self.seed, "joining").permutation(self.clients) if self.drawn else range(self.clients)
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(tuple(sorted(int(k) for k in order[e - s : e])) for s, e in zip(self.sizes, ends, strict=True))

    def batch(self, step: int) -> tuple[int, ...]:
        return self.batches[step - 1]

    def onboarded(self, step: int) -> tuple[int, ...]:
        """Everyone who has joined by the end of this step."""
        return tuple(sorted(chain.from_iterable(self.batches[:step])))

    def participants(self, step: int) -> tuple[int, ...]:
        return self.onboarded(step) if self.everyone else self.batch(step)

    def cohort(self, step: int, round: int) -> tuple[int, ...]:
        """The clients sampled in a round: m = max(1, round(fraction * participants)), without replacement."""
        pool = self.participants(step)
        count = max(1, math.floor(self.sample_fraction * len(pool) + 0.5))
        if self.sampling == "round-robin":
            return turns(self.seed, step, pool, count, self.rounds(step))[round]
        drawn = numpy_stream(self.seed, "cohort", step, round).choice(len(pool), size=count, replace=False)
        return tuple(sorted(pool[i] for i in drawn))

    def visits(self, step: int, client: int) -> list[int]:
        """The rounds of its own step in which a client is sampled: what the local-only control repeats."""
        own = replace(self, everyone=False) if self.everyone else self
        return [r for r in range(self.rounds(step)) if client in own.cohort(step, r)]

    def cost(self, step: int) -> tuple[float, float]:
        """What a step takes, in visits: its rounds together, and the evaluation of everyone after them."""
        return self.rounds(step) * len(self.cohort(step, 0)), EVALUATION * len(self.onboarded(step))

    def rate(self, step: int, round: int) -> float:
        """Cosine decay from `lr` to 0 within a step, restarted at every step."""
        return 0.5 * self.lr * (1 + math.cos(math.pi * round / self.rounds(step)))


@cache
def turns(seed: int, step: int, pool: tuple[int, ...], count: int, rounds: int) -> tuple[tuple[int, ...], ...]:
    """Cohorts in which everyone has had a turn before anyone has the next; each pass has an order of its own.

    A cohort that a pass cannot fill is filled by the first of the next pass who are not in it yet.
    """
    waiting: list[int] = []
    cohorts = []
    for number in range(rounds):
        cohort, waiting = waiting[:count], waiting[count:]
        if len(cohort) < count:
            order = [pool[i] for i in numpy_stream(seed, "turns", step, number).permutation(len(pool))]
            fill = [k for k in order if k not in cohort][: count - len(cohort)]
            waiting = [k for k in order if k not in fill]
            cohort += fill
        cohorts.append(tuple(sorted(cohort)))
    return tuple(cohorts)
