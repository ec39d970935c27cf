"""Write what the documents say of the runs in this folder: whole pages of docs, and the marked parts of others.

`python results/tables.py` after `results/reproduce.sh`, or whenever a run here has changed; with `--check` it writes
nothing, and fails where a document says something else. Sentences lie in results/text with their numbers left open.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import cost
import demo_seeds
import lookup
import privacy_rows
import sites
from behind import behind, losers
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from runs import HERE, MEASURES, Runs, rows
from standings import furthest, main_table, nearest, overview, steadiest
from verdicts import verdicts
from wording import CONTROLS, GROWING, RIVALS, SCHEDULES, named

from pfeddsh.report import paper, tables
from pfeddsh.report.grouping import unpaired
from pfeddsh.report.writers import markdown

PARTS = (
    "standings", "table1", "measures", "ablation", "sensitivity", "losses", "tests", "capacity", "latency", "payload",
)  # fmt: skip
INTRODUCTION = """# Tables

All runs in `results/`, by `python results/tables.py`. The tests here compare methods with their usual settings, and
correct within one table. [results.md](results.md#are-the-differences-significant) tests pFedDSH against all settings of
the others, and corrects over all places.
"""
WHOLE = ("results", "technical-report", "performance", "scale")  # pages that are made of a template
MARKED = [HERE.parent / "README.md", *(HERE.parent / "docs" / f"{name}.md" for name in (
    "baselines", "deviations", "first-form", "demo", "medical", "operations", "privacy", "robustness",
))]  # fmt: skip  # those with a part between two marks


def all_tables(runs: Runs) -> str:
    """What `pfeddsh report` makes of the runs, in one file."""
    made = {table.name: markdown(table).strip() for table in tables.build(runs.made)}
    parts = [made[name] for name in PARTS if name in made]  # a part without runs is not made
    return "\n\n".join([INTRODUCTION.strip(), *parts]) + "\n"


def rendered(runs: Runs, template: str) -> str:
    """A document of results/text with its numbers filled in; it cannot name a run that is not here."""
    tuning = Runs(HERE, tuning=True)

    def mean(measure: str, method: str, schedule: str, form: str = "", **where: object) -> str:
        return f"{runs.mean(measure, method, schedule, **where):{form or MEASURES[measure][1]}}"  # type: ignore[arg-type]

    def each(measure: str, method: str, schedule: str, form: str = "", seeds: Sequence[int] = (), **where: object
             ) -> str:  # fmt: skip
        values = where.pop("of", runs).values(measure, method, schedule, **where)  # type: ignore[attr-defined]
        chosen = sorted(seeds or values)
        return ", ".join(f"{values[seed]:{form or MEASURES[measure][1]}}" for seed in chosen) or "-"

    def lead(others: Sequence[str], schedule: str, **where: object) -> str:
        return ", ".join(f"{value:+.1f}" for value in runs.lead("pfeddsh", others, schedule, **where).values())

    def later_leads(schedule: str, other: str) -> str:
        found = runs.lead("pfeddsh", [other], schedule, dataset="cifar100")
        return ", ".join(f"{value:+.1f}" for seed, value in found.items() if seed > 2)

    tools = Environment(
        loader=FileSystemLoader(HERE / "text"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    tools.tests["search"] = lambda text, pattern: re.search(pattern, text) is not None
    tools.tests["frozen_too"] = lambda method: runs.cell(f"{method}, later=frozen", "80+4x5") is not None
    tools.globals |= {
        "runs": runs, "tuning": tuning, "controls": CONTROLS, "rivals": RIVALS, "schedules": SCHEDULES,
        "everywhere": SCHEDULES + GROWING, "name": named, "rows": rows,
        "table": lambda *place, **where: main_table(runs, *place, **where), "overview": lambda: overview(runs),
        "nearest": lambda *place: nearest(runs, *place), "steadiest": lambda: steadiest(runs),
        "furthest": lambda label: furthest(runs, label),
        "mean": mean, "each": each, "each_tuning": lambda *what: each(*what, of=tuning), "lead": lead,
        "later_leads": later_leads, "subset_trials": sum("subset" in row["variant"] for row in rows("trials.csv")),
        "behind": lambda: behind(runs), "losers": lambda: losers(runs),
        "verdicts": lambda: verdicts(runs), "best_rival": lambda *place: best_rival(runs, *place),
        "original": lookup.original, "trial": lookup.trial, "tuned": lookup.tuned, "first_form": lookup.first_form,
        "printed": lookup.printed, "printed_ablation": lookup.printed_ablation,
        "measured": lookup.measured, "was_measured": lookup.was_measured, "machine": lookup.machine,
        "sites": sites, "demo": demo_seeds.found, "privacy": privacy_rows,
        "printed_all": lambda t: list(paper.everything()[t]["cifar10"]["80+4x5"].values()),
        "payload": lambda method: payload(runs, method), "min": min, "max": max,
        "hours": lambda: (runs.seconds + tuning.seconds) / 3600, "count": runs.count + tuning.count,
        "cost": cost, "every": runs.all + tuning.all,
        "exists": lambda name: (HERE / name).exists(),
    }  # fmt: skip
    return tools.get_template(template).render()


def best_rival(runs: Runs, measure: str, schedule: str, dataset: str) -> float:
    """Of the methods in contest, seed 0."""
    group = runs.group(schedule, dataset)
    others = [cell.label for cell in group.contest if cell.variant.method != "pfeddsh"] if group else []
    found = [runs.values(measure, method, schedule, dataset=dataset) for method in others]
    return max(values[0] for values in found if 0 in values)


def payload(runs: Runs, method: str) -> list[str]:
    """KiB of 80+20, seed 0: down, up, once down, once up, and the paper's down and up."""
    cell = runs.cell(method, "80+20")
    assert cell, method
    sent = cell.runs[0].results.payload_kib
    own = [f"{value or 0:.2f}" for value in (sent.down, sent.up, sent.once_down, sent.once_up)]
    printed = paper.everything()["payload"].get(method.removesuffix("-local-head"))
    return [*own, " / ".join(f"{value:.2f}" for value in printed) if printed else "not in its table"]


def between(text: str, content: str) -> str:
    """The text with what lies between its pairs of marks replaced, part by part."""
    begin, end = "<!-- results/tables.py -->", "<!-- end -->"
    before, *rest = text.split(begin)
    parts = content.split("<!-- next -->")
    marked = [f"{begin}\n{part.strip()}\n{end}{old.split(end, 1)[1]}" for old, part in zip(rest, parts, strict=True)]
    return before + "".join(marked)


def documents(runs: Runs) -> dict[Path, str]:
    """Every file that says what runs have shown, as it should be."""
    docs = HERE.parent / "docs"
    whole = {docs / f"{name}.md": rendered(runs, f"{name}.md.j2") for name in WHOLE}
    marked = {path: between(path.read_text(), rendered(runs, f"{path.stem.lower()}.md.j2")) for path in MARKED}
    return {docs / "tables.md": all_tables(runs)} | whole | marked


def faults(runs: Runs) -> list[str]:
    """Runs that stand in one table and cannot be paired."""
    found = [where for group in runs.groups for where in unpaired(group)]
    return [f"{where}: runs of other clients in one table; make them again" for where in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check, runs = parser.parse_args().check, Runs()
    print(*runs.problems, sep="\n", file=sys.stderr)
    made = documents(runs)
    if check:
        stale = [path for path, text in made.items() if path.read_text() != text]
        sys.exit("\n".join(faults(runs) + [f"{path.name}: not as results/ says" for path in stale]) or 0)
    for path, text in made.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
