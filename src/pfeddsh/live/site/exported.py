"""A site's personal LeNet-5, exported from its federation: an ordinary PyTorch module and nothing else.

Beside this file lie weights.safetensors and model.json (class names, and the normalisation of inputs). Needs torch,
safetensors and, to read images, numpy and pillow:

    python model.py photo.png                   # class and probability

    from model import load, prepare
    model = load()                              # in evaluation mode
    logits = model(prepare("photo.png"))        # one row for each image
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent


class LeNet(nn.Module):
    """Two convolutions, each normalised with the site's own statistics, and three dense layers."""

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


def facts(folder: Path = HERE) -> dict[str, Any]:
    """model.json: classes, mean, std and what the model is."""
    found: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return found


def load(folder: Path = HERE) -> LeNet:
    """The module with its weights, in evaluation mode."""
    model = LeNet(len(facts(folder)["classes"]))
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval()


def prepare(path: str | Path, folder: Path = HERE) -> Tensor:
    """An image file as the model wants it: upright, three channels, padded to 32x32, normalised; a batch of one."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = ImageOps.pad(image.convert("RGB"), (32, 32), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(facts(folder)[name]).view(3, 1, 1) for name in ("mean", "std"))
    return ((pixels - mean) / std).unsqueeze(0)


if __name__ == "__main__":
    network, names = load(), facts()["classes"]
    for argument in sys.argv[1:]:
        with torch.inference_mode():
            chance, which = network(prepare(argument)).softmax(1)[0].max(0)
        print(f"{argument}: {names[int(which)]} ({chance:.1%})")
