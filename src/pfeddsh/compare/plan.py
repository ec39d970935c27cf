"""What is compared: datasets x methods x schedules x seeds x variants, and the named runs that come of it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.data.datasets import absolute
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import settled
from pfeddsh.plugins import file_name, importable_elsewhere, reference
from pfeddsh.values import checked

AXES = {"datasets": "dataset", "methods": "method", "schedules": "schedule", "seeds": "seed"}


class Plan(BaseModel):
    """The content of a plan's TOML file. Every run is one point of the matrix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: list[str] = Field(["digits"], min_length=1)
    methods: list[str] = Field(["fedavg", "fedper", "pfeddsh"], min_length=1)
    schedules: list[str] = Field([], description="none: the one of `pfeddsh run`")
    seeds: list[int] = Field([0], min_length=1)
    set: dict[str, Any] = Field({}, description="any other key of a run, for all runs")
    variants: dict[str, dict[str, Any]] = Field({}, description="keys of a run by name; every run is made in each")

    @field_validator("methods", "set", "variants", mode="before")
    @classmethod
    def _referred_to(cls, value: Any) -> Any:
        """From Python, a class or factory stands for a reference to it, wherever it is given."""
        if isinstance(value, dict):
            return {name: cls._referred_to(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [cls._referred_to(part) for part in value]
        return reference(value) if callable(value) else value

    def toml(self) -> str:
        return tomli_w.dumps(self.model_dump())

    def runs(self) -> list["PlannedRun"]:
        """All runs, seed by seed; names say what differs."""
        found: dict[str, PlannedRun] = {}
        for seed in self.seeds:
            for dataset in self.datasets:
                for schedule in self.schedules or [""]:
                    for method in self.methods:
                        for variant in self.variants or [""]:
                            run = self._run(dataset, method, schedule, seed, variant)
                            if found.setdefault(run.name, run).config != run.config:
                                raise UserError(f"two different runs would be named {run.name}; rename one dataset")
        return list(found.values())

    def _run(self, dataset: str, method: str, schedule: str, seed: int, variant: str) -> "PlannedRun":
        own = self.variants.get(variant, {})
        values: dict[str, Any] = {**self.set, **own, "dataset": dataset, "method": method, "seed": seed}
        values["options"] = {**self.set.get("options", {}), **own.get("options", {})}
        if schedule:
            values["schedule"] = schedule
        where = f"method {method}" + (f", variant {variant}" if variant else "")
        try:
            for part in (method, str(values.get("model", ""))):
                importable_elsewhere(part)
            config = settled(build(values, "keys"))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        stem = f"{Path(dataset).stem}-{file_name(method)}-{config.schedule}-seed{seed}"
        return PlannedRun(f"{stem}-{variant}" if variant else stem, config, variant)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan; `name` is also its folder."""

    name: str
    config: Config
    variant: str = ""


def make(values: dict[str, Any], where: str = "plan") -> Plan:
    """A checked plan, or an error that names what is wrong and the nearest valid name."""
    plan = checked(Plan, values, where, hint="; other keys of a run go under [set]")
    for name, keys in {"[set]": plan.set, **{f"variant {name}": keys for name, keys in plan.variants.items()}}.items():
        if own := keys.keys() & set(AXES.values()):
            axes = {single: plural for plural, single in AXES.items()}
            raise UserError(f"{where}: {name}: {min(own)} is set by {axes[min(own)]} at the top")
        if not isinstance(keys.get("options", {}), dict):
            raise UserError(f"{where}: {name}: options must be a table, such as options.images = 64")
    for name in plan.variants:
        if not re.fullmatch(r"\w[\w.,=+-]*", name):
            raise UserError(f"{where}: variant '{name}': use letters, digits and .,=+-_ (it becomes a folder's name)")
    plan.runs()
    return plan.model_copy(update={"datasets": [absolute(dataset) for dataset in plan.datasets]})
