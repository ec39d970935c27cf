"""How far a site trusts its coordinator: with its model, not with its memory, its time or the code it runs.

Whatever comes is bounded before anything is built from it; a coordinator that asks for more is told so.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pfeddsh.messages import BadMessage, Message

SIDE, CHANNELS, CLASSES, PIXELS = 1024, 16, 10_000, 3 * 1024 * 1024
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]
Side = Annotated[int, Field(ge=1, le=SIDE)]


class FederationSettings(BaseModel):
    """What a coordinator may say of the federation."""

    model_config = ConfigDict(strict=True, extra="ignore")

    method: str = Field(max_length=200)
    options: dict[str, Any]
    classes: list[Annotated[str, Field(max_length=200)]] = Field(min_length=2, max_length=CLASSES)
    seed: int = Field(ge=0, lt=1 << 63)
    mean: list[Finite] = Field(min_length=1, max_length=CHANNELS)
    std: list[Annotated[Finite, Field(ge=0)]] = Field(min_length=1, max_length=CHANNELS)
    model: str = Field(max_length=200)
    shape: tuple[Annotated[int, Field(ge=1, le=CHANNELS)], Side, Side] | None = Field(strict=False)


class Circumstances(BaseModel):
    """How long and how a coordinator may have a site train in one visit."""

    model_config = ConfigDict(strict=True, extra="forbid")

    seed: int = Field(ge=0, lt=1 << 63)
    step: int = Field(ge=0, lt=1 << 31)
    round: int = Field(ge=0, lt=1 << 31)
    client: int = Field(ge=0, lt=1 << 31)
    rounds: int = Field(ge=1, lt=1 << 31)
    lr: float = Field(ge=0, le=100, allow_inf_nan=False, strict=False)
    momentum: float = Field(ge=0, lt=1, strict=False)
    epochs: int = Field(ge=1, le=1000)
    batch_size: int = Field(ge=2, le=1 << 20)
    evidence: Literal["loss", "shifted", "held-out"]
    head_only: bool


def settings(told: Any) -> dict[str, Any]:
    """The settings as they came, if a site can live with them."""
    _check(FederationSettings, told, "settings")
    shape = told["shape"]
    if shape is not None and shape[0] * shape[1] * shape[2] > PIXELS:
        raise BadMessage(f"settings: images of {shape[0]}x{shape[1]}x{shape[2]} are more than this site makes")
    if shape is not None and not len(told["mean"]) == len(told["std"]) == shape[0]:
        raise BadMessage("settings: mean and std are not of as many channels as the images")
    checked: dict[str, Any] = told
    return checked


def visit(header: dict[str, Any]) -> dict[str, Any]:
    """The header of a call, if its visit is one."""
    _check(Circumstances, header.get("visit"), "visit")
    return header


def message(sent: Message) -> None:
    """A model that is not finite would be kept, and used."""
    for name, tensor in sent.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadMessage(f"{name} has values that are not finite")


def _check(model: type[BaseModel], told: Any, where: str) -> None:
    try:
        model.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (where, *first["loc"])))
        raise BadMessage(f"{place}: {first['msg'][:200]}") from None
