"""Which weight touches which channel.

Masks live on channels, the hypernetwork on flat parameters; this table translates. A parameter has an output end and
an input end, each an index into the channels or one of two markers for ends that are no channel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class Ends(NamedTuple):
    """For each of the P parameters, the channel it feeds and the channel it reads."""

    output: Tensor
    input: Tensor

    def look_up(self, channels: Tensor, outside: float, nothing: float) -> tuple[Tensor, Tensor]:
        """A value per channel as two values per parameter: at its output end and at its input end."""
        values = torch.cat([channels, channels.new_tensor([outside, nothing])])
        return values[self.output], values[self.input]


@dataclass(frozen=True, eq=False)
class Channels:
    """The channels of a network that can be gated, layer by layer."""

    widths: Mapping[str, int]  # channels of each gated layer, which has a weight and a bias of its name
    budgets: Mapping[str, float]  # the share of each layer that a first step may take (`masks`)
    ends: Ends

    @cached_property
    def count(self) -> int:
        return sum(self.widths.values())

    @property
    def outside(self) -> int:
        """The marker of the input image and of the output units."""
        return self.count

    @property
    def nothing(self) -> int:
        """The marker of a bias's input end."""
        return self.count + 1

    @cached_property
    def layers(self) -> dict[str, slice]:
        """Where the channels of each layer lie among all."""
        stops = accumulate(self.widths.values())
        return {name: slice(stop - self.widths[name], stop) for name, stop in zip(self.widths, stops, strict=True)}
