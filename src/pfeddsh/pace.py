"""The time a run has left: what each kind of its work took so far, times how much of it is to come."""

from pfeddsh.schedule import EVALUATION, Schedule


class Pace:
    """Visits, evaluations and replays cost differently, and nobody knows their ratio before they were seen.

    An evaluation counts per client: of newcomers when a step opens, of everyone when it closes. The local-only
    controls count as visits; `controls` is how many of these are still to come.
    """

    def __init__(self, plan: Schedule) -> None:
        self._plan = plan
        self._seconds = dict.fromkeys(("visit", "opening", "closing", "replay"), 0.0)
        self._units = dict.fromkeys(self._seconds, 0)
        self.controls = 0.0

    def round(self, step: int, round: int, took: float, told: float) -> None:
        """A round that ended `took` seconds after the event before it, and itself measured `told`."""
        training = min(took, told) if round == 0 else took
        self._add("visit", training, self._visits(step))
        if round == 0:
            self._add("opening", took - training, len(self._plan.batch(step)))

    def step(self, step: int, took: float, replay: float) -> None:
        """A step that closed `took` seconds after its last round, of which replay took some."""
        replay = min(replay, took)
        self._add("closing", took - replay, len(self._plan.onboarded(step)))
        if step > 1:
            self._add("replay", replay, 1)

    def left(self, step: int, rounds: int) -> float:
        """Seconds to the end when so many rounds of a step are done; a step that is closed counts as the next one."""
        coming = range(step, len(self._plan.steps) + 1)
        visits = sum(self._plan.rounds(t) * self._visits(t) for t in coming) + self.controls
        visits -= rounds * self._visits(step) if step in coming else 0
        opened = sum(len(self._plan.batch(t)) for t in coming if t > step or rounds == 0)
        closed = sum(len(self._plan.onboarded(t)) for t in coming)
        replays = sum(t > 1 for t in coming)
        one = self._cost("visit")
        closing = self._cost("closing") if self._units["closing"] else max(EVALUATION * one, self._cost("opening"))
        return one * visits + self._cost("opening") * opened + closing * closed + self._cost("replay") * replays

    def _visits(self, step: int) -> int:
        return len(self._plan.cohort(step, 0))

    def _add(self, kind: str, seconds: float, units: int) -> None:
        self._seconds[kind] += seconds
        self._units[kind] += units

    def _cost(self, kind: str) -> float:
        return self._seconds[kind] / self._units[kind] if self._units[kind] else 0.0
