"""The hypernetwork: a client's embedding e becomes a key h, and the key the client's weights theta.

h = normalise(relu(W1 e + b1)) and theta = b2 + W2 h. With ||h|| = 1 the server's step has a meaning: W2 -= rate D h^T
moves the client by rate D, however large its embedding. W2 is large (127 MB for 62,006 weights), so it is only ever
multiplied or changed in place by a rank-m product; its gradient is never formed and autograd never sees it. Passing
over it is what a round costs: one pass generates the cohort's weights, one takes in the updates.
"""

import math

import torch
from torch import Tensor

from pfeddsh.errors import UserError

EMBEDDING = 32
HIDDEN = 512
PANEL = 4  # keys multiplied at once
BLOCK = 512  # rows of W2 that stay in the cache while an update reads and then changes them
LARGEST = 4_000_000_000  # bytes of W2
SILENT = 1e-12  # below this length no hidden unit fires and the key is zero


def affordable(weights: int, hidden: int) -> None:
    """Refuse what would not fit, before anything is written."""
    if (size := 4 * weights * hidden) > LARGEST:
        raise UserError(
            f"a hypernetwork that makes {weights:,} weights takes {size / 1e9:.1f} GB: let it make a part of them "
            "(pfeddsh-hyper: options.personal), or use fewer hidden units, a smaller model or another method"
        )


def create(
    theta0: Tensor,
    generator: torch.Generator,
    hidden: int = HIDDEN,
    embedding: int = EMBEDDING,
    threshold: float = 0.25,
) -> dict[str, Tensor]:
    """A hypernetwork that gives every client theta0 until it is trained.

    Each hidden unit fires above `threshold` standard deviations of a N(0, I) embedding. The threshold makes keys
    sparser and less alike than none would: mean cosine 0.26 against 0.32, and 29 % of a new key lies outside the span
    of 80 others against 21 %.
    """
    return {
        "W1": torch.randn(hidden, embedding, generator=generator) / math.sqrt(embedding),
        "b1": torch.full((hidden,), -threshold),
        "W2": torch.zeros(theta0.numel(), hidden),
        "b2": theta0.clone(),
    }


def key(params: dict[str, Tensor], embedding: Tensor) -> Tensor:
    """The unit vector h of one embedding; zero if no hidden unit fires (the client is then served b2)."""
    fired = torch.relu(torch.mv(params["W1"], embedding) + params["b1"])
    length = fired.norm()
    return fired / length if length > SILENT else torch.zeros_like(fired)


def generate(params: dict[str, Tensor], keys: Tensor) -> Tensor:
    """The weights (m x P) of m keys (m x hidden).

    Keys are multiplied in panels of fixed width because a matrix product rounds differently for another number of
    columns: this way a client's weights are the same bits whoever it is served with.
    """
    count, hidden = keys.shape
    theta = params["b2"].new_empty(count, params["b2"].numel())
    for start in range(0, count, PANEL):
        panel = keys.new_zeros(PANEL, hidden)
        rows = keys[start : start + PANEL]
        panel[: len(rows)] = rows
        theta[start : start + PANEL] = torch.mm(params["W2"], panel.t()).t()[: len(rows)]
    return theta.add_(params["b2"])


def update(
    params: dict[str, Tensor],
    deltas: Tensor,
    keys: Tensor,
    rate: float,
    bias_rate: float,
    gate: Tensor | None = None,
) -> Tensor:
    """One plain SGD step in place: W2 -= rate * sum_c D_c h_c^T and b2 -= bias_rate * mean_c D_c.

    A key is nearly a client's own, so each client writes its whole update there; the bias is everyone's and takes the
    mean. `deltas` are served minus trained weights (m x P), `keys` what they are written to (m x hidden). Rows of W2
    and b2 whose `gate` (one boolean per parameter) is false keep their bits: their deltas become exact zeros, even if
    a client has sent something that is not a number.

    Returns what `pull` of the same deltas would have before the step: block by block, W2 is read once for both.
    """
    written = deltas if gate is None else torch.where(gate, deltas, 0.0)
    at_keys = deltas.new_zeros(keys.shape)
    blocks = zip(params["W2"].split(BLOCK), deltas.split(BLOCK, 1), written.split(BLOCK, 1), strict=True)
    for weights, delta, write in blocks:
        at_keys.addmm_(delta, weights)
        weights.addmm_(write.t(), keys, alpha=-rate)
    if bias_rate:
        params["b2"].add_(written.mean(0), alpha=-bias_rate)
    return at_keys


def pull(params: dict[str, Tensor], deltas: Tensor) -> Tensor:
    """The gradient W2^T D at each client's key (m x hidden): where to move it so that theta moves along D."""
    return deltas @ params["W2"]


def trunk_gradient(params: dict[str, Tensor], embeddings: Tensor, at_keys: Tensor) -> dict[str, Tensor]:
    """The vector-Jacobian product of theta with D, in closed form, for W1 and b1 (mean over clients) and each e.

    From the gradient at the keys, g = W2^T D, back to e: (g - h <h, g>) / length through the normalisation, then the
    ReLU.
    """
    before = embeddings @ params["W1"].t() + params["b1"]
    fired = torch.relu(before)
    length = fired.norm(dim=1, keepdim=True)
    h = fired / length.clamp_min(SILENT)
    tangent = at_keys - h * (h * at_keys).sum(1, keepdim=True)
    at_unit = torch.where((before > 0) & (length > SILENT), tangent / length.clamp_min(SILENT), 0.0)
    return {
        "W1": at_unit.t() @ embeddings / len(embeddings),
        "b1": at_unit.mean(0),
        "embeddings": at_unit @ params["W1"],
    }
