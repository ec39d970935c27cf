"""The schedule of a live federation: steps open as batches arrive, everything else is drawn as in a simulated run."""

from dataclasses import dataclass, field

from pfeddsh.config import Config
from pfeddsh.schedule import Schedule


@dataclass(frozen=True)
class LiveSchedule(Schedule):
    """Clients are numbered in the order they were taken in; `taken` grows by one batch per step."""

    taken: list[tuple[int, ...]] = field(default_factory=list)

    @staticmethod
    def create(config: Config, taken: list[tuple[int, ...]]) -> "LiveSchedule":
        c = config
        return LiveSchedule(
            (), c.seed, c.rounds_first, c.rounds_later, c.sample_fraction, c.lr, c.sampling, taken=taken
        )

    @property
    def clients(self) -> int:
        return sum(map(len, self.taken))

    @property
    def steps(self) -> range:
        return range(1, len(self.taken) + 1)

    @property
    def batches(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.taken)

    def visits(self, step: int, client: int) -> list[int]:
        return [r for r in range(self.rounds(step)) if client in self.cohort(step, r)]
