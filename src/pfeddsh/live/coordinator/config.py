"""`federation.toml`: everything about a live federation, in one file."""

import json
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfeddsh.config import Config
from pfeddsh.configure import complete
from pfeddsh.errors import UserError
from pfeddsh.methods import registry
from pfeddsh.models import registry as networks
from pfeddsh.storage.files import write_text
from pfeddsh.values import checked, read

FIXED = ("method", "options", "model", "shape", "classes", "seed", "mean", "std")  # once there is a state
ROBUST = "history"  # how a common model is aggregated unless the configuration says otherwise
Channels = tuple[float, ...]


class LiveConfig(BaseModel):
    """A federation that runs until it is stopped, or for a given number of steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: tuple[str, ...] = Field(min_length=2, description="names of all classes, the same at every site")
    method: str = Field("pfeddsh", description="see `pfeddsh methods`")
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the method")
    model: str = Field(networks.DEFAULT, description="see `pfeddsh models`; sites must allow one that is not installed")
    shape: tuple[int, int, int] | None = Field(
        None, description="channels, height, width of images; the default model has its own"
    )
    seed: int = Field(0, ge=0)
    mean: Channels = Field((0.5, 0.5, 0.5), description="mean of pixels in 0..1, subtracted at every site")
    std: Channels = Field((0.25, 0.25, 0.25), description="standard deviation by which pixels are divided")
    rounds_first: int = Field(50, ge=1, description="rounds of the first batch")
    rounds_later: int = Field(30, ge=1, description="rounds of every later batch")
    sample_fraction: float = Field(1.0, gt=0, le=1, description="share of a batch that trains in a round")
    local_epochs: int = Field(5, ge=1, description="epochs per round; several, since each message is expensive")
    lr: float = Field(0.02, ge=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    batch_size: int = Field(32, ge=2)
    batch_min: int = Field(3, ge=1, description="a step opens when this many newcomers wait")
    batch_wait: float = Field(3600.0, ge=0, description="a step opens when a newcomer has waited this many seconds")
    steps: int | None = Field(None, ge=1, description="stop after this many steps; default: never")
    min_cohort: int = Field(1, ge=1, description="a round with fewer valid replies is repeated")
    round_timeout: float = Field(600.0, gt=0, description="seconds a client has for one task")
    offline_after: float = Field(30.0, ge=0, description="seconds a round waits for a client that is not connected")
    abandon_after: float = Field(
        3600.0, ge=0, description="seconds of repeating a round without enough replies before its step is abandoned"
    )
    norm_limit: float = Field(
        5.0, gt=0, description="refuse uploads that change a model by more than this times its norm"
    )
    norm_bound: float = Field(10.0, gt=1, description="refuse uploads above this times the cohort's median norm")
    quarantine_after: int = Field(3, ge=1, description="refused replies in a row before a client is quarantined")

    @model_validator(mode="after")
    def _method_fits(self) -> "LiveConfig":
        if registry.find(self.method).later == "everyone":
            raise ValueError(f"method '{self.method}' trains existing clients again; a live federation never does")
        if registry.find(self.method).existing == "keep":
            raise ValueError(f"method '{self.method}' serves a model once; a site may be away at that moment")
        if why := registry.find(self.method).method.unfit_live(registry.find(self.method).options(self.options)):
            raise ValueError(f"method '{self.method}' cannot run live: {why}")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes has a name twice")
        if self.shape and not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError(f"mean and std: give {self.shape[0]} numbers each, one for every channel")
        self.training()
        return self

    def training(self) -> Config:
        """The part that a simulated run has too."""
        shared = {name: getattr(self, name) for name in LiveConfig.model_fields if name in Config.model_fields}
        if "aggregation" in registry.find(self.method).method.Settings.model_fields:
            shared["options"] = {"aggregation": ROBUST, **self.options}  # strangers take part
        return complete(Config(**{**shared, "dataset": "live", "later": "newcomers", "engine": "serial"}))

    def for_sites(self) -> dict[str, Any]:
        """What a site needs to know; it travels with every call."""
        options = self.training().options
        return {"method": self.method, "options": options, "classes": list(self.classes), "seed": self.seed,
                "mean": list(self.mean), "std": list(self.std), "model": self.model,
                "shape": self.shape and list(self.shape)}  # fmt: skip

    def toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def build(values: dict[str, Any], where: str) -> LiveConfig:
    """A checked configuration, or an error that names each wrong key and the nearest valid one."""
    return checked(LiveConfig, values, where)


def load(folder: Path) -> LiveConfig:
    """The federation of a folder."""
    path = folder / "federation.toml"
    if not path.exists():
        raise UserError(f"{folder} holds no federation: there is no federation.toml in it; see `pfeddsh serve --help`")
    return build(read(path), str(path))


def save(folder: Path, config: LiveConfig) -> None:
    write_text(folder / "federation.toml", config.toml())


def check_unchanged(folder: Path, config: LiveConfig) -> None:
    """The settings a state was made with cannot change under it."""
    path = folder / "state" / "federation.json"
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text())
        known = registry.find(config.method).options({})
        gone = before["options"].keys() - known.keys()
        before["options"] = known | before["options"]  # it may lack newer ones
        changed = {name: before.get(name) for name, value in _fixed(config).items() if before.get(name) != value}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it from a backup") from error
    if gone:
        raise UserError(
            f"{folder}: this federation was begun with another version of pfeddsh, whose {config.method} had other "
            f"settings ({', '.join(sorted(gone))}); continue it with that version"
        )
    if changed:
        raise UserError(
            f"federation.toml: {', '.join(changed)} cannot change in a federation that has begun; set it back to "
            + ", ".join(f"{name} = {value}" for name, value in changed.items())
        )


def begun(folder: Path) -> bool:
    """Whether a coordinator has worked in this folder: its state is there."""
    return (folder / "state" / "federation.json").exists()


def fix(folder: Path, config: LiveConfig) -> None:
    """Note what cannot change from now on."""
    path = folder / "state" / "federation.json"
    if not path.exists():
        write_text(path, json.dumps(_fixed(config), indent=1) + "\n")


def _fixed(config: LiveConfig) -> dict[str, Any]:
    return {name: value for name, value in config.for_sites().items() if name in FIXED}
