"""The complete description of a run: what a TOML file, the command line and Python all turn into."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pfeddsh.errors import UserError, unknown
from pfeddsh.federation.schedule import Sampling, Schedule, parse
from pfeddsh.guard import Evidence, Existing

DEMO: dict[str, Any] = {
    "schedule": "30+2x5",
    "alpha": 0.3,
    "rounds_first": 60,
    "rounds_later": 30,
    "sample_fraction": 0.1,
    "lr": 0.05,
}

PROTOCOL = (
    "partition", "alpha", "rounds_first", "rounds_later", "sample_fraction", "local_epochs", "lr", "momentum",
    "batch_size", "later", "existing", "evidence", "hold_out", "sampling", "model", "init",
)  # fmt: skip


class Config(BaseModel):
    """One run. The defaults are the paper's protocol; the embedded `digits` have a smaller one of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field("digits", description="a known name, a folder of class folders, or an .npz file")
    method: str = Field("pfeddsh", description="see `pfeddsh methods`")
    schedule: str = Field("80+20", description="batch sizes: 80+20, 80+4x5, 80+10x2")
    seed: int = Field(0, ge=0)
    partition: str = Field("dirichlet", description="dirichlet, iid, or classes=k")
    alpha: float = Field(0.1, gt=0, allow_inf_nan=False, description="Dirichlet concentration; smaller is more skewed")
    rounds_first: int = Field(200, ge=1)
    rounds_later: int = Field(100, ge=1)
    sample_fraction: float = Field(0.05, gt=0, le=1)
    sampling: Sampling = Field(
        "random", description="who trains in a round: drawn anew in each, or everyone in turn, in random order"
    )
    local_epochs: int = Field(1, ge=1)
    lr: float = Field(0.01, ge=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    batch_size: int = Field(32, ge=2)
    later: Literal["newcomers", "frozen", "frozen-head", "everyone"] = Field(
        "newcomers",
        description="who trains the shared state after step 1: newcomers (Investigation I), nobody: newcomers only "
        "fine-tune for themselves (frozen, Investigation II; frozen-head: their last layer alone), or everyone (an "
        "oracle the setting forbids)",
    )
    existing: Existing = Field(
        "follow",
        description="clients whose step is over: are served the current state (follow), keep the model of its end "
        "(keep), or keep the better of what they have and what they would be served (guard)",
    )
    evidence: Evidence = Field(
        "shifted",
        description="what a client judges offers by: the loss on its training images (loss), on the same flipped and "
        "shifted (shifted), or images that were set aside (held-out)",
    )
    hold_out: float = Field(0.0, ge=0, le=0.5, description="share of each client's training images that is set aside")
    engine: Literal["serial", "pool"] = "pool"
    workers: int = Field(0, ge=0, description="worker processes of the pool; 0 means one per core")
    data_dir: Path | None = Field(None, description="where datasets lie; else PFEDDSH_DATA, else the user's cache")
    model: str = Field(
        "lenet",
        description="see `pfeddsh models`, or package.module:factory, or file.py:factory; from Python, a callable",
    )
    init: Path | None = Field(None, description="a safetensors file with the weights to begin with")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="where clients train: cpu, cuda or cuda:n; auto is cuda if there is a GPU",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the method")

    @field_validator("model", mode="before")
    @classmethod
    def _referred_to(cls, value: Any) -> Any:
        """A factory is kept as a reference to it: workers, and who resumes the run, must find it too."""
        if not callable(value):
            return value
        from pfeddsh.models.registry import reference

        return reference(value)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Presets of the method and the small protocol of the digits fill in what is not given."""
        if not isinstance(values, dict) or not isinstance(values.get("method", ""), str):
            return values
        if not isinstance(values.get("options", {}), dict):
            return values
        values = (DEMO if values.get("dataset", "digits") == "digits" else {}) | values
        from pfeddsh.methods import registry  # the registry imports the methods, which need not know the config

        entry = registry.find(values.get("method", "pfeddsh"))
        values.setdefault("later", entry.later)
        values.setdefault("existing", entry.existing)
        return {**values, "options": entry.options(values.get("options", {}))}

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        parse(self.schedule)
        if self.evidence == "held-out" and self.hold_out == 0:
            raise UserError("evidence = held-out: no images are set aside; say how many, for instance hold_out = 0.1")
        from pfeddsh.methods import registry

        if self.later == "frozen-head" and registry.find(self.method).method.whole_only:
            raise UserError(f"later = frozen-head: {self.method} has a training of its own, of the whole model")
        if self.options.get("finetune") and self.existing == "follow":
            raise UserError("options.finetune: only a client that keeps its model can tune it; set existing = keep")
        return self

    def plan(self) -> Schedule:
        return Schedule(
            parse(self.schedule), self.seed, self.rounds_first, self.rounds_later, self.sample_fraction, self.lr,
            self.sampling, everyone=self.later == "everyone",
        )  # fmt: skip

    def protocol(self) -> dict[str, Any]:
        """What results depend on besides dataset, method, schedule, seed and the method's settings."""
        return self.model_dump(mode="json", include=set(PROTOCOL))

    def toml(self) -> str:
        values = self.model_dump(mode="json", exclude_none=True)
        values["options"] = {key: value for key, value in self.options.items() if value is not None}
        return tomli_w.dumps(values)


def build(values: dict[str, Any], where: str = "configuration") -> Config:
    """A checked configuration, or an error that names each wrong key and the nearest valid one."""
    for key in values:
        if key not in Config.model_fields:
            raise UserError(f"{where}: {unknown('key', key, Config.model_fields)}")
    try:
        return Config(**values)
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'value'}: {e['msg']}" for e in error.errors()]
        raise UserError(f"{where}: " + "; ".join(lines)) from None


def read(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def override(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `key=value` and `options.key=value` from the command line; values are TOML, bare words are strings."""
    result = dict(values)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment}: write key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        group, dot, name = key.strip().partition(".")
        if dot and group == "options":
            options = result.get("options", {})
            result["options"] = {**options, name: value} if isinstance(options, dict) else options
        else:
            result[key.strip()] = value
    return result
