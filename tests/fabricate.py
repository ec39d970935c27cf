"""Results of runs that never took place: consistent with the contract, quick to make, for tests of the report."""

import json
import random
from pathlib import Path
from typing import Any

from pfeddsh.configure import build
from pfeddsh.results.metrics import sampled_adaptation, summary
from pfeddsh.results.visits import visits

NEW = ("acc_end_mean", "lost_share", "visits", "pa_sampled")  # fields that files of older versions do not have


def results(method: str = "fedper", schedule: str = "8+2x3", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """What such a run would have left; `drift` is what existing clients gain per step, `options` go to the method."""
    drift, options, dataset = changes.pop("drift", -2.0), changes.pop("options", {}), changes.pop("dataset", "cifar10")
    config = build(
        {"dataset": dataset, "method": method, "schedule": schedule, "seed": seed, "options": options, **changes}
    )
    plan = config.plan()
    batch = [next(t for t in plan.steps if k in plan.batch(t)) for k in range(plan.clients)]
    rng = random.Random(f"{method} {options} {seed}")
    local = [random.Random(f"{seed} {k}").uniform(60, 75) for k in range(plan.clients)]
    acc: list[list[float | None]] = []
    for step in plan.steps:
        row: list[float | None] = []
        for k, joined in enumerate(batch):
            before = acc[-1][k] if acc else None
            fresh = local[k] + rng.uniform(2, 15)
            later = None if before is None else before + drift + rng.uniform(-1, 1)
            row.append(None if joined > step else max(0.0, min(100.0, fresh if later is None else later)))
        acc.append(row)
    sampled = visits(plan)
    layers = {"fc1": {"active": 30, "new": 5, "reused": 25, "total": 40, "width": 120}}
    return {
        "schema": 1, "method": method, "dataset": dataset, "schedule": schedule, "seed": seed, "clients": plan.clients,
        "steps": len(plan.steps), "batch": batch, "acc": acc, "acc_before_replay": acc, "local": local,
        **summary(acc, batch, local), "visits": sampled,
        "pa_sampled": sampled_adaptation(acc, batch, local, sampled),
        "payload_kib": {"down": 242.2, "up": 238.9},
        "seconds": {
            "round_mean": 0.3, "server_round_mean": 0.05, "total": 60.0,
            "replay_per_step": [0.0] + [8.0] * (len(plan.steps) - 1),
        },
        "capacity": [layers if method == "pfeddsh-hyper-gate" else None] * len(plan.steps),
        "accepted": [None] * len(plan.steps),
        "options": config.options, "protocol": config.protocol(),
        "environment": {"python": "3.11.7", "torch": "2.13.0", "data": f"fingerprint of {dataset}", "revision": "abc"},
    }  # fmt: skip


def write(folder: Path, content: Any) -> Path:
    """A run folder with these results."""
    folder.mkdir(parents=True)
    path = folder / "results.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
