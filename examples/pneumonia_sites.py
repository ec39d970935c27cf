"""Divide PneumoniaMNIST among ten made-up sites: `python examples/pneumonia_sites.py pneumoniamnist.npz sites.npz`.

The published file names no hospitals. These sites are invented, to show how data with sites of its own is used: they
differ in size, in the share of pneumonia, and in brightness and contrast, as if each had a scanner of its own.
"""

import argparse
from pathlib import Path

import numpy as np

# name, training images, share with pneumonia, contrast, brightness (added to pixels of 0 to 255)
SITES = (
    ("site-01", 40, 0.70, 1.00, 0),
    ("site-02", 24, 0.50, 0.80, 20),
    ("site-03", 30, 0.80, 1.20, -30),
    ("site-04", 20, 0.60, 0.90, -10),
    ("site-05", 40, 0.75, 1.10, 10),
    ("site-06", 20, 0.50, 0.70, 30),
    ("site-07", 50, 0.80, 1.00, -20),
    ("site-08", 20, 0.60, 1.20, 0),
    ("site-09", 60, 0.70, 0.80, 0),
    ("site-10", 30, 0.65, 1.10, -20),
)
TEST = 80  # images of every site, with the same share of pneumonia


def divide(source: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Published training images are trained on, validation and test images test; no image is used twice."""
    stream = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {
        f"{name}_{part}": [] for name in ("x", "y", "client") for part in ("train", "test")
    }
    for part, splits in (("train", ("train",)), ("test", ("val", "test"))):
        images = np.concatenate([source[f"{split}_images"] for split in splits])
        labels = np.concatenate([source[f"{split}_labels"] for split in splits]).ravel()
        left = [list(stream.permutation(np.flatnonzero(labels == label))) for label in (0, 1)]
        for name, size, share, contrast, brightness in SITES:
            size = size if part == "train" else TEST
            sick = round(size * share)
            chosen = np.array([left[0].pop() for _ in range(size - sick)] + [left[1].pop() for _ in range(sick)])
            pixels = (images[chosen].astype(np.float32) - 128) * contrast + 128 + brightness
            parts[f"x_{part}"].append(pixels.clip(0, 255).astype(np.uint8))
            parts[f"y_{part}"].append(labels[chosen])
            parts[f"client_{part}"].append(np.full(size, name))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="pneumoniamnist.npz, as MedMNIST publishes it")
    parser.add_argument("out", type=Path, help="the .npz to write")
    parser.add_argument("--seed", type=int, default=0, help="decides which image goes to which site")
    given = parser.parse_args()
    with np.load(given.source) as source:
        arrays = divide(dict(source), given.seed)
    np.savez_compressed(given.out, **arrays)
    counts = f"{len(arrays['x_train'])} images to train on and {len(arrays['x_test'])} to test with"
    print(f"{given.out}: {counts}, at {len(SITES)} made-up sites")


if __name__ == "__main__":
    main()
