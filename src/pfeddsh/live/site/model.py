"""The model a site is served, read from its folder and checked: what export and prediction start from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pfeddsh.errors import UserError
from pfeddsh.messages import BadMessage, Record, check
from pfeddsh.models import registry
from pfeddsh.models.base import Model, statistics_size
from pfeddsh.storage.records import Damaged, read_record
from pfeddsh.values import read

FILE, PREVIOUS = "model.safetensors", "model.previous.safetensors"


@dataclass(frozen=True)
class SiteModel:
    """Weights, statistics and gates of one site, with its classes' names and the normalisation of its images."""

    theta: Tensor
    statistics: Tensor
    gates: Tensor | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    facts: dict[str, Any]
    spec: str
    network: Model

    def module(self) -> nn.Module:
        return self.network.module(self.theta, self.statistics, self.gates)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels 0..255, (N, channels, height, width), as the network was trained on them."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std

    @torch.inference_mode()
    def probabilities(self, pixels: Tensor) -> Tensor:
        return self.network.forward(self.theta, self.normalise(pixels), self.statistics, self.gates).softmax(1)


def read_model(home: Path) -> SiteModel:
    """The model a site is served now."""
    path = home / FILE
    if not path.exists():
        raise UserError(f"{home} holds no model yet: it comes when the site has been onboarded (`pfeddsh join`)")
    try:
        return _checked(read_record(path), _allowed(home))
    except (Damaged, BadMessage, KeyError, TypeError, ValueError) as error:
        known_good = f"; the last good one is {home / PREVIOUS}: copy it over" if (home / PREVIOUS).exists() else ""
        raise UserError(f"{path} is damaged ({error}){known_good or '; restore it from a backup'}") from error


def _allowed(home: Path) -> Sequence[str]:
    """Code that is not pfeddsh's which the site has been told to run."""
    found: Sequence[str] = read(path).get("allow", ()) if (path := home / "site.toml").exists() else ()
    return found


def _checked(record: Record, allowed: Sequence[str] = ()) -> SiteModel:
    """Refuse what is not a whole model; everything after this may rely on it."""
    facts = record.facts
    given = facts["classes"]
    names = tuple(map(str, given if isinstance(given, list) else range(int(given))))
    mean, std = (tuple(float(value) for value in facts[name]) for name in ("mean", "std"))
    spec = facts.get("model", registry.DEFAULT)
    network = registry.create(spec, len(names), facts.get("shape"), allowed)
    channels, height, _ = network.shape
    if len(mean) != channels or len(std) != channels or facts.get("image_size", height) != height or len(names) < 2:
        raise ValueError(f"its facts are not those of a {spec} of images of shape {network.shape}")
    like = {"theta": torch.zeros(network.size), "statistics": torch.zeros(statistics_size(network))}
    if "gates" in record and network.channels is not None:
        like["gates"] = torch.zeros(network.channels.count)
    check(record, Record(like))
    gates = record.tensors.get("gates")
    if gates is not None and bool((gates < 0).any()):
        raise ValueError("it has negative gates")
    std = tuple(max(value, 1e-3) for value in std)  # a channel may be constant
    return SiteModel(record["theta"], record["statistics"], gates, names, mean, std, facts, spec, network)
