"""What noise is worth: epsilon for a delta, by the accountant of the library `dp-accounting`, never by our own.

Protected is one example of a client, replaced by any other, against whoever sees every single message of that client:
the coordinator. Nothing is gained from sampling, as the coordinator chooses who trains. A clipped upload moves by up to
twice the clip when its data change, so noise of `noise * clip` is a Gaussian mechanism of multiplier `noise / 2`. As
that holds for any change of the data, it holds for the client as a whole too.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pfeddsh.errors import UserError

Event = tuple[str, float]  # which mechanism, and its noise in units of what one example can change
GAUSSIAN, LAPLACE = "gaussian", "laplace"


def upload(noise: float) -> Event:
    """One upload that was clipped and noised."""
    return GAUSSIAN, noise / 2


def histogram(epsilon: float) -> Event:
    """One histogram with Laplace noise for this epsilon: of n images, one replaced moves two shares by 1/n each."""
    return LAPLACE, 1 / epsilon


def installed() -> bool:
    return find_spec("dp_accounting") is not None


def epsilon(events: Mapping[Event, int], delta: float) -> float:
    """What all of these together cost: Renyi differential privacy, composed and turned into (epsilon, delta)."""
    if not installed():
        raise UserError("dp-accounting is not installed: pip install 'pfeddsh[privacy]'")
    import dp_accounting
    from dp_accounting import rdp

    known: dict[str, Any] = {GAUSSIAN: dp_accounting.GaussianDpEvent, LAPLACE: dp_accounting.LaplaceDpEvent}
    accountant = rdp.RdpAccountant()
    for (kind, multiplier), count in events.items():
        if count:
            accountant.compose(known[kind](multiplier), count)
    return float(accountant.get_epsilon(delta))
