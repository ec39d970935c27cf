"""Find the runs in what the user names; each results.json is checked against its contract.

Whatever cannot be used is named with the reason and left out; the rest of the report is still made.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pfeddsh.config import APART, Config
from pfeddsh.errors import UserError
from pfeddsh.report.contract import Results
from pfeddsh.results.metrics import sampled_adaptation, summary
from pfeddsh.results.visits import repeated


@dataclass(frozen=True, eq=False)
class Run:
    """One finished run and where it lies."""

    path: Path
    results: Results
    protocol: dict[str, Any] | None = field(repr=False)

    @property
    def state(self) -> Path:
        """Where its checkpoints are, if they were kept."""
        return self.path.parent / "state"


def gather(places: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All readable runs below some places, and what was wrong with the others."""
    runs: dict[Path, Run] = {}
    problems: list[str] = []
    for place in places:
        found = 0
        for path in _candidates(place, problems):
            found += 1
            if path.resolve() in runs:
                continue
            if path.is_dir():
                problems.append(f"{path} is not finished and was left out; `pfeddsh resume {path}` finishes it")
                continue
            try:
                runs[path.resolve()] = _read(path)
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path} was left out: {_why(error)}")
        if not found:
            problems.append(f"{place} holds no runs" if place.exists() else f"{place} does not exist")
    if not runs:
        raise UserError("no readable run among what was given: " + "; ".join(problems))
    return list(runs.values()), problems


def _candidates(place: Path, problems: list[str]) -> Iterator[Path]:
    """results.json files, and folders of runs without one. A folder without runs may hold bare *.json results."""
    if place.is_file():
        yield place
        return
    found = False
    walk = os.walk(place, onerror=lambda e: problems.append(f"{e.filename} cannot be read: {e.strerror}"))
    for name, folders, files in walk:
        folders.sort()
        if "results.json" in files or "config.toml" in files:
            folders.clear()
            found = True
            yield Path(name) / "results.json" if "results.json" in files else Path(name)
        else:
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
    if not found:
        yield from sorted(path for path in place.glob("*.json") if path.is_file())


def _read(path: Path) -> Run:
    results = Results.model_validate_json(path.read_bytes())
    protocol = results.protocol or _beside(path)
    return Run(path, _completed(results, protocol), protocol)


def _completed(results: Results, protocol: dict[str, Any] | None) -> Results:
    """With what an older version did not write, where it can be derived; a model copied so is not checked again."""
    derived = summary(results.acc, results.batch, results.local)
    if results.evaluated is not None:  # of a sample: what the run estimated from it stands
        del derived["acc_end_mean"]
    visits = results.visits or repeated(results.schedule, results.seed, results.batch, protocol)
    if visits:
        sampled = sampled_adaptation(results.acc, results.batch, results.local, visits)
        derived |= {"visits": visits, "pa_sampled": sampled}
    return results.model_copy(update=derived)


def _beside(path: Path) -> dict[str, Any] | None:
    """The protocol in the config.toml beside a results.json that does not tell it itself."""
    try:
        config = tomllib.loads((path.parent / "config.toml").read_text()) if path.name == "results.json" else {}
    except (OSError, ValueError):
        return None
    known = Config.model_fields.keys() - APART
    return {name: value for name, value in config.items() if name in known} or None


def _why(error: Exception) -> str:
    """One line; of a foreign file only the first few of its many mistakes."""
    if isinstance(error, ValidationError):
        wrong = error.errors()
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in wrong[:3]]
        lines = [line.removeprefix("Value error, ") for line in lines]
        return "not a results.json of pfeddsh: " + "; ".join(lines) + (" ..." if len(wrong) > 3 else "")
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


def fact(value: Any) -> str:
    """A setting as it would be written after `--set`."""
    return value if isinstance(value, str) else json.dumps(value)
