"""Checkpoints that are shared: a run begins with the furthest state others have left, and leaves its own to them."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.keys import Stop
from pfeddsh.messages import Parts, Record
from pfeddsh.storage.checkpoint import Checkpoints, Moment
from pfeddsh.storage.files import replacing


class SharedCheckpoints(Checkpoints):
    """The `state/` folder of a run in a comparison; `times.json` beside it has the seconds from stop to stop."""

    def __init__(self, out: Path, name: str, stops: Sequence[Stop], keep: set[str], cache: StepCache) -> None:
        super().__init__(out / "state", whole=True)  # one file is linked, and has it all
        self.out, self.name, self.stops, self.keep, self.cache = out, name, stops, keep, cache
        self.times = read_times(out)
        self._clock = time.monotonic()
        self._part = 0  # the stop we are on the way to

    def latest(self) -> tuple[Moment, Parts] | None:
        """The furthest of the run's own snapshots and the states in the cache."""
        own = max(self._files("snapshot"), default=(1, 0))
        for number, stop in reversed(list(enumerate(self.stops))):
            if stop.moment <= own:
                break
            if about := self.cache.take(stop.key, self._path("snapshot", stop.moment), self.out / "events.jsonl"):
                self.times = {"seconds": about["seconds"], "adopted": number + 1}
                break
        found = super().latest()
        self._part = sum(stop.moment <= found[0] for stop in self.stops) if found else 0
        self._tick()
        return found

    def due(self, moment: Moment) -> bool:
        return any(stop.moment == moment for stop in self.stops) or super().due(moment)

    def round(self, moment: Moment, parts: Parts) -> None:
        super().round(moment, parts)
        self._tick()

    def snapshot(self, moment: Moment, parts: Parts) -> None:
        """Write, and share. Local-only accuracies stay out: of clients yet to come they are the schedule's own."""
        facts = parts["ledger"].facts
        blank = Record(facts={**facts, "local": [None] * len(facts["local"])})
        super().snapshot(moment, {**parts, "ledger": blank})
        self._tick()
        for number, stop in enumerate(self.stops):
            if stop.moment == moment:
                path = self._path("snapshot", moment)
                label = f"{self.name}, step {stop.step}" + ("" if moment[1] == 0 else " before it closed")
                self.cache.note(stop, label, self.times["seconds"][: number + 1], path.stat().st_size)
                if stop.key in self.keep:
                    self.cache.put(stop, path, self.out / "events.jsonl")
                self._part = number + 1

    def _tick(self) -> None:
        """Book the time since the last call on the part of the run we are in."""
        now = time.monotonic()
        seconds = self.times["seconds"]
        seconds += [0.0] * (self._part + 1 - len(seconds))
        if self._part < len(self.stops):
            seconds[self._part] += now - self._clock
        self._clock = now
        with replacing(self.out / "times.json", durable=False) as temporary:
            temporary.write_text(json.dumps(self.times))


def read_times(out: Path) -> dict[str, Any]:
    """Seconds between a run's stops, and how many of them it took over from others."""
    try:
        times = json.loads((out / "times.json").read_text())
        return {"seconds": [float(s) for s in times["seconds"]], "adopted": int(times["adopted"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"seconds": [], "adopted": 0}
