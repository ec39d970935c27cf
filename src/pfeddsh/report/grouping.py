"""Put runs in order: what may stand beside what, which seeds belong together, what differs only in a setting."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.methods import registry
from pfeddsh.report.read import Run, fact
from pfeddsh.schedule import parse

ROUNDING = 0.1  # points, mean over clients: on another processor a few of some ten thousand test images fall otherwise
REFERENCES = ("central", "joint", "local", "local-prior")  # oracles and controls: shown, but nobody's rivals
OWN = ("later", "existing", "evidence")  # keys of the protocol by which methods may differ within one table


@dataclass(frozen=True)
class Setting:
    """Dataset and protocol: only runs of one setting are compared."""

    dataset: str
    data: str  # fingerprint
    protocol: tuple[tuple[str, Any], ...] | None  # None: not recorded

    def differs(self) -> dict[str, Any]:
        """Where the protocol departs from the default one."""
        default = build({"dataset": self.dataset}).protocol()
        return {name: value for name, value in self.protocol or () if default.get(name) != value}


@dataclass(frozen=True)
class Variant:
    """A method and those of its settings that are not the registry's."""

    method: str
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return ", ".join([self.method, *(f"{name}={value}" for name, value in self.settings)])

    @property
    def order(self) -> tuple[int, list[tuple[str, float, str]]]:
        """The fewest changes first; numbers by size, texts by the alphabet."""
        return len(self.settings), [(name, _number(value), value) for name, value in self.settings]

    @property
    def ablation(self) -> bool:
        return self.method.startswith("pfeddsh-")


@dataclass(frozen=True, eq=False)
class Cell:
    """The runs that differ in nothing but the seed."""

    setting: Setting
    schedule: str
    variant: Variant
    runs: tuple[Run, ...]
    id: str

    @property
    def label(self) -> str:
        return self.variant.label

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.results.seed) for run in self.runs)


@dataclass(frozen=True, eq=False)
class Group:
    """One schedule in one setting: what one table shows."""

    setting: Setting
    schedule: str
    cells: tuple[Cell, ...] = field(repr=False)

    @property
    def where(self) -> str:
        """Dataset, schedule, and what is unlike the default protocol."""
        unlike = [f"{name}={value}" for name, value in self.setting.differs().items()]
        return ", ".join([self.setting.dataset, self.schedule, *unlike])

    @property
    def steps(self) -> int:
        return len(parse(self.schedule))

    @cached_property
    def main(self) -> dict[str, Cell]:
        """Each method with its usual settings or, if there is no such run, those most of its runs have."""
        best: dict[str, Cell] = {}
        for cell in sorted(self.cells, key=lambda cell: (bool(cell.variant.settings), -len(cell.runs), cell.label)):
            best.setdefault(cell.variant.method, cell)
        return {cell.variant.method: cell for cell in self.cells if best[cell.variant.method] is cell}

    @property
    def contest(self) -> list[Cell]:
        """The methods of Table 1: all but ablations, oracle and control, unless there is nothing else."""
        others = [cell for cell in self.main.values() if cell not in self.references]
        return [cell for cell in others if not cell.variant.ablation] or others or self.references

    @property
    def contest_and_ablations(self) -> list[Cell]:
        return self.contest + [cell for cell in self.ablations if cell not in self.contest]

    @property
    def references(self) -> list[Cell]:
        return [self.main[name] for name in REFERENCES if name in self.main]

    @property
    def ablations(self) -> list[Cell]:
        found = [cell for cell in self.main.values() if cell.variant.ablation]
        return [self.main["pfeddsh"], *found] if found and "pfeddsh" in self.main else found

    @property
    def sensitivity(self) -> list[list[Cell]]:
        """For each method that was run with several settings, all of them, the usual ones first."""
        several = []
        for method, first in self.main.items():
            others = [c for c in self.cells if c.variant.method == method and c is not first]
            several += [[first, *others]] if others else []
        return several


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Groups in reading order, and what a reader must be warned of."""
    problems: list[str] = []
    gathered: dict[tuple[Setting, tuple[int, ...], Variant], dict[int, Run]] = {}
    for run in runs:
        key = (_setting(run), parse(run.results.schedule), variant_of(run))
        seeds = gathered.setdefault(key, {})
        twin = seeds.setdefault(run.results.seed, run)
        if twin is not run:
            same = "say the same" if twin.results.acc == run.results.acc else "disagree"
            problems.append(f"{twin.path} and {run.path} claim to be the same run and {same}; the first is used")
    names = {sizes: min((r.results.schedule for r in runs if parse(r.results.schedule) == sizes), key=len)
             for _, sizes, _ in gathered}  # fmt: skip
    cells: dict[tuple[Setting, tuple[int, ...]], list[Cell]] = {}
    order = sorted(gathered, key=lambda key: _order(*key))
    for number, key in enumerate(order, 1):
        setting, sizes, variant = key
        members = tuple(run for _, run in sorted(gathered[key].items()))
        cells.setdefault((setting, sizes), []).append(Cell(setting, names[sizes], variant, members, f"R{number}"))
    groups = [Group(setting, names[sizes], tuple(found)) for (setting, sizes), found in cells.items()]
    return groups, problems + _apart(groups) + _seeds(groups) + _controls(groups)


def _setting(run: Run) -> Setting:
    """What a run was measured under; keys that its revision did not have yet stand at their defaults."""
    protocol = run.protocol
    if protocol is not None:
        default = {name: value for name, value in build({}).protocol().items() if name not in protocol}
        shared = tuple((k, v) for k, v in sorted((default | protocol).items()) if k not in OWN)
    return Setting(run.results.dataset, str(run.results.environment.get("data", "")), shared if protocol else None)


def variant_of(run: Run) -> Variant:
    """What clients do in later steps is a setting like any other here; an unknown method has no usual settings."""
    method = run.results.method
    given = run.results.options | {name: (run.protocol or {}).get(name) for name in OWN}
    usual: dict[str, Any] = {name: Config.model_fields[name].default for name in OWN}
    if entry := registry.METHODS.get(method):  # not `find`: reading a run must not import what it names
        usual |= entry.options({}) | {"later": entry.later, "existing": entry.existing}
    unusual = {k: v for k, v in given.items() if v is not None and v != usual.get(k)}
    return Variant(method, tuple((name, fact(value)) for name, value in sorted(unusual.items())))


def _order(setting: Setting, sizes: tuple[int, ...], variant: Variant) -> tuple[Any, ...]:
    known = list(registry.METHODS)
    place = known.index(variant.method) if variant.method in known else len(known)
    where = (setting.dataset, repr(setting.protocol), setting.data, len(sizes), sizes)
    return *where, place, variant.method, variant.order


def _apart(groups: Sequence[Group]) -> list[str]:
    """Say which datasets appear under several protocols or with different images."""
    found = []
    settings = {group.setting for group in groups}
    for dataset, count in sorted(Counter(setting.dataset for setting in settings).items()):
        if count == 1:
            continue
        own = [setting for setting in settings if setting.dataset == dataset]
        if len({setting.protocol for setting in own}) > 1:
            found.append(f"runs on {dataset} follow {count} protocols; they are kept apart and not compared")
        if len({setting.data for setting in own}) > 1:
            found.append(f"runs on {dataset} saw different images (fingerprints differ); they are kept apart")
    return found


def _seeds(groups: Sequence[Group]) -> list[str]:
    """Say where methods lack seeds that others of their table have."""
    found = []
    for group in groups:
        every = {run.results.seed for cell in group.contest for run in cell.runs}
        lacking = []
        for cell in group.contest:
            missing = sorted(every - {run.results.seed for run in cell.runs})
            lacking += [f"{cell.label} ({', '.join(map(str, missing))})"] if missing else []
        if lacking:
            found.append(
                f"{group.where}: seeds are missing for {', '.join(lacking)}; means are over different seeds, see n"
            )
    return found


def _controls(groups: Sequence[Group]) -> list[str]:
    return [
        f"{where}: {'; '.join(labels)} had other clients or other local-only accuracies than the rest: not the same "
        "protocol; they are not paired"
        for group in groups
        for where, labels in unpaired(group).items()
    ]


def unpaired(group: Group) -> dict[str, list[str]]:
    """By place and seed, the fewer of those whose clients were not the same; local-only accuracies tell."""
    found = {}
    for seed in sorted({run.results.seed for cell in group.cells for run in cell.runs}):
        parts: list[list[tuple[Cell, Run]]] = []
        for one in ((cell, run) for cell in group.cells for run in cell.runs if run.results.seed == seed):
            part = next((part for part in parts if comparable(part[0][1], one[1])), None)
            parts.append([one]) if part is None else part.append(one)
        fewer = sorted(parts, key=len)[:-1]
        if fewer:
            found[f"{group.where}, seed {seed}"] = [cell.label for part in fewer for cell, _ in part]
    return found


def comparable(one: Run, other: Run) -> bool:
    """The same clients joined at the same steps and did equally well alone, up to what another processor rounds."""
    a, b = one.results, other.results
    if a.batch != b.batch:
        return False
    differ = [(x, y) for x, y in zip(a.local, b.local, strict=True) if x != y]
    apart = sum(math.inf if x is None or y is None else abs(x - y) for x, y in differ)
    return apart <= ROUNDING * len(a.local)
