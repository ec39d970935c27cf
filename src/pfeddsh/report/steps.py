"""A single run step by step: who came, how they fared, and what became of those who were there."""

from collections.abc import Sequence

from pfeddsh.report.columns import LOST
from pfeddsh.report.contract import Results, mean
from pfeddsh.report.grouping import Group
from pfeddsh.report.table import Column, Row, Table, Value

COLUMNS = (
    Column("step"), Column("newcomers", "clients that joined in this step"),
    Column("their accuracy", "after the step", unit="%"),
    Column("alone", "the same clients after local-only training with the same visits", unit="%"),
    Column("PA", "their accuracy minus alone", signed=True, unit="points"),
    Column("zero-shot PA", "before the step's first round", signed=True, unit="points"),
    Column("existing before", "accuracy of existing clients before the step", unit="%"),
    Column("existing after", "the same clients after the step, without training", unit="%"),
    Column("RI", "their change", signed=True, unit="points"),
    Column(LOST.name, "share of existing clients that lost more than 2 points over this step", digits=1, unit="%"),
    Column("everyone", "mean accuracy of all clients so far", unit="%"),
)  # fmt: skip


def build(groups: Sequence[Group]) -> Table:
    """For groups that are one run; with several methods or seeds, other tables say it better."""
    rows = [
        Row(group, group.cells[0], _values(group.cells[0].runs[0].results, step))
        for group in groups
        if single(group)
        for step in range(1, group.steps + 1)
    ]
    return Table("steps", "Step by step", "One run, one seed.", COLUMNS, tuple(rows))


def single(group: Group) -> bool:
    return len(group.cells) == 1 and len(group.cells[0].runs) == 1


def _values(run: Results, step: int) -> tuple[Value, ...]:
    row, before = run.acc[step - 1], run.acc[step - 2] if step > 1 else []
    new = [k for k, joined in enumerate(run.batch) if joined == step]
    old = [k for k, joined in enumerate(run.batch) if joined < step and row[k] is not None]
    zero_shot, lost = (values[step - 1] if values else None for values in (run.pa_zero_shot, run.lost_share))
    return (
        step, len(new), mean([row[k] for k in new]), mean([run.local[k] for k in new]), run.pa[step - 1], zero_shot,
        mean([before[k] for k in old]), mean([row[k] for k in old]), run.ri[step - 1], lost, mean(row),
    )  # fmt: skip
