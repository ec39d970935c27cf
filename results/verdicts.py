"""Is pFedDSH's lead over the best other method more than chance? One test a place, corrected over all places.

Everyone counts as another: methods, controls, and each of them frozen, guarded or with other settings. Only oracles and
pFedDSH's own ablations do not.
"""

from dataclasses import replace
from functools import cache

from behind import others, place
from runs import Runs
from wording import named

from pfeddsh.report import measures
from pfeddsh.report.paired import PairedTest, at_the_end, best_other, compare, holm
from pfeddsh.report.table import p_value


@cache  # several documents ask
def verdicts(runs: Runs) -> list[tuple[str, ...]]:
    """Everyone at the end: place, rival, lead, seeds won, p over clients and over seeds, and what both say."""
    tests = _tests(runs)
    fair = holm([test.p for _, test in tests])
    seeded = iter(holm([test.p_seeds for _, test in tests if test.p_seeds is not None]))
    found = []
    for (where, test), p in zip(tests, fair, strict=True):
        both = replace(test, p=p, p_seeds=None if test.p_seeds is None else next(seeded))
        told = named(test.rival), f"{test.difference:+.1f}", f"{test.better} of {test.seeds}"
        found.append((where, *told, p_value(both.p), p_value(both.p_seeds), both.beyond_chance))
    return found


def _tests(runs: Runs) -> list[tuple[str, PairedTest]]:
    found = []
    for group in runs.groups:
        own = group.main.get("pfeddsh")
        rival = best_other(own, [own, *others(group)], measures.everyone_at_the_end) if own else None
        test = compare(own, rival, at_the_end) if own and rival else None
        found += [(place(group), test)] if test else []
    return found
