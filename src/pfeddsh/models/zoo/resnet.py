"""Residual networks (He et al. 2016): resnet8 and resnet20 for small images, resnet18 for 64 to 224 pixels."""

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["resnet8", "resnet18", "resnet20"]


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where size or width change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages that halve the image, the mean over places, one linear layer."""

    def __init__(self, classes: int, stem: nn.Sequential, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.stem = stem
        stages, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(Block(inputs, width, 2 if stage and not block else 1))
                inputs = width
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


def _small(classes: int, shape: tuple[int, int, int], blocks: int) -> ResNet:
    stem = nn.Sequential(nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return ResNet(classes, stem, (16, 32, 64), blocks)


def resnet8(classes: int, shape: tuple[int, int, int]) -> ResNet:
    """A residual network with one block in each of three stages, for small images."""
    return _small(classes, shape, 1)


def resnet20(classes: int, shape: tuple[int, int, int]) -> ResNet:
    """A residual network with three blocks in each of three stages, for small images."""
    return _small(classes, shape, 3)


def resnet18(classes: int, shape: tuple[int, int, int]) -> ResNet:
    """A residual network with two blocks in each of four wide stages, for images of 64 to 224 pixels."""
    stem = nn.Sequential(
        nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    return ResNet(classes, stem, (64, 128, 256, 512), 2)
