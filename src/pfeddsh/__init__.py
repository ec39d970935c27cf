"""Onboarding without forgetting: personalised federated learning in which clients arrive in batches.

    import pfeddsh
    results = pfeddsh.run(pfeddsh.Config(dataset="digits", method="fedper"), "runs/first")
    print(results["pa"], results["ri"])

This module is the public interface: runs (`Config`, `run`, `resume`, `compare`, `report`), data (`load`, `Dataset`),
and what a method of one's own is made of (`Method`, `Message`, `Memory`, `State`, `weighted_mean`). A mistake of the
user raises `UserError`.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfeddsh.config import Config
    from pfeddsh.data.datasets import Dataset, load
    from pfeddsh.errors import UserError
    from pfeddsh.messages import Memory, Message, State
    from pfeddsh.methods.base import Method
    from pfeddsh.methods.fedavg import weighted_mean

__all__ = [
    "Config",
    "Dataset",
    "Memory",
    "Message",
    "Method",
    "State",
    "UserError",
    "__version__",
    "compare",
    "load",
    "report",
    "resume",
    "run",
    "weighted_mean",
]
__version__ = version("pfeddsh")
import_module("pfeddsh.compare")  # now, or loading these later would put the folders in place of the functions below
import_module("pfeddsh.report")
_HOMES = {  # of what is imported when first asked for: torch takes seconds and 200 MB, and a site's `join` needs none
    "Config": "config",
    "Dataset": "data.datasets",
    "Memory": "messages",
    "Message": "messages",
    "Method": "methods.base",
    "State": "messages",
    "UserError": "errors",
    "load": "data.datasets",
    "weighted_mean": "methods.fedavg",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pfeddsh' has no attribute '{name}'")
    found = globals()[name] = getattr(import_module(f"pfeddsh.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def run(config: "Config", out: str | Path) -> dict[str, Any]:
    """Run a configuration into a new folder, with a page to look at; returns the content of its results.json."""
    from pfeddsh.config import Config
    from pfeddsh.errors import UserError
    from pfeddsh.federation.run import run as start
    from pfeddsh.report.build import beside

    if not isinstance(config, Config):
        raise UserError(f"run takes a Config, not a {type(config).__name__}; write pfeddsh.Config(key=value)")
    results = start(config, Path(out))
    beside(Path(out))
    return results


def resume(out: str | Path) -> dict[str, Any]:
    """Continue an interrupted run; the results are the same bits as without the interruption."""
    from pfeddsh.federation.run import resume as again
    from pfeddsh.report.build import beside

    results = again(Path(out))
    beside(Path(out))
    return results


def compare(plan: Mapping[str, Any] | str | Path, out: str | Path, jobs: int = 0) -> dict[str, dict[str, Any]]:
    """Run a plan of `pfeddsh compare`, its file or what would stand there, into a folder; results by the runs' names.

    Runs share every step they have in common. What was interrupted continues when the same plan is given again.
    """
    from pfeddsh.compare.cache import parse_size
    from pfeddsh.compare.cli import LIMIT
    from pfeddsh.compare.comparison import compare as start
    from pfeddsh.compare.plan import make
    from pfeddsh.values import read

    content = dict(plan) if isinstance(plan, Mapping) else read(Path(plan))
    return start(make(content), Path(out), jobs, parse_size(LIMIT))


def report(*places: str | Path, out: str | Path = "report.html") -> Path:
    """Make one page from finished runs (their folders, or folders of them), with its tables in files beside it."""
    from pfeddsh.report.build import build, typed

    found = [Path(place) for place in places]
    build(found, Path(out), typed(found, Path(out)))
    return Path(out)
