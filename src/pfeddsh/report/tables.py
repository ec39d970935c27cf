"""The tables of the report as plain data; `writers` and the page's template turn them into text."""

from collections.abc import Sequence

from pfeddsh.report import costs, measures, paired
from pfeddsh.report.arrange import Cell, Group
from pfeddsh.report.measures import Measure, over_seeds, worst_loss
from pfeddsh.report.paired import against_best
from pfeddsh.report.paper import beside
from pfeddsh.report.table import METHOD, SEED_LIST, Column, Row, Table, Value, mark, p_value

SEEDS = Column("n", "seeds")
END = Column(
    "everyone at the end", "mean accuracy of everyone present after the last step, %: the measure that decides"
)
LOST = Column("lost > 2 points", "share of existing clients that lost more than 2 points over a step, mean over later "
              "steps, %", digits=1)  # fmt: skip
STEP1 = Column("step 1", "mean accuracy of the first batch after its own step, %")
PA = Column(
    "PA last", "proactive adaptation: accuracy of the last batch minus local-only training, points", signed=True
)
SAMPLED = Column("PA last, 3+ visits", "the same over newcomers sampled at least three times: whether a client is "
                 "sampled at all is the draw's doing", signed=True)  # fmt: skip
ZERO_SHOT = Column("zero-shot last", "PA of the last batch before any round of its step, for methods that can serve "
                   "newcomers at once, points", signed=True)  # fmt: skip
RI = Column("RI last", "retroactive improvement: change of existing clients over the last step, points", signed=True)
RI_TOTAL = Column("RI total", "change of the first batch over the whole run, points", signed=True)
RI_TOTAL_BARE = Column("RI total no guard", "the same, had clients taken every offer, points", signed=True)
PAPER_PA = Column("paper PA", "as printed in the paper, five seeds", signed=True)
PAPER_RI = Column("paper RI", "as printed in the paper, five seeds", signed=True)
WORSE = Column("% worse", "share of existing clients, over all steps, that lost anything", digits=1)


def build(groups: Sequence[Group]) -> list[Table]:
    tables = [
        *_table1(groups), _measures(groups), _ablation(groups), _sensitivity(groups), _losses(groups),
        costs.latency(groups), costs.payload(groups), costs.capacity(groups),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _table1(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Table 1 with the paired tests in short, the best for everyone first; and the tests in full."""
    columns = (
        METHOD, SEEDS, END, P("end"), LOST, STEP1, PA, SAMPLED, ZERO_SHOT, PAPER_PA, P("PA last"), RI, PAPER_RI,
        P("RI last"),
    )  # fmt: skip
    rows, tests = [], []
    for group in groups:
        tested = TESTED if group.steps > 2 else {name: TESTED[name] for name in SHORT}  # else they are the same
        found = {name: against_best(group.contest, *what) for name, what in tested.items()}
        first = sorted(group.contest, key=lambda cell: -_end(cell))
        for cell in dict.fromkeys(first + group.references):
            old = beside("table1", cell, 2)
            p = {name: p_value(found[name][cell.id].p) if cell.id in found[name] else None for name in SHORT}
            values: tuple[Value, ...] = (
                cell.label, len(cell.runs),
                over_seeds(cell, measures.everyone_at_the_end), p["end"], over_seeds(cell, measures.lost),
                over_seeds(cell, measures.first_step),
                over_seeds(cell, measures.pa_last), over_seeds(cell, measures.pa_sampled_last),
                over_seeds(cell, measures.zero_shot_last), old[1], p["PA last"],
                over_seeds(cell, measures.ri_last), old[0], p["RI last"],
            )  # fmt: skip
            rows.append(Row(group, cell, values))
        for name, each in found.items():
            for cell in group.contest:
                if c := each.get(cell.id):
                    won = f"{c.better} of {c.seeds}"
                    tests.append(
                        Row(group, cell, (name, cell.label, c.difference, c.rival, won, c.clients, p_value(c.p)))
                    )
    note = (
        "Ordered by everyone at the end, which decides; PA and RI, here of the last step, explain. Mean ± standard "
        "deviation over n seeds. p: against the best other method, client by client, see the tests below. Oracle "
        "(joint) and control (local) are nobody's rivals. Bold: highest mean, if all methods have the same seeds."
    )
    table1 = Table("table1", "Table 1: everyone, newcomers, existing clients", note, columns, tuple(rows))
    marked = mark(table1, [columns.index(column) for column in (END, STEP1, PA, SAMPLED, RI)])
    return marked, Table("tests", "Against the best other method", TESTS, TEST_COLUMNS, tuple(tests))


def _end(cell: Cell) -> float:
    spread = over_seeds(cell, measures.everyone_at_the_end)
    return spread.mean if spread else float("-inf")


def P(name: str) -> Column:
    return Column(f"p ({name})", f"{name} against the best other method: Wilcoxon over clients, Holm-corrected")


TESTED = {
    "end": (measures.everyone_at_the_end, paired.at_the_end),
    "PA last": (measures.pa_last, paired.newcomers),
    "RI last": (measures.ri_last, paired.existing),
    "PA mean": (measures.pa_mean, paired.everyone_who_joined),
    "RI total": (measures.ri_total, paired.first_batch),
}
SHORT = ("end", "PA last", "RI last")
TESTS = (
    "Wilcoxon's signed-rank test, two-sided, over clients: each is paired with itself under the best other method in "
    "the same seed; p is corrected after Holm for the methods of the table. No rank test over three seeds can fall "
    "below p = 0.25, so seeds are counted and not tested. Clients of one seed share a training run: p says whether "
    "these clients differ, not whether the next training run would. End is of everyone after the last step, PA last "
    "and RI last are of the last step, PA mean is of all later clients after their own step, RI total of the first "
    "batch over the whole run."
)
TEST_COLUMNS = (
    Column("measure", text=True), METHOD,
    Column("difference", "mean over the seeds that both have, points", signed=True),
    Column("against", "the best other method in this measure", text=True),
    Column("seeds won", "seeds with a positive difference, of those both have", text=True),
    Column("clients", "pairs in the test"), Column("p"),
)  # fmt: skip


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
