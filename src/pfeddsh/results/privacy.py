"""What the noise of a run is worth, for results.json."""

from collections import Counter
from typing import Any

from pfeddsh.config import Config
from pfeddsh.mechanisms import accounting
from pfeddsh.schedule import Schedule

DELTA = 1e-5


def spent(config: Config, plan: Schedule) -> dict[str, Any]:
    """Epsilon of the client that uploaded most; none without noise, or where no accountant is installed."""
    if not config.privacy.on:
        return {}
    cohorts = [plan.cohort(step, round) for step in plan.steps for round in range(plan.rounds(step))]
    most = max(Counter(client for cohort in cohorts for client in cohort).values())
    known = config.privacy.noise and accounting.installed()
    epsilon = accounting.epsilon({accounting.upload(config.privacy.noise): most}, DELTA) if known else None
    told = {"epsilon": epsilon, "delta": DELTA, "uploads": most}
    return {"privacy": {**config.privacy.model_dump(), **told}}
