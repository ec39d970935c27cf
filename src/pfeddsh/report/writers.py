"""The same tables for other programs: Markdown, CSV (plain numbers, deviations in columns of their own) and LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Iterator

from pfeddsh.report.measures import Spread
from pfeddsh.report.table import Column, Row, Table, Value


def _places(row: Row) -> tuple[str, str]:
    return row.group.setting.dataset, row.group.schedule


def _groups(table: Table) -> Iterator[tuple[str, Table]]:
    for group in dict.fromkeys(row.group for row in table.rows):
        unlike = "".join(f", {name} {value}" for name, value in group.setting.differs().items())
        yield f"{group.setting.dataset}, {group.schedule}{unlike}", table.of(group)


def markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", table.note]
    for heading, part in _groups(table):
        lines += ["", f"### {heading}", "", "| " + " | ".join(c.heading for c in part.columns) + " |"]
        lines.append("|" + "|".join("---" if c.text else "---:" for c in part.columns) + "|")
        for row in part.rows:
            cells = [c.show(v).replace("|", "\\|") for c, v in zip(part.columns, row.values, strict=True)]
            shown = [f"**{text}**" if i in row.best else text for i, text in enumerate(cells)]
            lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """Tidy: dataset, schedule and protocol in every row; headings that occur twice get a number."""
    spread = [any(isinstance(row.values[i], Spread) for row in table.rows) for i in range(len(table.columns))]
    head = ["dataset", "schedule", "protocol"]
    for column, double in zip(table.columns, spread, strict=True):
        name = _fresh(column.heading, head)
        head += [name, f"{name} sd"] if double else [name]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        protocol = row.group.setting.protocol
        cells: list[Value] = [*_places(row), "; ".join(f"{k}={v}" for k, v in protocol or ())]
        for value, double in zip(row.values, spread, strict=True):
            if double:
                cells += [value.mean, value.deviation] if isinstance(value, Spread) else [value, None]
            else:
                cells.append(value)
        writer.writerow(["" if cell is None else cell for cell in cells])
    return out.getvalue()


def _fresh(name: str, taken: list[str]) -> str:
    return next(n for n in (name, *(f"{name} {i}" for i in range(2, 100))) if n not in taken)


def latex(table: Table) -> str:
    """A booktabs tabular per group."""
    lines = [f"% {table.title}. {table.note}", "% needs \\usepackage{booktabs}"]
    for heading, part in _groups(table):
        lines += ["", f"% {_one_line(heading)}", "\\begin{tabular}{" + "".join(map(_align, part.columns)) + "}"]
        lines += ["\\toprule", " & ".join(_escape(c.heading) for c in part.columns) + " \\\\", "\\midrule"]
        for row in part.rows:
            cells = [_escape(c.show(v)) for c, v in zip(part.columns, row.values, strict=True)]
            shown = [f"\\textbf{{{text}}}" if i in row.best else text for i, text in enumerate(cells)]
            lines.append(" & ".join(shown) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def _align(column: Column) -> str:
    return "l" if column.text else "r"


SYMBOLS = {"±": "$\\pm$", "\u2212": "$-$", "Δ": "$\\Delta$", "\u2013": "--", "<": "$<$", "\\": "\\textbackslash{}",
           "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}  # fmt: skip


def _escape(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<±\u2212\u2013Δ]", lambda m: SYMBOLS.get(m[0], "\\" + m[0]), _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


FORMATS: dict[str, Callable[[Table], str]] = {"csv": comma_separated, "md": markdown, "tex": latex}
