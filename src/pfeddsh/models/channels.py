"""Which weight of LeNet touches which channel.

Masks live on channels, the hypernetwork on flat parameters; this table translates. A parameter has an output end and
an input end, each an index into the 6+16+120+84 channels or one of two markers for ends that are no channel.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from pfeddsh.models.lenet import CHANNELS, GATES, LeNet

OUTSIDE = GATES  # the input image and the units of fc3
NOTHING = GATES + 1  # the input end of a bias

LAYERS: dict[str, slice] = {
    name: slice(sum(CHANNELS[:index]), sum(CHANNELS[: index + 1]))
    for index, name in enumerate(("conv1", "conv2", "fc1", "fc2"))
}


class Ends(NamedTuple):
    """For each of the P parameters, the channel it feeds and the channel it reads."""

    output: Tensor
    input: Tensor

    def look_up(self, channels: Tensor, outside: float, nothing: float) -> tuple[Tensor, Tensor]:
        """A value per channel as two values per parameter: at its output end and at its input end."""
        values = torch.cat([channels, channels.new_tensor([outside, nothing])])
        return values[self.output], values[self.input]


def ends(model: LeNet) -> Ends:
    """The table for this network; it depends on the number of classes only and is computed once for each."""
    return _ends(model.classes)


@cache
def _ends(classes: int) -> Ends:
    model = LeNet(classes)
    index = torch.arange(GATES)
    image, units = torch.full((3,), OUTSIDE), torch.full((classes,), OUTSIDE)
    conv1, conv2, fc1, fc2 = (index[part] for part in LAYERS.values())
    positions = conv2.repeat_interleave(model.shapes["fc1.weight"][1] // len(conv2))  # flattened channel by channel
    chain = {
        "conv1": (conv1, image),
        "conv2": (conv2, conv1),
        "fc1": (fc1, positions),
        "fc2": (fc2, fc1),
        "fc3": (units, fc2),
    }
    output, read = torch.empty(model.size, dtype=torch.int64), torch.empty(model.size, dtype=torch.int64)
    for name, (feeds, reads) in chain.items():
        weight = model.shapes[f"{name}.weight"]
        trailing = (1,) * (len(weight) - 2)
        output[model.slices[f"{name}.weight"]] = feeds.view(-1, 1, *trailing).expand(weight).flatten()
        read[model.slices[f"{name}.weight"]] = reads.view(1, -1, *trailing).expand(weight).flatten()
        output[model.slices[f"{name}.bias"]] = feeds
        read[model.slices[f"{name}.bias"]] = NOTHING
    return Ends(output, read)
