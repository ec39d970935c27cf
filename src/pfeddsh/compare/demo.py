"""`make demo`: one small comparison, and what a person should see of it first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfeddsh.compare.comparison import Comparison
from pfeddsh.compare.plan import Plan, make
from pfeddsh.compare.summary import results
from pfeddsh.errors import UserError
from pfeddsh.results.metrics import LOST

NAMES = {
    "pfeddsh": "pFedDSH", "fedavg-prior": "FedAvg + prior", "fedper": "FedPer", "fedavg": "FedAvg", "local": "alone",
}  # fmt: skip
# Skewed clients whose first batch is trained well before others come: where newcomers have nothing to repair, what they
# break shows. benchmarks/demo.py repeats it for five seeds; docs/demo.md has the outcome and how this was chosen.
SETTING: dict[str, Any] = {"alpha": 0.1, "rounds_first": 120, "rounds_later": 30, "sample_fraction": 0.1, "lr": 0.05}
SCHEDULE = "20+4x3"
WIDTH = 30  # of the figure's bars


def plan(seeds: Sequence[int] = (0,)) -> Plan:
    return make({"methods": list(NAMES), "schedules": [SCHEDULE], "seeds": list(seeds), "set": SETTING})


@dataclass(frozen=True)
class Outcome:
    """What one method came to, in % and points; means over clients."""

    method: str
    at_once: float | None  # newcomers before their first round
    after: float  # newcomers after their step
    before: float  # existing clients when their own step ended
    end: float  # the same clients at the end
    lost: float  # % of existing clients that lost more than 2 points, mean over later steps
    everyone: float

    @property
    def name(self) -> str:
        return NAMES[self.method]


def outcome(found: dict[str, Any]) -> Outcome:
    """From the content of a results.json."""
    batch, acc, local = found["batch"], found["acc"], found["local"]
    later = [k for k, joined in enumerate(batch) if joined > 1]
    existing = [k for k, joined in enumerate(batch) if joined < found["steps"]]
    gains = found["pa_zero_shot"]
    served = [gains[batch[k] - 1] for k in later]
    return Outcome(
        found["method"],
        None if None in served else fmean(map(float, served)) + fmean(local[k] for k in later),
        fmean(acc[batch[k] - 1][k] for k in later),
        fmean(acc[batch[k] - 1][k] for k in existing),
        fmean(acc[-1][k] for k in existing),
        fmean(share for share in found["lost_share"] if share is not None),
        found["acc_end_mean"],
    )


def demonstrate(out: Path, console: Console) -> None:
    """Run it, or what is left of it, and say what came of it: the sentence and the page first."""
    comparison = Comparison(plan(), out.absolute(), 2, limit=10**9, command=f"pfeddsh demo --out {out}")
    console.print(
        f"Five methods: 12 new clients join a federation of 20, on the embedded digits ({len(comparison.tasks())} "
        "small jobs, about a minute on two cores).",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    if failed := comparison.compute("local", console, quiet=True):
        raise UserError(
            f"{failed[0].name} failed; {failed[0].job.log} says why; run the same command again to continue"
        )
    found = [outcome(one) for run in comparison.runs if (one := results(comparison.out / run.name))]
    found.sort(key=lambda each: -each.everyone)
    console.print()
    console.print(Text(sentence(found), style="bold"), soft_wrap=True)
    console.print(f"The page: {comparison.page()}", soft_wrap=True, highlight=False)
    console.print(table(found))
    console.print(figure(found))
    console.print(
        "This is one seed. docs/demo.md has five, and says how this setting was chosen. Next: `pfeddsh run --help`.",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


def sentence(found: Sequence[Outcome]) -> str:
    """The result in one sentence, whoever wins."""
    ours = next(each for each in found if each.method == "pfeddsh")
    best, rivals = found[0], [each for each in found if each is not ours]
    order = (
        f"best for everyone, {ours.everyone:.1f} % at the end (next: {rivals[0].name}, {rivals[0].everyone:.1f} %)"
        if best is ours
        else f"{ours.everyone:.1f} % for everyone at the end (best: {best.name}, {best.everyone:.1f} %)"
    )
    at_once = f"{ours.at_once:.1f}" if ours.at_once is not None else "unknown"
    harmed = max(rivals, key=lambda each: each.lost)
    return (
        f"pFedDSH: {order}; newcomers had {at_once} % before their first round, {ours.after:.1f} % after their step; "
        f"{ours.lost:.0f} % of existing clients lost more than {LOST:g} points in a step, "
        f"{harmed.lost:.0f} % under {harmed.name}."
    )


def table(found: Sequence[Outcome]) -> Table:
    view = Table(
        box=None, padding=(0, 1), collapse_padding=True, caption_justify="left",
        caption=f"accuracies in %, means over clients; lost: existing clients that lost more than {LOST:g} points in a "
        "step, mean over steps",
    )  # fmt: skip
    view.add_column("")
    for head in ("everyone\nat the end", "newcomers\nat once", "after\ntheir step", "existing clients\nbefore, end"):
        view.add_column(head, justify="right", no_wrap=True)
    view.add_column("lost,\n%", justify="right", no_wrap=True)
    for each in found:
        at_once = "-" if each.at_once is None else f"{each.at_once:.1f}"
        change = f"{each.before:.1f} \u2192 {each.end:.1f}"
        row = (each.name, f"{each.everyone:.1f}", at_once, f"{each.after:.1f}", change, f"{each.lost:.0f}")
        view.add_row(*row, style="bold" if each.method == "pfeddsh" else "")
    return view


def figure(found: Sequence[Outcome]) -> Text:
    """Bars to both sides of nothing: what others' joining did to existing clients."""
    changes = [each.end - each.before for each in found]
    scale = WIDTH / max(1.0, max(changes, default=0.0) - min(0.0, *changes))
    left = round(-min(0.0, *changes) * scale)
    text = Text("change of existing clients when others join, points\n")
    for each, change in zip(found, changes, strict=True):
        bar = "\u2588" * max(1 if abs(change) >= 0.05 else 0, round(abs(change) * scale))
        text.append(f"{each.name:>15} {bar.rjust(left) if change < 0 else ' ' * left}", "red")
        text.append("\u2502")
        text.append(bar if change > 0 else "", "green")
        text.append(f" {change:+.1f}\n", "bold" if each.method == "pfeddsh" else "")
    return text
