"""Table 1: what decides, what explains it, and whether differences mean anything."""

from collections.abc import Sequence

from pfeddsh.report import measures, paired
from pfeddsh.report.columns import END, LOST, PA, PAPER_PA, PAPER_RI, RI, SAMPLED, SEEDS, STEP1, ZERO_SHOT
from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import over_seeds
from pfeddsh.report.paired import against_best
from pfeddsh.report.paper import beside
from pfeddsh.report.table import METHOD, Column, Row, Table, Value, mark, p_value
from pfeddsh.results.metrics import VISITS


def build(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Table 1 with the paired tests in short, the best for everyone first; and the tests in full."""
    columns = (
        METHOD, SEEDS, END, P("end"), LOST, STEP1, PA, SAMPLED, ZERO_SHOT, PAPER_PA, P("PA last"), RI, PAPER_RI,
        P("RI last"),
    )  # fmt: skip
    rows, tests = [], []
    for group in groups:
        tested = TESTED if group.steps > 2 else {name: TESTED[name] for name in SHORT}  # else they are the same
        found = {name: against_best(group.contest, *what) for name, what in tested.items()}
        rare = any(_rarely_sampled(run.results) for cell in group.cells for run in cell.runs)
        first = sorted(group.contest, key=lambda cell: -_end(cell))
        for cell in dict.fromkeys(first + group.references):
            old = beside("table1", cell, 2)
            p = {name: p_value(found[name][cell.id].p) if cell.id in found[name] else None for name in SHORT}
            values: tuple[Value, ...] = (
                cell.label, len(cell.runs),
                over_seeds(cell, measures.everyone_at_the_end), p["end"], over_seeds(cell, measures.lost),
                over_seeds(cell, measures.first_step),
                over_seeds(cell, measures.pa_last), over_seeds(cell, measures.pa_sampled_last) if rare else None,
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


def _rarely_sampled(run: Results) -> bool:
    """Whether PA of the last batch has somebody that PA of those with three visits leaves out."""
    counts = zip(run.batch, run.visits or (), strict=False)
    return any(joined == run.steps and count < VISITS for joined, count in counts)


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
