"""Weights from a safetensors file as a start: `--init weights.safetensors`."""

import warnings
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pfeddsh.errors import UserError
from pfeddsh.models.base import Model

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # statistics are the client's own, not the file's


def begin(model: Model, theta: Tensor, path: Path) -> Tensor:
    """`theta` with the file's weights in place of its own. Only the head may be missing, or have another shape."""
    if path.is_dir():
        raise UserError(f"init = {path} is a folder; give a safetensors file")
    try:
        found = load_file(path)
    except FileNotFoundError:
        raise UserError(f"init = {path}: there is no such file") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"init = {path}: not a readable safetensors file: {error}") from error
    given = {name: tensor for name, tensor in found.items() if name.rpartition(".")[2] not in BUFFERS}
    head = {name for name, place in model.slices.items() if place.start >= model.head.start}
    if surplus := sorted(given.keys() - model.shapes.keys()):
        raise UserError(f"init = {path}: the model has no {_few(surplus)}; names must be those of its parameters")
    if missing := sorted(model.shapes.keys() - given.keys() - head):
        raise UserError(f"init = {path}: {_few(missing)} missing; only the last layer may be")
    theta, anew = theta.clone(), sorted(head - given.keys())
    for name, tensor in given.items():
        if tuple(tensor.shape) == model.shapes[name] and bool(tensor.isfinite().all()):
            theta[model.slices[name]] = tensor.to(theta).flatten()
        elif name in head and tensor.isfinite().all():
            anew.append(name)
        else:
            why = f"has shape {tuple(tensor.shape)}, expected {model.shapes[name]}, and finite numbers"
            raise UserError(f"init = {path}: {name} {why}")
    if anew:
        warnings.warn(f"init = {path}: the last layer begins anew ({_few(sorted(anew))})", stacklevel=2)
    return theta


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
