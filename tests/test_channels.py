"""The channel table against a loop over every weight."""

import pytest
import torch

from pfeddsh.models.fast import GATES
from pfeddsh.models.lenet import LeNet

LAYERS, OUTSIDE, NOTHING = LeNet(10).channels.layers, LeNet(10).channels.outside, LeNet(10).channels.nothing


def by_loop(model: LeNet) -> tuple[list[int], list[int]]:
    """The same table, written down weight by weight from the shapes."""
    first = {"conv1": 0, "conv2": 6, "fc1": 22, "fc2": 142}
    output, read = [], []
    for name, shape in model.shapes.items():
        layer, kind = name.split(".")
        for i in range(shape[0]):
            at = OUTSIDE if layer == "fc3" else first[layer] + i
            if kind == "bias":
                output.append(at)
                read.append(NOTHING)
                continue
            for j in range(shape[1]):
                if layer == "conv1":
                    source = OUTSIDE
                elif layer == "conv2":
                    source = first["conv1"] + j
                elif layer == "fc1":
                    source = first["conv2"] + j // 25
                else:
                    source = first["fc1" if layer == "fc2" else "fc2"] + j
                repeated = 25 if layer.startswith("conv") else 1
                output += [at] * repeated
                read += [source] * repeated
    return output, read


@pytest.mark.parametrize("classes", [10, 100])
def test_table_equals_the_loop(classes: int) -> None:
    model = LeNet(classes)
    output, read = by_loop(model)
    table = model.channels.ends
    assert table.output.tolist() == output
    assert table.input.tolist() == read


def test_layers_tile_the_channels() -> None:
    assert [layer.stop - layer.start for layer in LAYERS.values()] == [6, 16, 120, 84]
    assert [i for layer in LAYERS.values() for i in range(GATES)[layer]] == list(range(GATES))


def test_the_table_is_computed_once() -> None:
    assert LeNet(10).channels.ends.output is LeNet(10).channels.ends.output


@pytest.mark.parametrize("channel", [0, 5, 6, 13, 21, 22, 100, 143, 225])
def test_cutting_either_end_of_a_channel_closes_it(channel: int) -> None:
    """The table means what it says to the network too (statistics of 0 and 1 switch its normalisation off)."""
    model = LeNet(10)
    generator = torch.Generator().manual_seed(0)
    theta, images = model.init(generator), torch.randn(4, 3, 32, 32, generator=generator)
    statistics = torch.cat([torch.zeros(6), torch.ones(6), torch.zeros(16), torch.ones(16)])
    gates = torch.ones(GATES)
    gates[channel] = 0
    expected = model.forward(theta, images, statistics, gates)
    assert not torch.allclose(expected, model.forward(theta, images, statistics), atol=1e-7)
    for end in model.channels.ends:
        torch.testing.assert_close(model.forward(theta * (end != channel), images, statistics), expected)
