"""Whether `make demo` shows what is true on average: its comparison for seeds 0 to 4, written into docs/demo.md.

python benchmarks/demo.py [FOLDER]    # continues what is in the folder; about five minutes on two idle cores
"""

import sys
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console

from pfeddsh.compare.comparison import Comparison
from pfeddsh.compare.demo import NAMES, Outcome, outcome, plan
from pfeddsh.compare.summary import results
from pfeddsh.storage.files import write_text

SEEDS = range(5)
PAGE = Path(__file__).parent.parent / "docs" / "demo.md"
BEGIN, END = "<!-- benchmarks/demo.py -->", "<!-- end -->"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo-seeds").absolute()
    comparison = Comparison(plan(SEEDS), folder, 2, limit=10**10)
    if comparison.compute("local", Console()):
        sys.exit("some runs failed; start again")
    found: dict[str, list[Outcome]] = {method: [] for method in NAMES}
    for run in comparison.runs:
        one = results(folder / run.name)
        assert one
        found[run.config.method].append(outcome(one))
    text = table(found)
    print(text)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def table(found: dict[str, list[Outcome]]) -> str:
    ours = found["pfeddsh"]
    lines = [
        "| | everyone at the end, % | newcomers at once, % | after their step, % | existing clients, change, points |"
        " lost > 2 points, % | seeds in which pFedDSH is ahead for everyone |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for several in sorted(found.values(), key=lambda several: -fmean(each.everyone for each in several)):
        ends = [each.everyone for each in several]
        at_once = [each.at_once for each in several if each.at_once is not None]
        won = sum(mine.everyone > theirs.everyone for mine, theirs in zip(ours, several, strict=True))
        cells = (
            f"**{several[0].name}**" if several is ours else several[0].name,
            f"{fmean(ends):.1f} ± {stdev(ends):.1f}",
            f"{fmean(at_once):.1f}" if at_once else "",
            f"{fmean(each.after for each in several):.1f}",
            f"{fmean(each.end - each.before for each in several):+.1f}",
            f"{fmean(each.lost for each in several):.0f}",
            "" if several is ours else f"{won} of {len(several)}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *by_seed(found)])


def by_seed(found: dict[str, list[Outcome]]) -> list[str]:
    """Everyone at the end, seed by seed: whether a win is more than rounding."""
    seeds = range(len(found["pfeddsh"]))
    lines = ["| everyone at the end, % | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    lines.append("|---|" + "---:|" * len(seeds))
    for several in sorted(found.values(), key=lambda several: -fmean(each.everyone for each in several)):
        lines.append("| " + " | ".join([several[0].name, *(f"{each.everyone:.2f}" for each in several)]) + " |")
    return lines


if __name__ == "__main__":
    main()
