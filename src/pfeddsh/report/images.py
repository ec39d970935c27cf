"""Replayed images as a contact sheet, read from the last checkpoint of a run if it was kept."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image
from safetensors import SafetensorError, safe_open

from pfeddsh.report.grouping import Cell, Group
from pfeddsh.report.read import Run

COLUMNS, ROWS = 12, 4
POOL = "state:pool"  # where pFedDSH keeps what it has imagined


@dataclass(frozen=True)
class Sheet:
    """A PNG as data URI, and of how many images these are a sample."""

    cell: Cell
    seed: int
    source: str
    total: int
    shown: int


def sheets(group: Group) -> tuple[list[Sheet], list[str]]:
    """One sheet a cell that replays, from its first seed that still has its checkpoint; else why there is none."""
    found, missing = [], []
    for cell in group.cells:
        replay = cell.runs[0].results.options.get("replay")
        if replay == "paper":
            missing.append(f"{cell.label}: the paper's replay does not keep its images")
        elif replay == "common":
            sheet = next((sheet for run in cell.runs if (sheet := _sheet(cell, run))), None)
            if sheet:
                found.append(sheet)
            else:
                missing.append(f"{cell.label}: no run folder with a readable state/ was given")
    return found, missing


def _sheet(cell: Cell, run: Run) -> Sheet | None:
    for path in sorted(run.state.glob("snapshot-*.safetensors"), reverse=True):
        try:
            with safe_open(path, "np") as file:
                if POOL in file.keys():  # noqa: SIM118 (not a dict)
                    images = file.get_tensor(POOL)
                    break
        except (OSError, SafetensorError):
            continue
    else:
        return None
    chosen = images[np.linspace(0, len(images) - 1, min(len(images), COLUMNS * ROWS)).astype(int)]
    return Sheet(cell, run.results.seed, _encode(chosen.astype(np.float32)), len(images), len(chosen))


def _encode(images: np.ndarray) -> str:
    """Images are normalised pixels; each channel is stretched to what the sheet needs."""
    low, high = np.percentile(images, [1, 99], axis=(0, 2, 3), keepdims=True)
    pixels = (255 * np.clip((images - low) / np.maximum(high - low, 1e-6), 0, 1)).astype(np.uint8)
    height, width = pixels.shape[-2:]
    rows = -(-len(pixels) // COLUMNS)
    sheet = np.zeros((rows * (height + 2), COLUMNS * (width + 2), 4), np.uint8)  # transparent between the images
    for i, image in enumerate(pixels):
        y, x = (height + 2) * (i // COLUMNS), (width + 2) * (i % COLUMNS)
        sheet[y : y + height, x : x + width, :3] = image.transpose(1, 2, 0)
        sheet[y : y + height, x : x + width, 3] = 255
    out = io.BytesIO()
    Image.fromarray(sheet).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
