"""Prediction at the site with the model it is served; nothing leaves the machine and no server is asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pfeddsh.data.folders import SUFFIXES
from pfeddsh.data.images import Fit, Pixels, decode
from pfeddsh.errors import UserError
from pfeddsh.live.site.model import SiteModel

CHUNK = 256  # images in memory at a time


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of an image and its probability, or why there is none."""

    image: str
    label: str = ""
    probability: float | None = None
    error: str = ""


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files named, and the images in folders named, at any depth."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise UserError(f"{path} holds no images ({', '.join(SUFFIXES)})")
            found += inside
        else:
            found.append(path)
    return found


def predict(model: SiteModel, images: Sequence[Path]) -> Iterator[Prediction]:
    """One prediction for each image, in their order; a bad one does not keep the others from theirs."""
    fit = Fit(model.network.shape)
    for start in range(0, len(images), CHUNK):
        read = [(path, *_read(path, fit)) for path in images[start : start + CHUNK]]
        good = [pixels for _, pixels, _ in read if pixels is not None]
        best = model.probabilities(torch.from_numpy(np.stack(good))).max(1) if good else None
        row = 0
        for path, pixels, error in read:
            if pixels is None or best is None:
                yield Prediction(str(path), error=error)
            else:
                yield Prediction(str(path), model.classes[int(best.indices[row])], float(best.values[row]))
                row += 1


def _read(path: Path, fit: Fit) -> tuple[Pixels | None, str]:
    try:
        return decode(path.read_bytes(), fit)[0], ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except ValueError as error:
        return None, str(error)
