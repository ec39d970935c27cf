"""What sites that turn their uploads around cost the honest ones, by the rule that aggregates the common model.

A fifth of the sites of either batch sends -FACTOR times what it trained, in every round. Accuracy is that of the honest
sites at the end, as they are served; nothing is screened, so the rule stands alone. Digits, LeNet-5:

    python benchmarks/robust.py                       # the table of docs/operations-security.md
    python benchmarks/robust.py --rules clipped --factors 3 --seeds 0
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pfeddsh.config import Config
from pfeddsh.federation.clients import Simulated
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Workbench
from pfeddsh.messages import Message
from pfeddsh.storage.checkpoint import Checkpoints

SITES = {"schedule": "15+5", "alpha": 0.3, "sample_fraction": 1.0, "rounds_first": 15, "rounds_later": 8}
TRAINING = {"local_epochs": 2, "lr": 0.05, "engine": "serial"}


class Turned(Simulated):
    """Clients of which some send the opposite of what they trained, this many times."""

    factor, hostile = 0.0, frozenset()

    def ask(self, job, messages, memories, step, round):
        replies = super().ask(job, messages, memories, step, round)
        if job != "local" or not self.factor:
            return replies
        return [(k, (self._turn(reply) if k in self.hostile else reply, memory)) for k, (reply, memory) in replies]

    def _turn(self, upload: Message) -> Message:
        return Message({**upload.tensors, "delta": -self.factor * upload["delta"]}, upload.facts)


def honest_accuracy(rule: str, factor: float, seed: int) -> float:
    bench = Workbench(Config(**SITES, **TRAINING, seed=seed, options={"aggregation": rule}))
    engine = Serial(bench)
    clients = Turned(bench, engine)
    clients.factor = factor
    clients.hostile = frozenset(k for step in bench.plan.steps for k in bench.plan.batch(step)[4::5])
    with tempfile.TemporaryDirectory() as folder, one_thread():
        federation = Federation(bench, engine, Checkpoints(Path(folder)), [], clients)
        for step in federation.plan.steps:
            federation.step(step, 0)
    row = [a for k, a in enumerate(federation.ledger.acc[-1]) if a is not None and k not in clients.hostile]
    return sum(row) / len(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", nargs="+", default=["mean", "clipped", "trimmed"])
    parser.add_argument("--factors", nargs="+", type=float, default=[3, 10])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    arguments = parser.parse_args()
    table = Table("aggregation", "nobody", *(f"-{factor:g}x" for factor in arguments.factors))
    for rule in arguments.rules:
        means = []
        for factor in (0.0, *arguments.factors):
            values = [honest_accuracy(rule, factor, seed) for seed in arguments.seeds]
            means.append(sum(values) / len(values))
            print(rule, factor, " ".join(f"{value:.1f}" for value in values), flush=True)
        table.add_row(rule, f"{means[0]:.1f}", *(f"{m:.1f} ({m - means[0]:+.1f})" for m in means[1:]))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
