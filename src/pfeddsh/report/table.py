"""What a table is: columns that know how to write their numbers, rows of plain values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.measures import Measure, Spread, over_seeds
from pfeddsh.report.paired import TOO_FEW

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
    unit: str = ""

    @property
    def heading(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

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


def by(measure: Measure, cells: Iterable[Cell], lowest: bool = False) -> list[Cell]:
    """Cells in the order of what a table is about: the highest mean first, or the lowest; those without one last."""

    def place(cell: Cell) -> tuple[bool, float]:
        spread = over_seeds(cell, measure)
        return spread is None, (spread.mean if lowest else -spread.mean) if spread else 0.0

    return sorted(cells, key=place)


METHOD = Column("method", text=True)
SEED_LIST = Column("seeds", text=True)


def mark(table: Table, columns: Sequence[int]) -> Table:
    """Mark the highest mean of each group among those in contest, where all have the same seeds."""
    marked = []
    for row in table.rows:
        contest = row.group.contest
        fair = len(contest) > 1 and len({cell.seeds for cell in contest}) == 1
        rivals = [other for other in table.rows if other.group is row.group and other.cell in contest]
        best = [i for i in columns if fair and row in rivals and _highest(row, rivals, i)]
        marked.append(replace(row, best=frozenset(best)))
    return replace(table, rows=tuple(marked))


def _highest(row: Row, rivals: Sequence[Row], column: int) -> bool:
    """False where there is nothing to compare: a column may be empty for a whole group."""
    value = row.values[column]
    means = [other.mean for rival in rivals if isinstance(other := rival.values[column], Spread)]
    return isinstance(value, Spread) and value.mean == max(means)


def p_value(p: float | None) -> str:
    """None: there are too few seeds to test."""
    if p is None:
        return TOO_FEW
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
