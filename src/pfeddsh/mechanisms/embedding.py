"""The client's card and the embedding the server makes of it.

With a hypernetwork, a client describes its data once, on joining: 32 image features of a fixed random CNN and its label
histogram. The server standardises cards by those of the first batch and projects them to the 32 numbers that the
hypernetwork reads and later trains. Image features are nearly the same for everyone under label skew, so the histogram
weighs more; it is also the one part of a card that is about labels, and can be withheld, rounded or noised.

A card also has a signature, pure noise, which makes up 30 % of the embedding's variance. Data alone puts all clients
into a space of some ten dimensions, where newcomers have nearly no key of their own: on CIFAR-10 (Dirichlet 0.1, 80+20,
seeds 0 to 2, before any training) 3 % of a new key's squared length lies outside the span of the earlier ones, with the
signature 16 to 20 %, and equal data still mean similar keys.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.mechanisms.hypernet import EMBEDDING
from pfeddsh.mechanisms.privacy import Uniform, laplace
from pfeddsh.rng import torch_stream

FEATURES = 32
CHUNK = 32  # images in one forward pass: their activations fit in the cache
WEIGHTS = {"histogram": 0.8, "image": 0.2}  # of each part in the variance of the projected data
SIGNATURE = 0.3  # share of the signature in the variance of the embedding
SHORTEST, LONGEST = 0.5, 2.0  # of an embedding, in units of sqrt(32): no client is silent, no outlier loud


@dataclass(frozen=True)
class CardOptions:
    """What a client tells. `image` and `random` are controls: an embedding without labels, and without any data.

    `histogram=False` withholds the histogram, `rounding` is the step it is rounded to and `noise` the scale of Laplace
    noise on each entry: 2/(n epsilon) makes the histogram of n images epsilon-private, as replacing one image changes
    two entries by 1/n. Image features are sent as they are, so this is no guarantee for the card as a whole.
    """

    mode: Literal["both", "image", "random"] = "both"
    histogram: bool = True
    rounding: float = 0.0
    noise: float = 0.0


def describe(
    images: Tensor, labels: Tensor, classes: int, options: CardOptions, seed: int, generator: torch.Generator,
    uniform: Uniform,
) -> dict[str, Tensor]:  # fmt: skip
    """The card of one client. `seed` fixes the CNN all clients share, `generator` draws the signature.

    `uniform` is where noise that hides something comes from.
    """
    card = {"signature": torch.randn(EMBEDDING, generator=generator)}
    if options.histogram:
        card["histogram"] = label_histogram(labels, classes, options, uniform)
    if options.mode != "random":
        card["image"] = image_features(images, seed)
    return card


def label_histogram(labels: Tensor, classes: int, options: CardOptions, uniform: Uniform) -> Tensor:
    """Class proportions as the client is willing to tell them; uniform if nothing of them is left."""
    shares = torch.bincount(labels, minlength=classes).float() / max(1, len(labels))
    if options.noise:
        shares = shares + options.noise * laplace(uniform, classes).float().to(shares)
    return rounded(shares, options.rounding)


def rounded(shares: Tensor, step: float) -> Tensor:
    """Shares to the nearest multiple of a step, if there is one; they are positive and sum to one again."""
    if step:
        shares = torch.round(shares / step) * step
    shares = shares.clamp_min(0)
    return shares / shares.sum() if shares.sum() > 0 else torch.full_like(shares, 1 / len(shares))


@torch.no_grad()
def image_features(images: Tensor, seed: int) -> Tensor:
    """Mean features of a fixed CNN: 32 random 3x3 filters, normalisation, ReLU, global average pooling.

    Each image is normalised by itself. Normalising over the client's images would remove what tells clients apart.
    """
    filters = torch.randn(FEATURES, images.shape[1], 3, 3, generator=torch_stream(seed, "embedding")).to(images)
    total = images.new_zeros(FEATURES, dtype=torch.float64)
    for start in range(0, len(images), CHUNK):
        seen = F.conv2d(images[start : start + CHUNK], filters, padding=1)
        total += F.relu(F.layer_norm(seen, seen.shape[1:])).mean((2, 3)).double().sum(0)
    return (total / max(1, len(images))).float()


def fit(cards: list[dict[str, Tensor]], options: CardOptions, seed: int) -> dict[str, Tensor]:
    """How to turn cards into embeddings, from the cards of the first batch: mean, scale and a random projection."""
    names = _parts(options)
    if not names:
        return {}
    whitening = {}
    for name in names:
        rows = torch.stack([card[name] for card in cards])
        share = WEIGHTS[name] / sum(WEIGHTS[other] for other in names)
        mean, scale = _moments(rows)
        whitening[f"{name}.mean"] = mean
        whitening[f"{name}.scale"] = scale * math.sqrt(rows.shape[1] / (EMBEDDING * share))
    width = sum(cards[0][name].numel() for name in names)
    gaussian = torch.randn(width, EMBEDDING, generator=torch_stream(seed, "projection"), dtype=torch.float64)
    directions = torch.linalg.qr(gaussian)[0].float() * math.sqrt(width / EMBEDDING)
    whitening["projection"] = directions.contiguous()  # QR's own layout would round differently after a resume
    return whitening


def embed(whitening: dict[str, Tensor], card: dict[str, Tensor]) -> Tensor:
    """The initial embedding e (32) of a client, of about the length of a N(0, I) vector."""
    if not whitening:
        return card["signature"].clone()
    parts = [
        (card[name] - whitening[f"{name}.mean"]) / whitening[f"{name}.scale"]
        for name in WEIGHTS
        if f"{name}.mean" in whitening
    ]
    data = torch.cat(parts) @ whitening["projection"]
    e = math.sqrt(1 - SIGNATURE) * data + math.sqrt(SIGNATURE) * card["signature"]
    length = float(e.norm()) / math.sqrt(EMBEDDING)
    return e * (min(max(length, SHORTEST), LONGEST) / length)


def _parts(options: CardOptions) -> list[str]:
    """The parts of a card that make the embedding; a histogram sent beside a control serves replay only."""
    wanted = {"both": ["histogram", "image"], "image": ["image"], "random": []}[options.mode]
    return [name for name in wanted if name != "histogram" or options.histogram]


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale of each column, steadied by a flat pseudo-client and by the average column.

    With one client or a constant column the plain statistics would be degenerate; with many this changes little.
    """
    steadied = torch.cat([rows, rows.mean().expand(1, rows.shape[1])])
    variance = steadied.var(0, unbiased=False)
    return steadied.mean(0), (0.5 * (variance + variance.mean())).sqrt().clamp_min(1e-6)
