"""`policy.toml`: what may leave a site. `release` enforces it, whatever the coordinator asks for.

What the policy does not name counts as a description of the data.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pfeddsh.errors import UserError
from pfeddsh.mechanisms import accounting
from pfeddsh.mechanisms.accounting import Event
from pfeddsh.mechanisms.clip import Protection
from pfeddsh.storage.files import write_text
from pfeddsh.values import checked, read

FILE = "policy.toml"
UNFIT = "policy.unfit"  # why this site could not be taken in, if that is so
FREE = frozenset({"signature"})  # of a card: drawn from the seed, it says nothing of the data

TEMPLATE = """\
# What may leave this site. The site enforces it, whatever the coordinator requests. `pfeddsh join` reads it when it
# starts. audit.jsonl in this folder lists every message sent, and `pfeddsh status` here shows the budget spent.
# Images, labels, memory and the served model never leave. docs/privacy.md explains each line, and what it costs.

# The label histogram. pFedDSH does not ask for it; pfeddsh-hyper does, once, when this site joins.
#   "withhold"  it stays here
#   "rounded"   to multiples of `rounding`: fewer details, no guarantee
#   "noised"    Laplace noise, which spends `histogram_epsilon` of the budget
#   "exact"
histogram = "withhold"
rounding = 0.05
histogram_epsilon = 1.0

# May descriptions of the data leave: normalisation statistics, image features, class means? pFedDSH and FedAvg with
# own statistics need none. If a method requires them, this site waits and says so.
statistics = false

# May measurements leave: accuracy on held-out images, the training loss, whether an offer was better, how far a new
# version should follow a step? The operator uses them to monitor the federation. If not, every offer is answered with
# no, whether or not this site accepts it.
measures = true

# Uploads: the change is clipped to the L2 norm `clip` (0: not at all). Then Gaussian noise of standard deviation
# noise * clip, drawn from the operating system, is added to every weight. docs/privacy.md says what that costs.
clip = 0.0
noise = 0.0

# How often this site trains per day (UTC); 0: no limit.
rounds_a_day = 0

# The budget: no example of this site may cost more than (epsilon, delta) over all that ever leaves. When it is spent
# the site stops training, but is still served. 0: no budget. Requires noise, and pip install 'pfeddsh[privacy]'.
epsilon = 0.0
delta = 1e-5
"""


class PolicyRefusal(UserError):
    """The site's own policy says no; why is no secret."""


class NoTraining(PolicyRefusal):
    """The site does not train for so many seconds, or, with none, no more; it is served all the same."""

    def __init__(self, reason: str, seconds: float | None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Unfit(PolicyRefusal):
    """The method cannot do without what the policy withholds."""


def unfit(home: Path) -> str | None:
    """Why this site is not taken in, if it is for its policy."""
    try:
        return (home / UNFIT).read_text().strip()
    except OSError:
        return None


class Policy(BaseModel):
    """A site's rules; the defaults are those of the template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    histogram: Literal["withhold", "rounded", "noised", "exact"] = "withhold"
    rounding: float = Field(default=0.05, gt=0, le=1)
    histogram_epsilon: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    statistics: bool = False
    measures: bool = True
    clip: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    rounds_a_day: int = Field(default=0, ge=0)
    epsilon: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> "Policy":
        Protection(clip=self.clip, noise=self.noise)
        if self.epsilon:
            wrong = [] if self.noise else ["noise = 0"]
            wrong += [f"histogram = {self.histogram}"] if self.histogram in ("rounded", "exact") else []
            wrong += [f"{name} = true" for name in ("statistics", "measures") if getattr(self, name)]
            if wrong:
                raise ValueError(f"a budget cannot be kept with {', '.join(wrong)}: that leaves without noise")
            if not accounting.installed():
                raise ValueError("a budget needs an accountant: pip install 'pfeddsh[privacy]'")
        return self

    @property
    def protection(self) -> Protection:
        return Protection(clip=self.clip, noise=self.noise)

    def cost(self, job: str, asked: Iterable[str] = ()) -> Event | None:
        """What the reply to this job spends; `asked` is what a card is to tell."""
        if job == "local" and self.noise:
            return accounting.upload(self.noise)
        if job == "card" and self.histogram == "noised" and "histogram" in asked:
            return accounting.histogram(self.histogram_epsilon)
        return None

    def withholds(self, names: Iterable[str]) -> list[str]:
        """What of a card with these names does not leave."""
        return sorted(name for name in names if name not in FREE and not self._described(name))

    def _described(self, name: str) -> bool:
        return self.histogram != "withhold" if name == "histogram" else self.statistics

    def summary(self) -> str:
        """The rules in one line."""
        parts = [f"histogram {self.histogram}", f"statistics {'told' if self.statistics else 'withheld'}"]
        parts += [f"measures {'told' if self.measures else 'withheld'}"]
        parts += [f"clip {self.clip:g}, noise {self.noise:g}" if self.clip else "uploads as they are"]
        return ", ".join(parts + ([f"at most {self.rounds_a_day} rounds a day"] if self.rounds_a_day else []))


OPEN = Policy(histogram="exact", statistics=True)  # everything that is asked for leaves, as in simulation


def create(home: Path) -> bool:
    """Write the safe default if there is no policy yet; whether it was."""
    if (home / FILE).exists():
        return False
    write_text(home / FILE, TEMPLATE)
    return True


def load(home: Path) -> Policy:
    path = home / FILE
    if not path.exists():
        raise UserError(f"{path} is missing, so nothing may leave; `pfeddsh join` makes one that is safe")
    values: dict[str, Any] = read(path)
    return checked(Policy, values, str(path))
