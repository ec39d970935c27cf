"""The demo on several seeds: what `benchmarks/demo.py --keep` found of its methods, the best for everyone first."""

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import NamedTuple

from runs import rows

from pfeddsh.compare.demo import NAMES, Outcome


class Seeds(NamedTuple):
    """What one method came to, seed by seed."""

    outcomes: Mapping[int, Outcome]

    @property
    def name(self) -> str:
        return next(iter(self.outcomes.values())).name

    @property
    def spread(self) -> float:
        return stdev(each.everyone for each in self.outcomes.values())

    @property
    def change(self) -> float:
        return self.mean("end") - self.mean("before")

    @property
    def serves_at_once(self) -> bool:
        return all(each.at_once is not None for each in self.outcomes.values())

    def mean(self, what: str) -> float:
        return fmean(getattr(each, what) for each in self.outcomes.values())

    def ahead(self, other: "Seeds") -> list[int]:
        """The seeds on which it ends higher for everyone."""
        return [seed for seed, own in self.outcomes.items() if own.everyone > other.outcomes[seed].everyone]


def found() -> dict[str, Seeds]:
    """By method; every method has the same seeds."""
    by_method: dict[str, dict[int, Outcome]] = {method: {} for method in NAMES}
    for row in rows("demo.csv"):
        numbers = {name: float(row[name]) for name in ("after", "before", "end", "lost", "everyone")}
        at_once = float(row["at_once"]) if row["at_once"] else None
        by_method[row["method"]][int(row["seed"])] = Outcome(row["method"], at_once, **numbers)
    several = {method: Seeds(outcomes) for method, outcomes in by_method.items()}
    return dict(sorted(several.items(), key=lambda pair: -pair[1].mean("everyone")))
