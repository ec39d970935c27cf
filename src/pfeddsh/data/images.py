"""One image format for every dataset: uint8, three channels, 32x32. What is larger or smaller is resized by Pillow."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 32
SHAPE = (3, SIDE, SIDE)

Pixels = npt.NDArray[np.uint8]


def square(image: Image.Image) -> Pixels:
    """Grey becomes three equal channels; other sizes are resized (bilinear with antialiasing), the whole image kept."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode}); save it as an 8-bit image")
    rgb = image.convert("RGB")
    if rgb.size != (SIDE, SIDE):
        rgb = rgb.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(rgb, dtype=np.uint8).transpose(2, 0, 1)


def decode(blob: bytes) -> Pixels:
    """The pixels of one encoded image; Pillow's many exceptions for damaged files become a ValueError."""
    try:
        with Image.open(io.BytesIO(blob)) as image:
            return square(image)
    except ValueError:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, DecompressionBombError, ...
        raise ValueError(f"not a readable image ({str(error) or type(error).__name__})") from error


def layout(array: npt.NDArray[Any]) -> Pixels:
    """The array as (N, H, W) or (N, H, W, 3); channels may come first or last, and one channel is grey."""
    if array.dtype != np.uint8:
        raise ValueError(f"images are {array.dtype}, expected uint8 from 0 to 255")
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] != 3) or 0 in array.shape:
        raise ValueError(f"images have shape {array.shape}, expected (N, H, W), (N, H, W, 3) or (N, 3, H, W)")
    return array


def from_array(array: Pixels) -> Pixels:
    """(N, H, W) or (N, H, W, 3) to (N, 3, 32, 32)."""
    out = np.empty((len(array), *SHAPE), dtype=np.uint8)
    for row, pixels in enumerate(array):
        out[row] = square(Image.fromarray(np.ascontiguousarray(pixels)))
    return out
