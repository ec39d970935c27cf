"""Onboarding without forgetting: personalised federated learning in which clients arrive in batches.

import pfeddsh
results = pfeddsh.run(pfeddsh.Config(dataset="digits", method="fedper"), "runs/first")
print(results["pa"], results["ri"])
"""

from pathlib import Path
from typing import Any

from pfeddsh.config import Config
from pfeddsh.errors import UserError

__all__ = ["Config", "UserError", "resume", "run"]


def run(config: Config, out: str | Path) -> dict[str, Any]:
    """Run a configuration into a new folder; returns the content of its results.json."""
    from pfeddsh.federation.run import run as start

    return start(config, Path(out))


def resume(out: str | Path) -> dict[str, Any]:
    """Continue an interrupted run."""
    from pfeddsh.federation.run import resume as again

    return again(Path(out))
