"""Where tensors of local training lie. Randomness is drawn on the CPU, so that a seed means the same everywhere."""

import torch

from pfeddsh.errors import UserError


def find(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU; `cpu`, `cuda` and `cuda:n` are what they say."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device = {name}: torch sees no GPU here; use device = cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device = {name}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    return device
