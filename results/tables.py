"""Write the documentation's tables from the runs in this folder: docs/tables.md, and those in README and results.md.

`python results/tables.py` after `results/reproduce.sh`, or whenever a run here has changed.
"""

from collections.abc import Sequence
from pathlib import Path

from pfeddsh.report import measures, tables
from pfeddsh.report.arrange import Cell, Group, arrange
from pfeddsh.report.measures import over_seeds
from pfeddsh.report.read import gather
from pfeddsh.report.writers import markdown

HERE = Path(__file__).parent
PARTS = ("table1", "measures", "ablation", "sensitivity", "losses", "tests", "capacity", "latency", "payload")
SCHEDULES = ("80+20", "80+4x5", "80+10x2")
OTHERS = {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
NAMES = {
    "fedavg": "FedAvg", "fedper": "FedPer", "fedrep": "FedRep", "fedselect": "FedSelect", "pfedhn": "pFedHN",
    "pefll": "PeFLL", "odpfl-hn": "ODPFL-HN", "fedweit": "FedWeIT", "fedclass": "FedCLASS",
    "fedclass-local-head": "FedCLASS, local head", "hr": "HR", "hr-local-head": "HR, local head",
    "pfeddsh-neither": "pFedDSH without protection and replay", "pfeddsh": "**pFedDSH**",
}  # fmt: skip


Cells = dict[tuple[str, str, str], Cell]  # by dataset, schedule and method


def all_tables(groups: list[Group]) -> str:
    """What `pfeddsh report` makes of the runs, in one file."""
    made = {table.name: markdown(table).strip() for table in tables.build(groups)}
    parts = [made[name] for name in PARTS]
    return "# Tables\n\nAll runs in `results/`, by `python results/tables.py`.\n\n" + "\n\n".join(parts) + "\n"


def short_table(cells: Cells) -> str:
    """80+20: one line a method."""
    lines = ["| | seeds | first batch after its step | PA of the newcomers | RI of existing clients | of them lost |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    shown = ((measures.first_step, ".1f", " %"), (measures.pa_mean, "+.1f", ""), (measures.ri_last, "+.1f", ""),
             (measures.worse, ".0f", " %"))  # fmt: skip
    for method, name in NAMES.items():
        if cell := cells.get(("cifar10", SCHEDULES[0], method)):
            texts = [f"{s.mean:{form}}{unit}" for measure, form, unit in shown if (s := over_seeds(cell, measure))]
            texts = [f"**{text}**" if method == "pfeddsh" else text for text in texts]
            lines.append(f"| {name} | {len(cell.runs)} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def whole_runs(cells: Cells, dataset: str, schedules: Sequence[str]) -> str:
    """What became of the first batch over the whole run, and what newcomers gained on average."""
    lines = ["| | " + " | ".join(f"{schedule}: first batch | newcomers | n" for schedule in schedules) + " |"]
    lines.append("|---|" + "---:|" * 3 * len(schedules))
    for method, name in NAMES.items():
        texts = []
        for schedule in schedules:
            cell = cells.get((dataset, schedule, method))
            means = [over_seeds(cell, measure) for measure in (measures.ri_total, measures.pa_mean)] if cell else []
            texts += [*(f"{mean.mean:+.1f}" for mean in means if mean), str(len(cell.runs))] if cell else ["", "", ""]
        if any(texts[3:]):
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def between(text: str, content: str) -> str:
    """The text with what lies between its two marks replaced."""
    begin, end = "<!-- results/tables.py -->", "<!-- end -->"
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + content + "\n" + end + rest.split(end, 1)[1]


def main() -> None:
    groups, _ = arrange(gather([HERE])[0])
    cells = {(group.setting.dataset, group.schedule, cell.label): cell for group in groups for cell in group.cells}
    docs = HERE.parent / "docs"
    (docs / "tables.md").write_text(all_tables(groups))
    short = short_table(cells)
    parts = [whole_runs(cells, "cifar10", SCHEDULES), "With twenty newcomers at once (80+20), from step 1 on:", short]
    for dataset, title in OTHERS.items():
        parts += [f"As the first of these tables, for {title}:", whole_runs(cells, dataset, SCHEDULES[:2])]
    both = "\n\n".join(parts)
    for path, text in ((HERE.parent / "README.md", short), (docs / "results.md", both)):
        path.write_text(between(path.read_text(), text))


if __name__ == "__main__":
    main()
