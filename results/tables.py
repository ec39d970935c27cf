"""Write the documentation's tables from the runs in this folder: docs/tables.md, and those in README and results.md.

`python results/tables.py` after `results/reproduce.sh`, or whenever a run here has changed.
"""

from pathlib import Path

from pfeddsh.report import measures, tables
from pfeddsh.report.grouping import Cell, Group, group_runs
from pfeddsh.report.measures import over_seeds
from pfeddsh.report.read import gather
from pfeddsh.report.writers import markdown

HERE = Path(__file__).parent
PARTS = (
    "standings", "table1", "measures", "ablation", "sensitivity", "losses", "tests", "capacity", "latency", "payload",
)  # fmt: skip
SCHEDULES = ("80+20", "80+4x5", "80+10x2", "20+80", "10+9x10")
OTHERS = {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
NAMES = {
    "fedavg": "FedAvg", "fedper": "FedPer", "fedrep": "FedRep", "fedselect": "FedSelect", "pfedhn": "pFedHN",
    "pefll": "PeFLL", "odpfl-hn": "ODPFL-HN", "fedweit": "FedWeIT", "fedclass": "FedCLASS",
    "fedclass-local-head": "FedCLASS, local head", "hr": "HR", "hr-local-head": "HR, local head",
    "fedavg-prior": "FedAvg + prior", "fedavg-prior-finetune": "FedAvg + prior + fine-tuning",
    "fedper-prior": "FedPer + prior", "fedrep-prior": "FedRep + prior", "ditto-prior": "Ditto + prior",
    "pfeddsh": "**pFedDSH**", "local": "*local-only training, the control*",
    "central": "*one model on pooled data, the ceiling*",
}  # fmt: skip


Cells = dict[tuple[str, str, str], Cell]  # by dataset, schedule and method


def all_tables(groups: list[Group]) -> str:
    """What `pfeddsh report` makes of the runs, in one file."""
    made = {table.name: markdown(table).strip() for table in tables.build(groups)}
    parts = [made[name] for name in PARTS if name in made]  # a part without runs is not made
    return "# Tables\n\nAll runs in `results/`, by `python results/tables.py`.\n\n" + "\n\n".join(parts) + "\n"


COLUMNS: dict[str, tuple[measures.Measure, str]] = {
    "everyone at the end, %": (measures.everyone_at_the_end, ".1f"),
    "lost > 2 points, %": (measures.lost, ".0f"),
    "first batch after its step, %": (measures.first_step, ".1f"),
    "its change to the end": (measures.ri_total, "+.1f"),
    "PA of newcomers": (measures.pa_mean, "+.1f"),
    "3+ visits": (measures.pa_sampled_mean, "+.1f"),
    "zero-shot": (measures.zero_shot_mean, "+.1f"),
}


def main_table(cells: Cells, dataset: str, schedule: str) -> str:
    """One line a method, the best for everyone at the end first; columns are of the whole run.

    A column that says the same as one before it, as PA of those with three visits where all have them, is left out.
    """
    found = [(name, cell) for method, name in NAMES.items() if (cell := cells.get((dataset, schedule, method)))]
    rows = {name: [over_seeds(cell, measure) for measure, _ in COLUMNS.values()] for name, cell in found}
    order = sorted(found, key=lambda pair: -(end.mean if (end := rows[pair[0]][0]) else 0.0))
    columns = list(zip(*rows.values(), strict=True))
    shown = [i for i, column in enumerate(columns) if any(column) and column not in columns[:i]]
    headings = [list(COLUMNS)[i] for i in shown]
    lines = ["| | " + " | ".join(headings) + " | seeds |", "|---|" + "---:|" * (len(shown) + 1)]
    forms = [form for _, form in COLUMNS.values()]
    best = next((name for name, _ in order if name != NAMES["central"]), None)  # what the setting allows
    for name, cell in order:
        texts = [f"{spread.mean:{forms[i]}}" if (spread := rows[name][i]) else "" for i in shown]
        texts[0] = f"**{texts[0]}**" if name == best else texts[0]
        lines.append(f"| {name} | " + " | ".join(texts) + f" | {len(cell.runs)} |")
    return "\n".join(lines)


def between(text: str, content: str) -> str:
    """The text with what lies between its two marks replaced."""
    begin, end = "<!-- results/tables.py -->", "<!-- end -->"
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + content + "\n" + end + rest.split(end, 1)[1]


def main() -> None:
    groups, _ = group_runs(gather([HERE])[0])
    cells = {(group.setting.dataset, group.schedule, cell.label): cell for group in groups for cell in group.cells}
    docs = HERE.parent / "docs"
    (docs / "tables.md").write_text(all_tables(groups))
    titled = [("cifar10", "CIFAR-10", SCHEDULES), *((name, title, SCHEDULES[:2]) for name, title in OTHERS.items())]
    parts = [
        f"**{title}, {schedule}**\n\n{main_table(cells, dataset, schedule)}"
        for dataset, title, schedules in titled
        for schedule in schedules
    ]
    short = main_table(cells, "cifar10", SCHEDULES[0])
    for path, text in ((HERE.parent / "README.md", short), (docs / "results.md", "\n\n".join(parts))):
        path.write_text(between(path.read_text(), text))


if __name__ == "__main__":
    main()
