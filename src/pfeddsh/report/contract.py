"""The public contract results.json as the report reads it: shapes, bounds, and numbers that follow from each other."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfeddsh.errors import UserError
from pfeddsh.results.metrics import sampled_adaptation, summary
from pfeddsh.schedule import parse

Row = list[float | None]


class Payload(BaseModel):
    """KiB per active client and round; one-off transfers per client."""

    down: float
    up: float
    once_down: float | None = None
    once_up: float | None = None


class Evaluated(BaseModel):
    """Where a sample of existing clients stands for all: everyone's accuracy, estimated after each step."""

    acc_everyone: Row = Field(min_length=1)


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
    acc_end_mean: float | None = None  # from here on: not in files of older versions
    lost_share: Row | None = None
    visits: list[int] | None = None
    pa_sampled: Row | None = None
    pa_zero_shot: Row | None = None
    payload_kib: Payload
    seconds: Seconds
    capacity: list[dict[str, dict[str, int]] | None]
    evaluated: Evaluated | None = None
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
        for name in ("acc", "acc_unguarded", "pa", "ri", "lost_share", "pa_sampled", "pa_zero_shot", "capacity"):
            value = getattr(self, name)
            if value is not None and len(value) != self.steps:
                raise ValueError(f"{name} has {len(value)} steps instead of {self.steps}")
        for row in (*self.acc, *(self.acc_unguarded or ()), self.local):
            if len(row) != self.clients or any(a is not None and not 0 <= a <= 100 for a in row):
                raise ValueError("accuracies are not one number from 0 to 100 per client")
        derived: dict[str, object] = summary(self.acc, self.batch, self.local)
        if self.evaluated is not None:
            derived["acc_end_mean"] = self.evaluated.acc_everyone[-1]
        if self.visits is not None:
            if len(self.visits) != self.clients:
                raise ValueError("visits is not one number per client")
            derived["pa_sampled"] = sampled_adaptation(self.acc, self.batch, self.local, self.visits)
        for name, value in derived.items():
            if name in self.model_fields_set and not _close(getattr(self, name), value):
                raise ValueError(f"{name} is {getattr(self, name)} but the accuracies give {value}")
        return self


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if one is None or other is None:
        return one is other
    return abs(float(one) - float(other)) < 1e-6


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
