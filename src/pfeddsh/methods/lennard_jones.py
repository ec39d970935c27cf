"""Class centroids at rest: points that repel each other when close and attract each other when far (HR).

The energy is 4 ((sigma/r)^12 - (sigma/r)^6) for each pair. The update printed in the HR paper climbs it; this descends.
"""

import torch
from torch import Tensor

STEPS = 1000
REACH = 0.1  # of sigma


def energy(points: Tensor, sigma: float) -> tuple[float, Tensor]:
    """Energy of all pairs and its gradient."""
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    squared.fill_diagonal_(torch.inf)
    sixth = (sigma**2 / squared) ** 3
    push = 24 * (sixth - 2 * sixth.square()) / squared  # derivative by the distance, divided by it
    return float(2 * (sixth.square() - sixth).sum()), push.sum(1, keepdim=True) * points - push @ points


def descend(points: Tensor, sigma: float) -> tuple[Tensor, list[float]]:
    """Gradient descent that takes no step uphill: the points at rest, and the energy at the start and after each step.

    No point moves farther at once than REACH sigma. Two that begin close together would else be hurled out of reach of
    all others, where nothing attracts them any more.
    """
    p = points.double()
    step = 1e-3 * sigma**2
    value, slope = energy(p, sigma)
    energies = [value]
    for _ in range(STEPS):
        move = slope * (REACH * sigma / slope.norm(dim=1, keepdim=True)).clamp(max=step)
        tried = p - (move - move.mean(0))  # the centre stays
        value, ahead = energy(tried, sigma)
        if value < energies[-1]:
            p, slope, step = tried, ahead, 1.5 * step
            energies.append(value)
        else:
            step /= 2
    return p, energies


def place(points: Tensor, sigma: float) -> Tensor:
    """Centroids at rest, from where an untrained encoder sees the classes."""
    return descend(points, sigma)[0].float()
