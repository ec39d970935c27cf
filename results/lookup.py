"""Numbers that are no runs of this folder: trials, tuning, the first form's runs, benchmarks, the paper's tables.

Asking for one that is not there, or for one of several, is a mistake: a document cannot invent a number.
"""

import statistics
from typing import NamedTuple

from runs import HERE, rows

from pfeddsh.report.paper import everything


class Turns(NamedTuple):
    """What a benchmark measured, turn by turn; medians decide, so one disturbed turn does not."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def middle(self, form: str = ".2f") -> str:
        return f"{self.median:{form}}"

    def said(self, form: str = ".2f") -> str:
        """With its spread."""
        return f"{self.median:{form}} ({min(self.values):{form}} to {max(self.values):{form}})"


def measured(benchmark: str, case: str, quantity: str) -> Turns:
    """A row of results/measured.csv, which `--keep` writes in the benchmarks."""
    found = [row["values"] for row in rows("measured.csv", benchmark=benchmark, case=case, quantity=quantity)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of measured.csv have {benchmark}, {case}, {quantity}, one was expected")
    return Turns(tuple(map(float, found[0].split())))


def was_measured(benchmark: str, case: str, quantity: str) -> bool:
    return bool(rows("measured.csv", benchmark=benchmark, case=case, quantity=quantity))


def machine(benchmark: str) -> str:
    """Where all of it was measured: rows of several machines stand in no table together."""
    found = {row["machine"] for row in rows("measured.csv", benchmark=benchmark)}
    if len(found) != 1:
        raise LookupError(f"rows of measured.csv with {benchmark} are of {len(found)} machines, one was expected")
    return found.pop()


def one(name: str, column: str, **equal: str) -> float:
    """The number in this column of the one row with these values."""
    found = [row[column] for row in rows(name, **equal)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {name} have {equal}, one was expected")
    return float(found[0])


def trial(variant: str, column: str = "step 1", seed: int = 100, schedule: str = "80+20", **more: str) -> float:
    return one("trials.csv", column, variant=variant, seed=str(seed), schedule=schedule, **more)


def tuned(method: str, settings: str = "") -> float:
    """Step 1 on seed 100."""
    return one("tuning.csv", "step 1 accuracy", method=method, settings=settings)


def original(recipe: str) -> str:
    """Step 1 with the recipe of a method's authors, on seed 100; nothing if it has not been run."""
    same = {"recipe": recipe, "seed": "100", "server rate": "original"}
    found = rows("recipes.csv", **same) if (HERE / "recipes.csv").exists() else []
    return found[0]["step 1 accuracy"] if found else ""


def first_form(column: str, run: str, seeds: tuple[int, ...] = (0, 1, 2)) -> list[float]:
    """By seed; a run is dataset, method and schedule, then the variant after an asterisk that stands for the seed."""
    stem, _, variant = run.partition("*")
    return [one("first-form.csv", column, run=f"{stem}-seed{seed}{variant}") for seed in seeds]


def printed(table: str, method: str, schedule: str = "80+4x5", dataset: str = "cifar10") -> list[float]:
    """A row of the paper: [RI, PA] of table1, [accuracy, PA, RI] of ablation, [PA, RI] of sensitivity."""
    found: list[float] = everything()[table][dataset][schedule][method]
    return found


def printed_ablation(method: str) -> str:
    """A row of the paper's ablation as accuracy, PA and RI; nothing for what it does not have."""
    found = everything()["ablation"]["cifar10"]["80+4x5"].get(method)
    return f"{found[0]:.1f}, {found[1]:+.1f}, {found[2]:+.1f}" if found else ""
