"""Tracking where people already look: the numbers of every round and step, in TensorBoard or MLflow.

A tracker shows what events.jsonl and results.json say. That is also how it survives an interruption: what the log
kept is told again, and what came after the restored moment is told as it is computed again.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pfeddsh.config import Config
from pfeddsh.configure import complete
from pfeddsh.errors import UserError, unknown
from pfeddsh.results.metrics import completed
from pfeddsh.schedule import Schedule
from pfeddsh.tracking.mlflow import MLflow
from pfeddsh.tracking.tensorboard import TensorBoard

FINAL = ("acc_end_mean", "pa_mean", "ri_last", "ri_cumulative", "worst_drop", "payload_kib", "seconds")


class Tracker(Protocol):
    """A place where numbers go. Made before the run, so that a missing library is told then; opened by its first event.

    `at` counts rounds over all steps. A point told twice must be kept once. `status` is FINISHED, FAILED or KILLED.
    """

    name: str

    def open(self) -> None: ...
    def log(self, points: dict[str, float], at: int) -> None: ...
    def close(self, status: str) -> None: ...


TRACKERS: dict[str, Callable[[Config, Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
TRACES = {"tensorboard": "tensorboard", "mlflow": "mlflow.json"}  # what each leaves in the run directory


def tracking(names: Sequence[str], config: Config, out: Path) -> "Tracking":
    """The trackers asked for, and those that already follow the run in `out`."""
    config = complete(config)
    trackers = []
    for name in dict.fromkeys([*names, *(name for name, trace in TRACES.items() if (out / trace).exists())]):
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        try:
            trackers.append(TRACKERS[name](config, out))
        except UserError as error:
            if name in names:
                raise
            warnings.warn(f"{error}; the run continues without it", stacklevel=2)
    return Tracking(trackers, config.plan(), out)


class Tracking:
    """An observer that passes every number on. A tracker that fails is named in one warning and left out."""

    def __init__(self, trackers: Iterable[Tracker], plan: Schedule, out: Path) -> None:
        self._trackers, self._plan, self._out = list(trackers), plan, out
        self._opened = False

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        if self._opened:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            status = "FINISHED" if kind is None else "KILLED" if interrupted else "FAILED"
            self._each(lambda tracker: tracker.close(status))

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind in ("round", "step") and self._trackers:
            self._open()
            self._log(numbers(facts, kind), facts["step"], facts.get("round"))

    def _open(self) -> None:
        """Start the trackers with what the event log holds: it is cut to the restored moment before a run goes on, and
        hears of an event after us.
        """
        if self._opened:
            return
        self._opened = True
        self._each(lambda tracker: tracker.open())
        log = self._out / "events.jsonl"
        for event in map(json.loads, log.read_text().splitlines() if log.exists() else ()):
            if event["event"] in ("round", "step"):
                self._log(numbers(event, event["event"]), event["step"], event.get("round"))

    def _finish(self) -> None:
        """PA is known only at the end, when every client's local-only control has been trained."""
        path = self._out / "results.json"
        if not self._trackers or not path.exists():
            return
        results = completed(json.loads(path.read_text()))
        last = len(self._plan.steps)
        self._open()
        for step, pa in enumerate(results["pa"], 1):
            self._log(numbers({"pa": pa}, "step"), step)
        self._log(numbers({key: results[key] for key in FINAL}, "final"), last)

    def _log(self, points: dict[str, float], step: int, round: int | None = None) -> None:
        """A round counts from the first of the run; without one, the point belongs to the end of its step."""
        done = self._plan.rounds(step) if round is None else round + 1
        at = sum(self._plan.rounds(earlier) for earlier in range(1, step)) + done
        self._each(lambda tracker: tracker.log(points, at))

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                action(tracker)
            except Exception as error:  # whatever a foreign library does, the run is worth more
                self._trackers.remove(tracker)
                why = str(error) or type(error).__name__
                warnings.warn(f"{tracker.name} stopped tracking, the run goes on: {why}", stacklevel=2)


def numbers(facts: dict[str, Any], prefix: str) -> dict[str, float]:
    """The finite numbers among the facts, by path.

    >>> numbers({"step": 2, "loss": 0.5, "ri": None, "capacity": {"conv1": {"new": 3}}}, "step")
    {'step/loss': 0.5, 'step/capacity/conv1/new': 3.0}
    """
    found: dict[str, float] = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}/{key}")
        elif isinstance(value, int | float) and math.isfinite(value) and key not in ("step", "round"):
            found[f"{prefix}/{key}"] = float(value)
    return found
