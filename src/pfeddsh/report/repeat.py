"""How to make a run again: the command, the versions, where its results were read."""

import shlex
from dataclasses import dataclass

from pfeddsh.report.grouping import OWN, Cell

VERSIONS = ("pfeddsh", "revision", "python", "torch", "numpy", "machine", "threads")


@dataclass(frozen=True)
class Recipe:
    """One cell's command, and what it ran on; a run whose protocol is unknown cannot promise the same numbers."""

    cell: Cell
    command: str
    versions: str
    sources: str


def recipe(cell: Cell) -> Recipe:
    words = ["pfeddsh", "run", "--dataset", cell.setting.dataset, "--method", cell.variant.method]
    words += ["--schedule", cell.schedule]
    settings = [f"{name}={value}" for name, value in cell.setting.differs().items()]
    settings += [f"{'' if name in OWN else 'options.'}{name}={value}" for name, value in cell.variant.settings]
    for setting in settings:
        words += ["--set", setting]
    command = shlex.join(words)
    seeds = [str(run.results.seed) for run in cell.runs]
    if len(seeds) == 1:
        command += f" --seed {seeds[0]}"
    else:
        command = f"for seed in {' '.join(seeds)}; do {command} --seed $seed; done"
    facts = [run.results.environment for run in cell.runs]
    versions = [
        f"{name} {' / '.join(dict.fromkeys(str(e[name]) for e in facts if e.get(name) is not None))}"
        for name in VERSIONS
        if any(e.get(name) is not None for e in facts)
    ]
    said = dict.fromkeys(note for e in facts for note in e.get("images", ()))
    versions += [f"data: {'; '.join(said)}"] if said else []
    return Recipe(cell, command, ", ".join(versions), ", ".join(str(run.path) for run in cell.runs))
