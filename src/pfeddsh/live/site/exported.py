"""A site's personal model, exported from its federation: an ordinary PyTorch module and nothing else.

Beside this file lie weights.safetensors, model.json (class names, the shape and normalisation of inputs) and network.py
(the module, unless model.json names an installed package). Needs torch, safetensors and, to read images, numpy and
pillow:

    python model.py photo.png                   # class and probability

    from model import load, prepare
    model = load()                              # in evaluation mode
    logits = model(prepare("photo.png"))        # one row for each image
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent


def facts(folder: Path = HERE) -> dict[str, Any]:
    """model.json: classes, shape, mean, std and what the model is."""
    found: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return found


def network(folder: Path = HERE) -> nn.Module:
    """The module, untrained: made by network.py, or by the package that model.json names."""
    about = facts(folder)
    place, _, factory = about["factory"].rpartition(":")
    if (file := folder / "network.py").exists():
        spec = importlib.util.spec_from_file_location("network", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    made: nn.Module = getattr(module, factory)(classes=len(about["classes"]), shape=tuple(about["shape"]))
    return made


def load(folder: Path = HERE) -> nn.Module:
    """The module with its weights, in evaluation mode."""
    model = network(folder)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval()


def prepare(path: str | Path, folder: Path = HERE) -> Tensor:
    """An image file as the model wants it: upright, its channels, padded to its size, normalised; a batch of one."""
    channels, height, width = facts(folder)["shape"]
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = ImageOps.pad(image.convert("L" if channels == 1 else "RGB"), (width, height), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).view(height, width, channels).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(facts(folder)[name]).view(-1, 1, 1) for name in ("mean", "std"))
    return ((pixels - mean) / std).unsqueeze(0)


if __name__ == "__main__":
    model, names = load(), facts()["classes"]
    for argument in sys.argv[1:]:
        with torch.inference_mode():
            chance, which = model(prepare(argument)).softmax(1)[0].max(0)
        print(f"{argument}: {names[int(which)]} ({chance:.1%})")
