"""Pictures as arrays: upright, 8 bits, grey or colour, and fitted to the size that is wanted, all by Pillow."""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]
Shape = tuple[int, int, int]  # channels, height, width
Resize = Literal["pad", "crop"]

MOST_PIXELS = 64_000_000  # of one picture: a small file can claim to be a huge one
LARGEST = 256  # longest side of photographs for which no size is wanted
GREY = ("1", "L", "LA", "La", "I", "F")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # of EXIF


@dataclass(frozen=True)
class Fit:
    """The shape that all images get. Proportions are kept: black bars at two sides (pad), or two sides cut (crop)."""

    shape: Shape
    resize: Resize = "pad"

    def __call__(self, image: Image.Image) -> Pixels:
        channels, height, width = self.shape
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            resized = ImageOps.pad if self.resize == "pad" else ImageOps.fit
            image = resized(image, (width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode(blob: bytes, fit: Fit) -> tuple[Pixels, Shape]:
    """The pixels of one encoded image, fitted, and the shape it came in; what is wrong with it is a ValueError."""
    return _opened(blob, lambda image: _fitted(plain(image), fit))


def probe(blob: bytes) -> Shape:
    """The shape of one encoded image, from its header where that is enough."""
    return _opened(blob, _shape)


def _fitted(image: Image.Image, fit: Fit) -> tuple[Pixels, Shape]:
    return fit(image), (len(image.getbands()), image.height, image.width)


def _shape(image: Image.Image) -> Shape:
    if image.format == "TIFF":  # Pillow turns these by itself as it reads them
        image.load()
    width, height = image.size
    with suppress(Exception):  # a damaged EXIF block: the image is taken as it lies
        if image.getexif().get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
    return (1 if image.mode.partition(";")[0] in GREY else 3), height, width


def _opened(blob: bytes, use: Callable[[Image.Image], T]) -> T:
    try:
        with Image.open(io.BytesIO(blob)) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width}x{image.height} pixels"
                raise ValueError(f"{size} are more than {MOST_PIXELS // 10**6} million; shrink the image")
            return use(image)
    except ValueError:
        raise
    except UnidentifiedImageError as error:
        raise ValueError("not a readable image (of no known format)") from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, DecompressionBombError, ...
        raise ValueError(f"not a readable image ({str(error) or type(error).__name__})") from error


def plain(image: Image.Image) -> Image.Image:
    """Upright as its EXIF says, 8 bits a channel, on white where it is transparent; grey (L) or colour (RGB)."""
    image.load()
    with suppress(Exception):  # a damaged EXIF block: the image is taken as it lies
        ImageOps.exif_transpose(image, in_place=True)
    kind = image.mode.partition(";")[0]
    if kind in ("I", "F"):
        return _eight_bits(image)
    mode = "L" if kind in GREY else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Sixteen bits (0 to 65535) or fractions (0 to 1), scaled to 0 to 255; Pillow would clip them."""
    values = np.asarray(image)
    most = 1 if image.mode == "F" else 65535
    if not (values.min() >= 0 and values.max() <= most):
        found = f"values from {values.min():g} to {values.max():g} (mode {image.mode})"
        raise ValueError(f"{found}, expected 0 to {most}; save it with 8 or 16 bits per channel")
    return Image.fromarray(np.rint(values * (255 / most)).astype(np.uint8))


def common(sizes: Counter[Shape]) -> Shape:
    """One shape for images of several: the median height and width, colour if any is; never beyond LARGEST."""
    height, width = (median_low(sorted(shape[axis] for shape in sizes.elements())) for axis in (1, 2))
    scale = min(1.0, LARGEST / max(height, width))
    return max(shape[0] for shape in sizes), max(1, round(scale * height)), max(1, round(scale * width))


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


def shape_of(array: Pixels) -> Shape:
    """Of one image in what `layout` gave."""
    return (1 if array.ndim == 3 else 3), array.shape[1], array.shape[2]


def from_array(array: Pixels, fit: Fit) -> Iterator[Pixels]:
    """The images of what `layout` gave, fitted one by one."""
    for pixels in array:
        if shape_of(array) == fit.shape:
            yield pixels[None] if array.ndim == 3 else pixels.transpose(2, 0, 1)
        else:
            yield fit(Image.fromarray(np.ascontiguousarray(pixels)))
