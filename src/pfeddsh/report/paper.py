"""The numbers the paper prints, kept in paper.toml with the table they come from."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from pfeddsh.report.grouping import Cell
from pfeddsh.report.table import Value


@cache
def everything() -> dict[str, Any]:
    return tomllib.loads(files("pfeddsh.report").joinpath("paper.toml").read_text())


def printed(table: str, cell: Cell) -> list[float] | None:
    """The paper's row for a cell; only for its own protocol and the very settings."""
    if cell.setting.differs():
        return None
    rows = everything()[table].get(cell.setting.dataset, {}).get(cell.schedule, {})
    found: list[float] | None = rows.get(cell.label)
    return found


def beside(table: str, cell: Cell, width: int) -> tuple[Value, ...]:
    """The same as values of a row, empty where the paper has none."""
    return tuple(map(float, printed(table, cell) or ())) or (None,) * width


def payload(cell: Cell) -> tuple[Value, ...]:
    """KiB down and up; the paper has them for its CIFAR-10 network only."""
    usual = not cell.variant.settings and cell.setting.dataset == "cifar10"
    return tuple(everything()["payload"].get(cell.variant.method, ()) if usual else ()) or (None, None)
