"""Who stands where: the whole run, the paper's last step, and whether differences mean anything."""

from collections.abc import Sequence

from pfeddsh.report import measures, paired
from pfeddsh.report.columns import (
    CHANGE,
    END,
    FIRST,
    LOST,
    PA,
    PA_LAST,
    PAPER_PA,
    PAPER_RI,
    RI_LAST,
    SAMPLED,
    SAMPLED_LAST,
    SEEDS,
    ZERO_SHOT,
    ZERO_SHOT_LAST,
)
from pfeddsh.report.contract import Results
from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import over_seeds
from pfeddsh.report.paired import PairedTest, against_best
from pfeddsh.report.paper import beside
from pfeddsh.report.table import METHOD, Column, Row, Table, Value, by, mark, p_value
from pfeddsh.results.metrics import VISITS

Found = dict[str, dict[str, PairedTest]]  # by measure and cell


def build(groups: Sequence[Group]) -> tuple[Table, Table, Table]:
    """The whole run, the best for everyone first; the last step beside the paper; and the tests in full."""
    whole, last, tests = [], [], []
    for group in groups:
        found = {name: against_best(group.contest, *what) for name, what in _tested(group).items()}
        rare = any(_rarely_sampled(run.results) for cell in group.cells for run in cell.runs)
        ordered = by(measures.everyone_at_the_end, group.contest)
        for cell in dict.fromkeys(ordered + group.references):
            whole.append(Row(group, cell, _whole(cell, found, rare)))
            last.append(Row(group, cell, _last(cell, found, rare)))
        for name, each in found.items():
            for cell in by(_tested(group)[name][0], group.contest):
                if c := each.get(cell.id):
                    won = f"{c.better} of {c.seeds}"
                    p = p_value(c.p), p_value(c.p_seeds)
                    values = (name, cell.label, c.difference, c.rival, won, c.clients, *p, c.beyond_chance)
                    tests.append(Row(group, cell, values))
    table = Table("standings", "Everyone, newcomers, existing clients", WHOLE, WHOLE_COLUMNS, tuple(whole))
    paper = Table("table1", "The paper's Table 1: the last step", LAST, LAST_COLUMNS, tuple(last))
    return (
        mark(table, [WHOLE_COLUMNS.index(column) for column in (END, FIRST, PA, SAMPLED, CHANGE)]),
        mark(paper, [LAST_COLUMNS.index(column) for column in (PA_LAST, SAMPLED_LAST, RI_LAST)]),
        Table("tests", "Comparison with the best other method", TESTS, TEST_COLUMNS, tuple(tests)),
    )


def _whole(cell: Cell, found: Found, rare: bool) -> tuple[Value, ...]:
    return (
        cell.label, len(cell.runs),
        over_seeds(cell, measures.everyone_at_the_end), *_p(found, END.name, cell),
        over_seeds(cell, measures.lost),
        over_seeds(cell, measures.first_step), over_seeds(cell, measures.ri_total),
        over_seeds(cell, measures.pa_mean), over_seeds(cell, measures.pa_sampled_mean) if rare else None,
        over_seeds(cell, measures.zero_shot_mean),
    )  # fmt: skip


def _last(cell: Cell, found: Found, rare: bool) -> tuple[Value, ...]:
    old = beside("table1", cell, 2)
    return (
        cell.label, len(cell.runs),
        over_seeds(cell, measures.pa_last), over_seeds(cell, measures.pa_sampled_last) if rare else None,
        over_seeds(cell, measures.zero_shot_last), old[1], *_p(found, PA_LAST.name, cell),
        over_seeds(cell, measures.ri_last), old[0], *_p(found, RI_LAST.name, cell),
    )  # fmt: skip


def _p(found: Found, name: str, cell: Cell) -> tuple[str | None, str | None]:
    test = found.get(name, {}).get(cell.id)
    return (p_value(test.p), p_value(test.p_seeds)) if test else (None, None)


def _rarely_sampled(run: Results) -> bool:
    """Whether PA has some newcomer that PA of those with three visits leaves out."""
    counts = zip(run.batch, run.visits or (), strict=False)
    return any(joined > 1 and count < VISITS for joined, count in counts)


def _tested(group: Group) -> dict[str, tuple[measures.Measure, paired.PerClient]]:
    """With one later batch, the last step is all there is: nothing is tested twice."""
    return TESTED if group.steps > 2 else {name: TESTED[name] for name in (END.name, PA_LAST.name, RI_LAST.name)}


def P(name: str) -> tuple[Column, Column]:
    best = f"{name} against the best other method"
    return (
        Column(f"p, clients ({name})", f"{best}: Wilcoxon over clients, Holm-corrected"),
        Column(f"p, seeds ({name})", f"{best}: paired t-test over seeds, Holm-corrected"),
    )


TESTED: dict[str, tuple[measures.Measure, paired.PerClient]] = {
    END.name: (measures.everyone_at_the_end, paired.at_the_end),
    PA.name: (measures.pa_mean, paired.everyone_who_joined),
    "change of the first batch": (measures.ri_total, paired.first_batch),
    PA_LAST.name: (measures.pa_last, paired.newcomers),
    RI_LAST.name: (measures.ri_last, paired.existing),
}
WHOLE_COLUMNS = (METHOD, SEEDS, END, *P("everyone"), LOST, FIRST, CHANGE, PA, SAMPLED, ZERO_SHOT)
LAST_COLUMNS = (
    METHOD, SEEDS, PA_LAST, SAMPLED_LAST, ZERO_SHOT_LAST, PAPER_PA, *P(PA_LAST.name), RI_LAST, PAPER_RI,
    *P(RI_LAST.name),
)  # fmt: skip
WHOLE = (
    "All measures cover the whole run. Methods are ordered by everyone at the end, the main measure; the others "
    "explain it. Mean ± standard deviation over n seeds. p: comparison with the best other method, over clients and "
    "over seeds; the tests are below. Oracles (joint, central) and controls (local) are shown, but not compared. "
    "Bold: highest mean, if all methods have the same seeds."
)
LAST = (
    "As in the paper: only the last batch and the step in which it joined. A method whose clients lost much before may "
    "look good here, so use the table of the whole run to compare methods."
)
TESTS = (
    "Each method is compared with the best other method, on the seeds that both have. Over clients: Wilcoxon's "
    "signed-rank test, two-sided; each client is paired with itself in the same seed. Clients of one seed share a "
    "training run, so this test says whether the difference holds for these clients. Over seeds: a paired t-test of "
    "the seeds' means. It says whether the difference would hold in another training run; it needs at least "
    f"{paired.FEW} seeds. Both have Holm's correction for the methods of the table. Beyond chance: both below "
    f"{paired.LEVEL:g}."
)
TEST_COLUMNS = (
    Column("measure", text=True), METHOD,
    Column("difference", "mean over the seeds that both have", signed=True, unit="points"),
    Column("against", "the best other method in this measure", text=True),
    Column("seeds won", "seeds with a positive difference, of those both have", text=True),
    Column("clients", "pairs in the test"), Column("p, clients"), Column("p, seeds"),
    Column("beyond chance", f"yes if both p-values are below {paired.LEVEL:g}", text=True),
)  # fmt: skip
