"""The tables of the report as plain data; `writers` and the page's template turn them into text."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from pfeddsh.report import measures
from pfeddsh.report.arrange import Cell, Group, Setting
from pfeddsh.report.measures import Measure, Spread, against_best, over_seeds, worst_loss
from pfeddsh.report.read import Results, mean

NONE = "\u2013"
Value = str | int | float | Spread | None


@dataclass(frozen=True)
class Column:
    """A heading, what it means, and how its numbers are written."""

    name: str
    help: str = ""
    digits: int = 2
    signed: bool = False
    text: bool = False

    def show(self, value: Value) -> str:
        if value is None:
            return NONE
        if isinstance(value, Spread):
            spread = f" ± {value.deviation:.{self.digits}f}" if value.deviation else ""
            return self.show(value.mean) + spread
        if isinstance(value, float):
            shown = f"{value:{'+' if self.signed else ''}.{self.digits}f}"
            return shown.replace("-", "\u2212") if float(shown) else f"{0:.{self.digits}f}"
        return str(value)


@dataclass(frozen=True)
class Row:
    """Values in the order of the columns."""

    group: Group
    cell: Cell
    values: tuple[Value, ...]
    best: frozenset[int] = frozenset()  # columns in which this row has the highest mean


@dataclass(frozen=True)
class Table:
    """One kind of table for the whole report; the page shows the rows of a group at a time."""

    name: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(repr=False)

    def of(self, group: Group) -> "Table":
        """The rows of one group, without the columns that are empty there."""
        rows = [row for row in self.rows if row.group is group]
        kept = [i for i in range(len(self.columns)) if any(row.values[i] is not None for row in rows)]
        shown = [
            Row(group, row.cell, tuple(row.values[i] for i in kept), frozenset(map(kept.index, row.best)))
            for row in rows
        ]
        return Table(self.name, self.title, self.note, tuple(self.columns[i] for i in kept), tuple(shown))


@cache
def paper() -> dict[str, Any]:
    return tomllib.loads(files("pfeddsh.report").joinpath("paper.toml").read_text())


def printed(table: str, cell: Cell) -> list[float] | None:
    """The paper's row for a cell; only for its own protocol and the method's usual settings."""
    if cell.setting.differs() or cell.variant.settings:
        return None
    rows = paper()[table].get(cell.setting.dataset, {}).get(cell.schedule, {})
    found: list[float] | None = rows.get(cell.variant.method)
    return found


def beside(table: str, cell: Cell, width: int) -> tuple[Value, ...]:
    """The same as values of a row, empty where the paper has none."""
    return tuple(map(float, printed(table, cell) or ())) or (None,) * width


METHOD = Column("method", text=True)
SEEDS = Column("n", "seeds")
STEP1 = Column("step 1", "mean accuracy of the first batch after its own step, %")
PA = Column("PA", "proactive adaptation: accuracy of the last batch minus local-only training, points", signed=True)
RI = Column("RI", "retroactive improvement: change of existing clients over the last step, points", signed=True)
PAPER_PA = Column("paper PA", "as printed in the paper, five seeds", signed=True)
PAPER_RI = Column("paper RI", "as printed in the paper, five seeds", signed=True)
WORSE = Column("% worse", "share of existing clients, over all steps, that lost anything", digits=1)


def build(groups: Sequence[Group]) -> list[Table]:
    tables = [
        *_table1(groups), _measures(groups), _ablation(groups), _sensitivity(groups), _losses(groups),
        _latency(groups), _payload(groups), _capacity(groups),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _table1(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Table 1 with the paired tests in short, and the tests in full."""
    columns = (METHOD, SEEDS, STEP1, PA, PAPER_PA, P("PA"), RI, PAPER_RI, P("RI"), WORSE)
    rows, tests = [], []
    for group in groups:
        found = {
            "PA": against_best(group.contest, measures.pa_last, measures.newcomers),
            "RI": against_best(group.contest, measures.ri_last, measures.existing),
        }
        for cell in group.contest + group.references:
            old = beside("table1", cell, 2)
            p = {name: p_value(each[cell.id].p) if cell.id in each else None for name, each in found.items()}
            values: tuple[Value, ...] = (
                cell.label, len(cell.runs), over_seeds(cell, measures.first_step),
                over_seeds(cell, measures.pa_last), old[1], p["PA"],
                over_seeds(cell, measures.ri_last), old[0], p["RI"], over_seeds(cell, measures.worse),
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
        "Mean ± standard deviation over n seeds. p: against the best other method, client by client, see the tests "
        "below. Oracle (joint) and control (local) are nobody's rivals. Bold: highest mean, if all methods have the "
        "same seeds."
    )
    table1 = Table("table1", "Table 1: newcomers and existing clients", note, columns, tuple(rows))
    return _mark(table1, (2, 3, 6)), Table("tests", "Against the best other method", TESTS, TEST_COLUMNS, tuple(tests))


def P(name: str) -> Column:
    return Column(f"p ({name})", f"{name} against the best other method: Wilcoxon over clients, Holm-corrected")


TESTS = (
    "Wilcoxon's signed-rank test, two-sided, over clients: each is paired with itself under the best other method in "
    "the same seed; p is corrected after Holm for the methods of the table. No rank test over three seeds can fall "
    "below p = 0.25, so seeds are counted and not tested. Clients of one seed share a training run: p says whether "
    "these clients differ, not whether the next training run would."
)
TEST_COLUMNS = (
    Column("measure", text=True), METHOD,
    Column("difference", "mean over the seeds that both have, points", signed=True),
    Column("against", "the best other method in this measure", text=True),
    Column("seeds won", "seeds with a positive difference, of those both have", text=True),
    Column("clients", "pairs in the test"), Column("p"),
)  # fmt: skip


def _mark(table: Table, columns: Sequence[int]) -> Table:
    """Mark the highest mean of each group among those in contest, where all have the same seeds."""
    best: dict[tuple[int, int], float] = {}
    fair = [
        g for g in {row.group for row in table.rows} if len(g.contest) > 1 and len({c.seeds for c in g.contest}) == 1
    ]
    rivals = [row for row in table.rows if row.group in fair and row.cell in row.group.contest]
    for row in rivals:
        for i in columns:
            if isinstance(value := row.values[i], Spread):
                key = (id(row.group), i)
                best[key] = max(value.mean, best.get(key, value.mean))
    rows = [
        Row(row.group, row.cell, row.values, frozenset(
            i for i in columns
            if row in rivals and isinstance(v := row.values[i], Spread) and v.mean == best[id(row.group), i]
        ))
        for row in table.rows
    ]  # fmt: skip
    return Table(table.name, table.title, table.note, table.columns, tuple(rows))


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


ALL: tuple[tuple[Column, Measure], ...] = (
    (STEP1, measures.first_step),
    (Column("alone", "local-only accuracy of the first batch, %"), measures.first_batch_alone),
    (Column("batch 1 at the end", "mean accuracy of the first batch after the last step, %"),
     measures.first_batch_at_the_end),
    (PA, measures.pa_last),
    (Column("PA mean", "over all later steps, points", signed=True), measures.pa_mean),
    (Column("PA zero-shot", "newcomers before any round of their step, mean over later steps, points", signed=True),
     measures.pa_zero_shot),
    (RI, measures.ri_last),
    (Column("RI total", "change of the first batch over the whole run, points", signed=True), measures.ri_total),
    (Column("lowest RI", "over steps, points", signed=True), measures.ri_lowest),
    (Column("RI no guard", "of the last step, had clients taken every offer, points", signed=True),
     measures.ri_unguarded),
    (WORSE, measures.worse),
)  # fmt: skip


def _spreads(cells: Sequence[tuple[Group, Cell]], shown: Sequence[tuple[Column, Measure]]) -> tuple[Row, ...]:
    return tuple(
        Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, measure) for _, measure in shown)))
        for group, cell in cells
    )


SEED_LIST = Column("seeds", text=True)


def _measures(groups: Sequence[Group]) -> Table:
    columns = (METHOD, SEED_LIST, *(column for column, _ in ALL))
    rows = _spreads([(group, cell) for group in groups for cell in group.cells], ALL)
    return Table("measures", "All measures of all runs", "Mean ± standard deviation over seeds.", columns, rows)


def _ablation(groups: Sequence[Group]) -> Table:
    shown = (
        (STEP1, measures.first_step),
        (Column("accuracy", "of everyone at the end, %"), measures.everyone_at_the_end),
        (PA, measures.pa_last), (RI, measures.ri_last),
        (Column("RI total", "change of the first batch over the whole run, points", signed=True), measures.ri_total),
        (WORSE, measures.worse),
    )  # fmt: skip
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown), Column("paper accuracy"), PAPER_PA, PAPER_RI)
    rows = []
    for row in _spreads([(group, cell) for group in groups for cell in group.ablations], shown):
        old = beside("ablation", row.cell, 3)
        rows.append(Row(row.group, row.cell, (*row.values, *old)))
    note = "Parts of pFedDSH taken away one by one. The paper's ablation has a PA and RI unlike those of its Table 1."
    return Table("ablation", "Ablation", note, columns, tuple(rows))


def _sensitivity(groups: Sequence[Group]) -> Table:
    shown = (
        (STEP1, measures.first_step), (PA, measures.pa_last), (RI, measures.ri_last),
        (Column("RI no guard", "had clients taken every offer, points", signed=True), measures.ri_unguarded),
        (WORSE, measures.worse),
        (Column("replay", "seconds per later step", digits=1), _replay),
    )  # fmt: skip
    cells = [(group, cell) for group in groups for several in group.sensitivity for cell in several]
    note = "Runs that differ in a setting of the method only; the first of each method has its usual settings."
    columns = (METHOD, SEED_LIST, *(c for c, _ in shown))
    return Table("sensitivity", "Sensitivity to settings", note, columns, _spreads(cells, shown))


def _losses(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST, WORSE,
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
            rows.append(Row(group, cell, (cell.label, cell.seeds, over_seeds(cell, measures.worse), *worst)))
    return Table("losses", "Who lost", "Over all steps after a client's own.", columns, tuple(rows))


def _replay(run: Results) -> float | None:
    return mean(run.seconds.replay_per_step[1:])


def _latency(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST,
        Column("server round", "the server's work in an ordinary round, seconds", digits=4),
        Column("replay", "seconds per later step", digits=2),
        Column("amortised", "server round plus replay spread over the rounds of a later step, seconds", digits=4),
        Column("whole round", "with the clients' training as simulated here, seconds", digits=3),
        Column("paper round", digits=2), Column("paper replay", digits=2), Column("paper averaged", digits=2),
    )  # fmt: skip
    rows = []
    for group in groups:
        rounds = dict(group.setting.protocol or ()).get("rounds_later")

        def amortised(run: Results, rounds: Any = rounds) -> float | None:
            replay = _replay(run)
            return run.seconds.server_round_mean + replay / rounds if rounds and replay is not None else None

        for cell in group.contest + group.ablations[1:]:
            ours = (lambda run: run.seconds.server_round_mean, _replay, amortised, lambda run: run.seconds.round_mean)
            old = beside("latency", cell, 3)
            rows.append(Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, m) for m in ours), *old)))
    note = (
        "Wall time on the machines that made the runs; the paper's figures are from another machine. Amortised needs "
        "the number of rounds, which results.json of older versions does not tell."
    )
    return Table("latency", "Server latency", note, columns, tuple(rows))


def _payload(groups: Sequence[Group]) -> Table:
    columns = (
        METHOD, SEED_LIST,
        Column("down", "KiB to an active client per round"), Column("up", "KiB from an active client per round"),
        Column("total", "KiB"),
        Column("once down", "KiB per client, one-off"), Column("once up", "KiB per client, one-off"),
        Column("paper down"), Column("paper up"),
    )  # fmt: skip
    ours: tuple[Callable[[Results], float | None], ...] = (
        lambda run: run.payload_kib.down, lambda run: run.payload_kib.up,
        lambda run: run.payload_kib.down + run.payload_kib.up,
        lambda run: run.payload_kib.once_down, lambda run: run.payload_kib.once_up,
    )  # fmt: skip
    rows = []
    for group in groups:
        for cell in group.contest + group.ablations[1:]:
            usual = not cell.variant.settings and cell.setting.dataset == "cifar10"
            old = (paper()["payload"].get(cell.variant.method) if usual else None) or [None] * 2
            rows.append(Row(group, cell, (cell.label, cell.seeds, *(over_seeds(cell, m) for m in ours), *old)))
    note = "Counted from the messages, tensors only. Zero where a method sends nothing of the kind."
    return Table("payload", "Payload", note, columns, tuple(rows))


def _capacity(groups: Sequence[Group]) -> Table:
    names = ("active", "new", "reused", "total", "width", "novelty")
    columns = (METHOD, Column("seed"), Column("step"), Column("layer", text=True), *(Column(n) for n in names))
    rows = [
        Row(group, cell, (cell.label, run.results.seed, step, layer, *(used.get(name) for name in names)))
        for group in groups for cell in group.cells for run in cell.runs
        for step, layers in enumerate(run.results.capacity, 1)
        for layer, used in (layers or {}).items() if "total" in used
    ]  # fmt: skip
    note = (
        "Channels in the step's own mask: new ones and those reused from earlier steps; total allocated so far, of the "
        "layer's width. Novelty: dimension of the step's updates outside what used channels reach."
    )
    return Table("capacity", "Neuron usage, step by step", note, columns, tuple(rows))


def headline(setting: Setting) -> str:
    """The protocol of a setting in words."""
    if setting.protocol is None:
        return "Protocol not recorded (results.json of an older version, without a config.toml beside it)."
    known = dict(setting.protocol)
    split = f"Dirichlet {known['alpha']}" if known.get("partition") == "dirichlet" else str(known.get("partition"))
    text = (
        f"Clients by {split}; {known.get('rounds_first')} rounds for the first batch, {known.get('rounds_later')} for "
        f"each later one; {100 * float(known.get('sample_fraction') or 0):g} % of the joining batch sampled; "
        f"{known.get('local_epochs')} local epoch(s), SGD, rate {known.get('lr')}, momentum {known.get('momentum')}, "
        f"batch size {known.get('batch_size')}."
    )
    unlike = ", ".join(f"{name} {value}" for name, value in setting.differs().items())
    return text + (f" Unlike the default protocol: {unlike}." if unlike else "")
