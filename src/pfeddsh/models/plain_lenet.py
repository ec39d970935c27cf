"""LeNet-5 as an ordinary PyTorch module: two normalised convolutions and three dense layers. Needs torch alone."""

import torch.nn.functional as F
from torch import Tensor, nn


class PlainLeNet(nn.Module):
    """For colour images of 32x32 pixels; the normalisations have no affine part."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.norm1 = nn.BatchNorm2d(6, affine=False)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.norm2 = nn.BatchNorm2d(16, affine=False)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of normalised images, (N, 3, 32, 32)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)  # type: ignore[no-any-return]


def lenet(classes: int, shape: tuple[int, int, int]) -> PlainLeNet:
    """The network, untrained."""
    return PlainLeNet(classes)
