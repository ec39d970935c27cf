"""A small convolutional network, for grey images of 28x28 pixels and the like."""

from torch import Tensor, nn

__all__ = ["convnet"]


class ConvNet(nn.Module):
    """Two normalised convolutions, each followed by pooling, and two linear layers."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True),
            nn.Flatten(),
        )  # fmt: skip
        places = -(-height // 4) * -(-width // 4)
        self.classifier = nn.Sequential(nn.Linear(32 * places, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def convnet(classes: int, shape: tuple[int, int, int]) -> ConvNet:
    """Two convolutions and two linear layers, for grey images of 28x28 pixels and the like."""
    return ConvNet(classes, shape)
