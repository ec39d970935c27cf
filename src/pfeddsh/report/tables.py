"""The tables of the report as plain data; `writers` and the page's template turn them into text."""

from collections.abc import Sequence

from pfeddsh.report import costs, measures, standings, steps
from pfeddsh.report.columns import (
    CHANGE,
    CHANGE_BARE,
    END,
    FIRST,
    LOST,
    PA,
    PA_LAST,
    PAPER_PA,
    PAPER_RI,
    REPLAY,
    RI_LAST,
    SAMPLED,
    SAMPLED_LAST,
    WORSE,
    ZERO_SHOT,
    ZERO_SHOT_LAST,
)  # fmt: skip
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import Measure, over_seeds, worst_loss
from pfeddsh.report.paper import beside
from pfeddsh.report.table import METHOD, SEED_LIST, Column, Row, Table, Value, by


def build(groups: Sequence[Group]) -> list[Table]:
    tables = [
        *standings.build(groups), steps.build(groups), _measures(groups), _ablation(groups), _sensitivity(groups),
        _losses(groups), costs.latency(groups), costs.payload(groups), costs.capacity(groups),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


ALL: tuple[tuple[Column, Measure], ...] = (
    (END, measures.everyone_at_the_end),
    (LOST, measures.lost),
    (FIRST, measures.first_step),
    (Column("first batch alone", "local-only accuracy of the first batch", unit="%"), measures.first_batch_alone),
    (Column("first batch at the end", "mean accuracy of the first batch after the last step", unit="%"),
     measures.first_batch_at_the_end),
    (CHANGE, measures.ri_total),
    (CHANGE_BARE, measures.ri_total_unguarded),
    (PA, measures.pa_mean),
    (SAMPLED, measures.pa_sampled_mean),
    (ZERO_SHOT, measures.zero_shot_mean),
    (PA_LAST, measures.pa_last),
    (SAMPLED_LAST, measures.pa_sampled_last),
    (ZERO_SHOT_LAST, measures.zero_shot_last),
    (RI_LAST, measures.ri_last),
    (Column("lowest RI", "of all steps", signed=True, unit="points"), measures.ri_lowest),
    (Column("RI, last step, no guard", "if clients accepted every offer", signed=True, unit="points"),
     measures.ri_unguarded),
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
    end = measures.everyone_at_the_end
    rows = _spreads([(group, cell) for group in groups for cell in by(end, group.cells)], ALL)
    note = "Ordered by everyone at the end. Mean ± standard deviation over seeds."
    return Table("measures", "All measures of all runs", note, columns, rows)


def _ablation(groups: Sequence[Group]) -> Table:
    shown = (
        (END, measures.everyone_at_the_end), (LOST, measures.lost), (FIRST, measures.first_step),
        (CHANGE, measures.ri_total), (PA, measures.pa_mean),
        (PA_LAST, measures.pa_last), (RI_LAST, measures.ri_last), (WORSE, measures.worse),
    )  # fmt: skip
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown), Column("paper accuracy", unit="%"), PAPER_PA, PAPER_RI)
    cells = [(group, cell) for group in groups for cell in by(measures.everyone_at_the_end, group.ablations)]
    rows = _with_the_paper("ablation", _spreads(cells, shown), 3)
    note = "Parts of pFedDSH are removed one by one. PA and RI in the paper's ablation differ from its Table 1."
    return Table("ablation", "Ablation", note, columns, rows)


def _sensitivity(groups: Sequence[Group]) -> Table:
    shown = (
        (END, measures.everyone_at_the_end), (FIRST, measures.first_step),
        (CHANGE, measures.ri_total), (CHANGE_BARE, measures.ri_total_unguarded), (PA, measures.pa_mean),
        (PA_LAST, measures.pa_last), (RI_LAST, measures.ri_last), (WORSE, measures.worse),
        (REPLAY, measures.replay_seconds),
    )  # fmt: skip
    cells = [(group, cell) for group in groups for several in group.sensitivity for cell in several]
    note = "Runs that differ only in settings of the method; the first of each method has its default settings."
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown), PAPER_PA, PAPER_RI)
    rows = _with_the_paper("sensitivity", _spreads(cells, shown), 2)
    return Table("sensitivity", "Sensitivity to settings", note, columns, rows)


def _losses(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST, LOST, WORSE,
        Column("largest loss", "of one existing client over one step", unit="points"),
        Column("client"), Column("seed"), Column("in step"),
    )  # fmt: skip
    rows = []
    for group in groups:
        for cell in by(measures.lost, group.cells):
            loss = worst_loss(cell)
            worst: tuple[Value, ...] = (
                (loss.points, loss.client, loss.seed, loss.step) if loss else (0.0, None, None, None)
            )
            shares = over_seeds(cell, measures.lost), over_seeds(cell, measures.worse)
            rows.append(Row(group, cell, (cell.label, cell.seeds, *shares, *worst)))
    return Table(
        "losses", "Clients that lost accuracy", "The method with the largest share comes first.", columns, tuple(rows)
    )
