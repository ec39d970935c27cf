"""Keys of a configuration as a heading says them."""

from collections.abc import Mapping
from typing import Any

WORDS = {
    "alpha": "Dirichlet {}", "rounds_first": "{} rounds for the first batch", "rounds_later": "{} for later ones",
    "sample_fraction": "{} of a batch per round", "local_epochs": "{} local epochs", "lr": "rate {}",
    "batch_size": "batches of {}", "hold_out": "{} held out", "image_size": "images of {} pixels",
    "model": "{}", "evaluate": "{} clients measured", "privacy.clip": "clip {}", "privacy.noise": "noise {}",
}  # fmt: skip


def words(values: Mapping[str, Any]) -> str:
    """What is set, in words; a key without any says its own name.

    >>> words({"rounds_first": 120, "rounds_later": 30, "momentum": 0.5})
    '120 rounds for the first batch, 30 for later ones, momentum 0.5'
    """
    if "rounds_first" not in values:
        values = {key: f"{value} rounds" if key == "rounds_later" else value for key, value in values.items()}
    return ", ".join(
        WORDS[key].format(value) if key in WORDS else f"{spelt(key)} {value}" for key, value in values.items()
    )


def spelt(key: str) -> str:
    return key.replace("_", " ").replace(".", " ")


def together(text: str) -> str:
    """A sign stays with its number where a line ends."""
    return text.replace(" %", "\u00a0%")
