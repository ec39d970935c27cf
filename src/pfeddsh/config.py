"""The description of a run: what a TOML file, the command line and Python all turn into.

It knows no method: what a method presets is filled in by `configure`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from pfeddsh import plugins
from pfeddsh.errors import UserError
from pfeddsh.mechanisms.clip import Protection
from pfeddsh.mechanisms.guard import Evidence, Existing
from pfeddsh.models import registry as networks
from pfeddsh.schedule import Sampling, Schedule, parse
from pfeddsh.values import WrongValue, explained, unknown_key

# Keys that are no part of the protocol: results tell them on their own, or do not depend on them.
APART = frozenset(
    {"dataset", "method", "schedule", "seed", "options", "engine", "workers", "data_dir", "device", "privacy"}
)

DEMO: dict[str, Any] = {
    "schedule": "30+2x5",
    "alpha": 0.3,
    "rounds_first": 60,
    "rounds_later": 30,
    "sample_fraction": 0.1,
    "lr": 0.05,
}

EVERYONE = "all"  # the schedule of natural clients that are not counted yet


class Config(BaseModel):
    """One run. The defaults are the paper's protocol; the embedded `digits` have a smaller one of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field(
        default="digits", description="a known name, a folder of class or client folders, an .npz or a .parquet file"
    )
    method: str = Field(default="pfeddsh", description="see `pfeddsh methods`, or your own package.module:Class")
    schedule: str = Field(
        default="80+20", description="batch sizes: 80+20, 80+4x5, 80+10x2; all: one batch of all natural clients"
    )
    seed: int = Field(default=0, ge=0)
    partition: str = Field(
        default="dirichlet", description="dirichlet, iid, classes=k, or natural: the clients named in the data"
    )
    order: str | tuple[str, ...] = Field(
        default="seed",
        description="order in which natural clients join: random (seed), sorted by name (names), a list of names, or "
        "a file with one name per line",
    )
    image_size: int = Field(
        default=0, ge=0, le=4096, description="image side for models that accept any; 0: unchanged, 256 at most"
    )
    resize: Literal["pad", "crop"] = Field(
        default="pad", description="how images are resized: pad with black, or crop the longer side"
    )
    skip_unreadable: bool = Field(default=False, description="continue without images that cannot be read")
    alpha: float = Field(
        default=0.1, gt=0, allow_inf_nan=False, description="Dirichlet concentration; smaller is more skewed"
    )
    rounds_first: int = Field(default=200, ge=1)
    rounds_later: int = Field(default=100, ge=1)
    sample_fraction: float = Field(default=0.05, gt=0, le=1)
    sampling: Sampling = Field(
        default="random", description="clients of a round: a new random sample, or all in turn, in random order"
    )
    local_epochs: int = Field(default=1, ge=1)
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    batch_size: int = Field(default=32, ge=2)
    later: Literal["newcomers", "frozen", "frozen-head", "everyone"] = Field(
        default="newcomers",
        description="who trains the shared state after step 1: newcomers (Investigation I), nobody: newcomers only "
        "fine-tune for themselves (frozen, Investigation II; frozen-head: their last layer only), or everyone (an "
        "oracle the setting forbids)",
    )
    existing: Existing = Field(
        default="follow",
        description="existing clients: are served the current state (follow), keep the model of the end of their step "
        "(keep), or keep the better of their model and the current one (guard)",
    )
    evidence: Evidence = Field(
        default="shifted",
        description="how a client judges offers: by the loss on its training images (loss), on these images shifted, "
        "and flipped where its model still recognises them (shifted), or on held-out images (held-out)",
    )
    hold_out: float = Field(
        default=0.0, ge=0, le=0.5, description="share of each client's training images that is held out"
    )
    evaluate: Literal["all"] | Annotated[int, Field(ge=2)] = Field(
        default="all",
        description="existing clients evaluated after a step: all, or a random sample of this size; newcomers are "
        "always evaluated (docs/scale.md)",
    )
    engine: Literal["serial", "pool", "ray"] = Field(
        default="pool", description="where clients run: this process, worker processes, or a Ray cluster (RAY_ADDRESS)"
    )
    workers: int = Field(default=0, ge=0, description="workers of the pool or on Ray; 0 means one per core")
    data_dir: Path | None = Field(
        default=None, description="folder of datasets; default: PFEDDSH_DATA or the user's cache"
    )
    model: str = Field(
        default=networks.DEFAULT,
        description="see `pfeddsh models`, or package.module:factory, or file.py:factory; from Python, a callable",
    )
    init: Path | None = Field(default=None, description="a safetensors file with the initial weights")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="where clients train: cpu, cuda or cuda:n; auto is cuda if there is a GPU",
    )
    privacy: Protection = Field(
        default_factory=Protection,
        description="clip and noise of every upload, to measure the cost of privacy: docs/privacy.md",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the method")

    if not TYPE_CHECKING:  # the checker knows the keys and that they do not change

        def __init__(self, *given: Any, **values: Any) -> None:
            if given:
                raise UserError(f"Config({given[0]!r}): name the key, for instance Config(dataset={given[0]!r})")
            super().__init__(**values)

        def __setattr__(self, name: str, value: Any) -> None:
            raise UserError(f"{name} = {value!r}: a configuration does not change; make another, Config({name}=...)")

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler["Config"]) -> "Config":
        """`Config(mehtod=...)` in Python is told in one line too."""
        if isinstance(values, dict) and (wrong := unknown_key(cls, values)):
            raise WrongValue(wrong)
        try:
            return handler(values)
        except ValidationError as error:
            raise WrongValue(explained(error)) from None

    @field_validator("method", "model", mode="before")
    @classmethod
    def _referred_to(cls, value: Any) -> Any:
        """A class or factory is kept as a reference to it: workers, and who resumes the run, must find it too."""
        return plugins.reference(value) if callable(value) else value

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """The small protocol of the digits fills in what is not given."""
        if not isinstance(values, dict):
            return values
        values = (DEMO if values.get("dataset", "digits") == "digits" else {}) | values
        return values | ({"order": _names_in_file(values["order"])} if isinstance(values.get("order"), str) else {})

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        if self.schedule != EVERYONE or self.partition != "natural":
            parse(self.schedule)
        if not self.order:
            raise UserError("order: no client is named; write seed, names, or a list of their names")
        if self.order != "seed" and self.partition != "natural":
            raise UserError("order: only clients that the data name can be ordered; set partition = natural")
        if self.evidence == "held-out" and self.hold_out == 0:
            raise UserError("evidence = held-out: no images are set aside; say how many, for instance hold_out = 0.1")
        if self.engine != "serial":
            for part in (self.method, self.model):
                plugins.importable_elsewhere(part, ", or use engine='serial'")
        return self

    def plan(self) -> Schedule:
        return Schedule(
            parse(self.schedule), self.seed, self.rounds_first, self.rounds_later, self.sample_fraction, self.lr,
            self.sampling, everyone=self.later == "everyone", drawn=self.order == "seed",
        )  # fmt: skip

    def protocol(self) -> dict[str, Any]:
        """What results depend on besides dataset, method, schedule, seed and the method's settings."""
        order = self.order if isinstance(self.order, str) else json.dumps(self.order, ensure_ascii=False)
        private = {f"privacy.{name}": value for name, value in self.privacy} if self.privacy.on else {}
        sampled = {} if self.evaluate == "all" else {"evaluate": self.evaluate}
        return self.model_dump(mode="json", exclude={*APART, "evaluate"}) | {"order": order} | private | sampled

    def toml(self) -> str:
        values = self.model_dump(mode="json", exclude_none=True)
        values["options"] = {key: value for key, value in self.options.items() if value is not None}
        return tomli_w.dumps(values)


def _names_in_file(order: str) -> str | tuple[str, ...]:
    """The lines of a file are taken over, so that a written configuration is complete without it."""
    if order in ("seed", "names"):
        return order
    try:
        lines = Path(order).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"order = {order}: expected seed, names, a list, or a file of client names ({error})") from None
    return tuple(line.strip() for line in lines if line.strip())
