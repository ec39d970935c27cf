"""ODPFL-HN (Amosy et al. 2024): PeFLL whose embedding network sees no labels, so a late client needs none to join.

The authors have published no code; PeFLL without labels is what their abstract describes. Images alone hardly tell
clients with skewed labels apart: standardising each number of the descriptor by the clients of step 1 does, and an
embedding network that keeps moving undoes it.
"""

from pydantic import Field

from pfeddsh.methods import pefll


class Settings(pefll.Settings):
    """Step 1 has 68.9 % at 1e-5, 76.5 % at 1e-6 and 78.8 % at 0, fixed random features (docs/baselines.md)."""

    rate: float = Field(0.0, ge=0, description="of the embedding network")


class ODPFLHN(pefll.PeFLL):
    """State and messages are PeFLL's; the embedding network reads images alone."""

    Settings = Settings
    labelled = False
