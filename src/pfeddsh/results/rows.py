"""Rows of accuracies, an entry for each client, as tensors: only what was measured takes room."""

from collections.abc import Mapping

import torch
from torch import Tensor

Row = list[float | None]
Rows = dict[str, Row]


def told(row: Row) -> dict[int, float]:
    """What was measured, by client."""
    return {k: value for k, value in enumerate(row) if value is not None}


def pack(rows: Mapping[str, Mapping[int, float]]) -> dict[str, Tensor]:
    """For a file: numbers of clients that were measured, and values to the bit."""
    found = {}
    for name, known in rows.items():
        found[f"{name}:clients"] = torch.tensor(list(known), dtype=torch.int32)
        found[f"{name}:values"] = torch.tensor(list(known.values()), dtype=torch.float64)
    return found


def unpack(tensors: Mapping[str, Tensor], clients: int) -> Rows:
    rows: Rows = {}
    for name in tensors:
        if name.endswith(":clients"):
            own = name.removesuffix(":clients")
            row = rows[own] = [None] * clients
            for k, value in zip(tensors[name].tolist(), tensors[f"{own}:values"].tolist(), strict=True):
                row[k] = value
    return rows
