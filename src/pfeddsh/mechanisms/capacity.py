"""How much of the network a step takes: channels used, new and reused, and how new its updates are.

The paper's theorem bounds new channels by the novelty dimension of a step but measures neither; these functions do.
"""

import torch
from torch import Tensor

from pfeddsh.mechanisms.masks import channels_of, gradient_gate
from pfeddsh.models.base import Model
from pfeddsh.models.channels import Channels


def usage(channels: Channels, own: Tensor, used: Tensor) -> dict[str, dict[str, int]]:
    """For each layer: channels `active` in the step's own mask, how many of them `new` or `reused`, and the `total`
    allocated once the step is done, out of `width`.
    """
    return {
        name: {
            "active": int(own[layer].sum()),
            "new": int((own & ~used)[layer].sum()),
            "reused": int((own & used)[layer].sum()),
            "total": int((own | used)[layer].sum()),
            "width": layer.stop - layer.start,
        }
        for name, layer in channels.layers.items()
    }


def novelty(updates: Tensor, used: Tensor, model: Model, tolerance: float = 0.01) -> dict[str, int]:
    """The novelty dimension r_t of each layer, measured on the updates (m x P) of a step's clients.

    S_{t-1} is taken as the proof takes it: what weights between used channels can reach. Updates lie in G_t; we count
    the directions of their part outside S_{t-1} (the paper's intersection of G_t with its orthogonal complement is
    never larger) whose singular value exceeds `tolerance` times the largest of the layer's whole updates.
    """
    outside = gradient_gate(model, used, updates.new_ones(channels_of(model).count))
    result = {}
    for name in dict.fromkeys(name.rpartition(".")[0] for name in model.slices):
        layer = slice(model.slices[f"{name}.weight"].start, model.slices[f"{name}.bias"].stop)
        whole = updates[:, layer].double()
        largest = torch.linalg.matrix_norm(whole, 2)
        sizes = torch.linalg.svdvals(whole * outside[layer])
        result[name] = int((sizes > tolerance * largest).sum())
    return result
