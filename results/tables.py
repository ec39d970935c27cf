"""Write the tables of the documentation from the runs in this folder: docs/tables.md, and one in README and results.md.

`python results/tables.py` after `results/reproduce.sh`, or whenever a run here has changed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
PARTS = ("table1", "measures", "ablation", "sensitivity", "losses", "tests", "capacity", "latency", "payload")
SCHEDULES = ("80+20", "80+4x5", "80+10x2")
NAMES = {
    "fedavg": "FedAvg", "fedper": "FedPer", "fedrep": "FedRep", "fedselect": "FedSelect", "pfedhn": "pFedHN",
    "pefll": "PeFLL", "odpfl-hn": "ODPFL-HN", "fedweit": "FedWeIT", "fedclass": "FedCLASS",
    "fedclass-local-head": "FedCLASS, local head", "hr": "HR", "hr-local-head": "HR, local head",
    "pfeddsh-neither": "pFedDSH without protection and replay", "pfeddsh": "**pFedDSH**",
}  # fmt: skip


def all_tables() -> str:
    """What `pfeddsh report` makes of the runs, in one file."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        subprocess.run([sys.executable, "-m", "pfeddsh", "report", str(HERE), "--out", str(page)], check=True)
        parts = [(Path(folder) / "page-tables" / f"{name}.md").read_text().strip() for name in PARTS]
    return "# Tables\n\nAll runs in `results/`, by `python results/tables.py`.\n\n" + "\n\n".join(parts) + "\n"


def short_table() -> str:
    """CIFAR-10, 80+20: one line a method."""
    lines = ["| | seeds | first batch after its step | PA of the newcomers | RI of existing clients | of them lost |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for method, name in NAMES.items():
        runs = [json.loads(path.read_text()) for path in HERE.glob(f"cifar10-{method}-80+20-seed?.json")]
        if not runs:
            continue
        first = fmean(fmean(a for a in run["acc"][0] if a is not None) for run in runs)
        lost = fmean(
            100 * fmean(run["acc"][1][k] < run["acc"][0][k] for k, batch in enumerate(run["batch"]) if batch == 1)
            for run in runs
        )
        pa, ri = fmean(run["pa_mean"] for run in runs), fmean(run["ri_last"] for run in runs)
        cells = [f"{first:.1f} %", f"{pa:+.1f}", f"{ri:+.1f}", f"{lost:.0f} %"]
        cells = [f"**{cell}**" if method == "pfeddsh" else cell for cell in cells]
        lines.append(f"| {name} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def whole_runs() -> str:
    """CIFAR-10: what became of the first batch over the whole run, and what newcomers gained on average."""
    lines = ["| | " + " | ".join(f"{schedule}: first batch | newcomers | n" for schedule in SCHEDULES) + " |"]
    lines.append("|---|" + "---:|" * 3 * len(SCHEDULES))
    for method, name in NAMES.items():
        cells = []
        for schedule in SCHEDULES:
            runs = [json.loads(path.read_text()) for path in HERE.glob(f"cifar10-{method}-{schedule}-seed?.json")]
            means = [fmean(run[key] for run in runs) for key in ("ri_cumulative", "pa_mean")] if runs else []
            cells += [*(f"{mean:+.1f}" for mean in means), str(len(runs))] if runs else ["", "", ""]
        if any(cells[3:]):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def between(text: str, content: str) -> str:
    """The text with what lies between its two marks replaced."""
    begin, end = "<!-- results/tables.py -->", "<!-- end -->"
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + content + "\n" + end + rest.split(end, 1)[1]


def main() -> None:
    (HERE.parent / "docs" / "tables.md").write_text(all_tables())
    for path, table in ((HERE.parent / "README.md", short_table()), (HERE.parent / "docs/results.md", whole_runs())):
        path.write_text(between(path.read_text(), table))


if __name__ == "__main__":
    main()
