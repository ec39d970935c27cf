"""What a site knows of itself: its policy, what was spent of its budget, what has left, and the model it is served."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from pfeddsh.live.site import audit, policy
from pfeddsh.live.site.budget import Budget
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.storage.records import Damaged, read_record


@dataclass(frozen=True)
class SiteStatus:
    """The content of `pfeddsh status HOME --json`."""

    name: str
    server: str
    policy: str
    epsilon_spent: float | None  # None: nobody can tell, as no accountant is installed
    epsilon_budget: float | None
    delta: float
    training: str  # on, or why not
    rounds_today: int
    messages: int
    log_broken_at: int | None
    model_step: int | None
    schema: int = 1


def is_site(folder: Path) -> bool:
    return (folder / "site.toml").exists()


def read_status(home: Path) -> SiteStatus:
    config, rules = SiteConfig.load(home), policy.load(home)
    budget = Budget(home, rules)
    lines, broken = audit.verify(home)
    today = budget.today()
    training = "on"
    if why := policy.unfit(home):
        training = f"not taken in: {why}; change {policy.FILE} and join again"
    elif not budget.left():
        training = "ended: the budget is spent; serving goes on"
    elif rules.rounds_a_day and today >= rules.rounds_a_day:
        training = "on again tomorrow (UTC)"
    return SiteStatus(
        config.name, config.server, rules.summary(), budget.epsilon(), rules.epsilon or None, rules.delta, training,
        today, lines, broken, _model_step(home),
    )  # fmt: skip


def _model_step(home: Path) -> int | None:
    try:
        return int(read_record(home / "model.safetensors").facts["step"])
    except (Damaged, KeyError):
        return None


def text(status: SiteStatus) -> str:
    return json.dumps(asdict(status), indent=1)


def render(status: SiteStatus) -> Table:
    view = Table(show_header=False, box=None, title=f"{status.name}, of the federation at {status.server}")
    spent = "unknown: pip install 'pfeddsh[privacy]'" if status.epsilon_spent is None else f"{status.epsilon_spent:.3g}"
    limit = f" of {status.epsilon_budget:g}" if status.epsilon_budget else ", no budget set"
    log = f"{status.messages} messages" + (f"; line {status.log_broken_at} was altered" if status.log_broken_at else "")
    model = "none yet" if status.model_step is None else f"of step {status.model_step}"
    rows = {
        "policy": status.policy,
        "privacy spent": f"epsilon {spent}{limit} (delta {status.delta:g})",
        "training": f"{status.training}; {status.rounds_today} rounds today",
        "left the site": f"{log} (audit.jsonl)",
        "model": model,
    }
    for name, value in rows.items():
        view.add_row(name, value)
    return view
