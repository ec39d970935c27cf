"""Find the runs in what the user names, and check each results.json against its contract.

Whatever cannot be used is named with the reason and left out; the rest of the report is still made.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pfeddsh.config import PROTOCOL
from pfeddsh.errors import UserError
from pfeddsh.federation.schedule import parse
from pfeddsh.results.metrics import summary

Row = list[float | None]


class Payload(BaseModel):
    """KiB per active client and round; one-off transfers per client."""

    down: float
    up: float
    once_down: float | None = None
    once_up: float | None = None


class Seconds(BaseModel):
    """Wall time of a round, the server's share of it, and of each step's replay."""

    round_mean: float
    server_round_mean: float
    replay_per_step: list[float]
    total: float


class Results(BaseModel):
    """results.json, schema 1. Fields this report does not need are let be."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    schema_: Literal[1] = Field(alias="schema")
    method: str = Field(min_length=1, max_length=200)
    dataset: str = Field(min_length=1, max_length=200)
    schedule: str = Field(max_length=200)
    seed: int
    clients: int
    steps: int = Field(ge=1)
    batch: list[int]
    acc: list[Row]
    acc_unguarded: list[Row] | None = None
    local: Row
    pa: Row
    ri: Row
    pa_mean: float | None
    ri_last: float | None
    ri_cumulative: float | None
    worst_drop: float
    pa_zero_shot: Row | None = None
    payload_kib: Payload
    seconds: Seconds
    capacity: list[dict[str, dict[str, int]] | None]
    options: dict[str, Any] = {}
    protocol: dict[str, str | int | float | None] | None = None
    environment: dict[str, Any] = {}

    @model_validator(mode="after")
    def _hangs_together(self) -> "Results":
        """Shapes fit, and the derived numbers follow from the accuracies: a file altered by hand does not pass."""
        try:
            sizes = parse(self.schedule)
        except UserError as error:
            raise ValueError(str(error)) from None
        found = tuple(self.batch.count(step) for step in range(1, self.steps + 1))
        if (sum(sizes), sizes) != (self.clients, found) or len(self.batch) != self.clients:
            raise ValueError(f"batch does not follow the schedule {self.schedule}")
        for name in ("acc", "acc_unguarded", "pa", "ri", "pa_zero_shot", "capacity"):
            value = getattr(self, name)
            if value is not None and len(value) != self.steps:
                raise ValueError(f"{name} has {len(value)} steps instead of {self.steps}")
        for row in (*self.acc, *(self.acc_unguarded or ()), self.local):
            if len(row) != self.clients or any(a is not None and not 0 <= a <= 100 for a in row):
                raise ValueError("accuracies are not one number from 0 to 100 per client")
        for name, value in summary(self.acc, self.batch, self.local).items():
            if not _close(getattr(self, name), value):
                raise ValueError(f"{name} is {getattr(self, name)} but the accuracies give {value}")
        return self


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if one is None or other is None:
        return one is other
    return abs(float(one) - float(other)) < 1e-6


@dataclass(frozen=True, eq=False)
class Run:
    """One finished run and where it lies."""

    path: Path
    results: Results
    protocol: dict[str, Any] | None = field(repr=False)

    @property
    def state(self) -> Path:
        """Where its checkpoints are, if they were kept."""
        return self.path.parent / "state"


def gather(places: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All readable runs below some places, and what was wrong with the others."""
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for place in places:
        found = 0
        for path in _candidates(place, problems):
            found += 1
            if path.resolve() in runs:
                continue
            if path.is_dir():
                problems.append(f"{path} is not finished and was left out; `pfeddsh resume {path}` finishes it")
                continue
            try:
                runs[path.resolve()] = _read(path)
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path} was left out: {_why(error)}")
        if not found:
            problems.append(f"{place} holds no runs" if place.exists() else f"{place} does not exist")
    if not runs:
        raise UserError("no readable run among what was given: " + "; ".join(problems))
    return list(runs.values()), problems


def _candidates(place: Path, problems: list[str]) -> Iterator[Path]:
    """results.json files, and folders of runs without one. A folder without runs may hold bare *.json results."""
    if place.is_file():
        yield place
        return
    found = False
    walk = os.walk(place, onerror=lambda e: problems.append(f"{e.filename} cannot be read: {e.strerror}"))
    for name, folders, files in walk:
        folders.sort()
        if "results.json" in files or "config.toml" in files:
            folders.clear()
            found = True
            yield Path(name) / "results.json" if "results.json" in files else Path(name)
        else:
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
    if not found:
        yield from sorted(path for path in place.glob("*.json") if path.is_file())


def _read(path: Path) -> Run:
    results = Results.model_validate_json(path.read_bytes())
    return Run(path, results, results.protocol or _beside(path))


def _beside(path: Path) -> dict[str, Any] | None:
    """The protocol in the config.toml beside a results.json that does not tell it itself."""
    try:
        config = tomllib.loads((path.parent / "config.toml").read_text()) if path.name == "results.json" else {}
    except (OSError, ValueError):
        return None
    return {name: config[name] for name in PROTOCOL if name in config} or None


def _why(error: Exception) -> str:
    """One line; of a foreign file only the first few of its many mistakes."""
    if isinstance(error, ValidationError):
        wrong = error.errors()
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": Value error, ") for e in wrong[:3]]
        return "not a results.json of pfeddsh: " + "; ".join(lines) + (" ..." if len(wrong) > 3 else "")
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


def fact(value: Any) -> str:
    """A setting as it would be written after `--set`."""
    return value if isinstance(value, str) else json.dumps(value)


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
