"""The tables of the report as plain data; `writers` and the page's template turn them into text."""

from collections.abc import Sequence

from pfeddsh.report import costs, measures, table1
from pfeddsh.report.columns import (
    END,
    LOST,
    PA,
    PAPER_PA,
    PAPER_RI,
    RI,
    RI_TOTAL,
    RI_TOTAL_BARE,
    SAMPLED,
    STEP1,
    WORSE,
    ZERO_SHOT,
)  # fmt: skip
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import Measure, over_seeds, worst_loss
from pfeddsh.report.paper import beside
from pfeddsh.report.table import METHOD, SEED_LIST, Column, Row, Table, Value


def build(groups: Sequence[Group]) -> list[Table]:
    tables = [
        *table1.build(groups), _measures(groups), _ablation(groups), _sensitivity(groups), _losses(groups),
        costs.latency(groups), costs.payload(groups), costs.capacity(groups),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


ALL: tuple[tuple[Column, Measure], ...] = (
    (END, measures.everyone_at_the_end),
    (LOST, measures.lost),
    (STEP1, measures.first_step),
    (Column("alone", "local-only accuracy of the first batch, %"), measures.first_batch_alone),
    (Column("batch 1 at the end", "mean accuracy of the first batch after the last step, %"),
     measures.first_batch_at_the_end),
    (PA, measures.pa_last),
    (SAMPLED, measures.pa_sampled_last),
    (ZERO_SHOT, measures.zero_shot_last),
    (Column("PA mean", "over all later steps, points", signed=True), measures.pa_mean),
    (Column("PA mean, 3+ visits", "over newcomers sampled at least three times, points", signed=True),
     measures.pa_sampled_mean),
    (Column("zero-shot mean", "PA before any round of a step, over all later steps, points", signed=True),
     measures.zero_shot_mean),
    (RI, measures.ri_last),
    (RI_TOTAL, measures.ri_total),
    (Column("lowest RI", "over steps, points", signed=True), measures.ri_lowest),
    (Column("RI no guard", "of the last step, had clients taken every offer, points", signed=True),
     measures.ri_unguarded),
    (RI_TOTAL_BARE, measures.ri_total_unguarded),
    (WORSE, measures.worse),
)  # fmt: skip


def _spreads(cells: Sequence[tuple[Group, Cell]], shown: Sequence[tuple[Column, Measure]]) -> tuple[Row, ...]:
    return tuple(
        Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, measure) for _, measure in shown)))
        for group, cell in cells
    )


def _with_the_paper(table: str, rows: Sequence[Row], width: int) -> tuple[Row, ...]:
    """The rows with the paper's numbers as last columns."""
    return tuple(Row(row.group, row.cell, (*row.values, *beside(table, row.cell, width))) for row in rows)


def _measures(groups: Sequence[Group]) -> Table:
    columns = (METHOD, SEED_LIST, *(column for column, _ in ALL))
    rows = _spreads([(group, cell) for group in groups for cell in group.cells], ALL)
    return Table("measures", "All measures of all runs", "Mean ± standard deviation over seeds.", columns, rows)


def _ablation(groups: Sequence[Group]) -> Table:
    shown = (
        (END, measures.everyone_at_the_end), (LOST, measures.lost), (STEP1, measures.first_step),
        (PA, measures.pa_last), (RI, measures.ri_last),
        (RI_TOTAL, measures.ri_total), (WORSE, measures.worse),
    )  # fmt: skip
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown), Column("paper accuracy"), PAPER_PA, PAPER_RI)
    cells = [(group, cell) for group in groups for cell in group.ablations]
    rows = _with_the_paper("ablation", _spreads(cells, shown), 3)
    note = "Parts of pFedDSH taken away one by one. The paper's ablation has a PA and RI unlike those of its Table 1."
    return Table("ablation", "Ablation", note, columns, rows)


def _sensitivity(groups: Sequence[Group]) -> Table:
    shown = (
        (END, measures.everyone_at_the_end), (STEP1, measures.first_step),
        (PA, measures.pa_last), (RI, measures.ri_last),
        (RI_TOTAL, measures.ri_total), (RI_TOTAL_BARE, measures.ri_total_unguarded), (WORSE, measures.worse),
        (Column("replay", "seconds per later step", digits=1), measures.replay_seconds),
    )  # fmt: skip
    cells = [(group, cell) for group in groups for several in group.sensitivity for cell in several]
    note = "Runs that differ in a setting of the method only; the first of each method has its usual settings."
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown), PAPER_PA, PAPER_RI)
    rows = _with_the_paper("sensitivity", _spreads(cells, shown), 2)
    return Table("sensitivity", "Sensitivity to settings", note, columns, rows)


def _losses(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST, LOST, WORSE,
        Column("largest loss", "of one existing client over one step, points"),
        Column("client"), Column("seed"), Column("in step"),
    )  # fmt: skip
    rows = []
    for group in groups:
        for cell in group.cells:
            loss = worst_loss(cell)
            worst: tuple[Value, ...] = (
                (loss.points, loss.client, loss.seed, loss.step) if loss else (0.0, None, None, None)
            )
            shares = over_seeds(cell, measures.lost), over_seeds(cell, measures.worse)
            rows.append(Row(group, cell, (cell.label, cell.seeds, *shares, *worst)))
    return Table("losses", "Who lost", "Over all steps after a client's own.", columns, tuple(rows))
