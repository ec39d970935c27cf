"""What hostile sites cost the honest ones, by the rule that aggregates the common model.

A fifth of the sites sends something else than it trained, in every round. Accuracy is that of the honest sites at the
end, as they are served; nothing is screened, so the rule stands alone. Digits, LeNet-5:

    python benchmarks/robust.py --keep                # the first table of docs/robustness.md
    python benchmarks/robust.py --keep --sites drawn --attacks nobody flip3 flip10
    python benchmarks/robust.py --keep --rules history --longest 1 1.5 3 --attacks nobody flip3 noise
    python benchmarks/robust.py --keep --directions   # how much honest uploads have in common, round by round

With --keep, every run is a row of results/robust.csv; directions go to results/measured.csv.
"""

import argparse
import random
import tempfile
from pathlib import Path
from unittest import mock

import torch
from kept import keep, keep_rows
from rich.console import Console
from rich.table import Table

from pfeddsh.config import Config
from pfeddsh.federation.clients import Simulated
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Workbench
from pfeddsh.live.coordinator.clients import quorum
from pfeddsh.mechanisms import robust
from pfeddsh.messages import Message
from pfeddsh.rng import torch_stream
from pfeddsh.storage.checkpoint import Checkpoints

TRAINING = {"alpha": 0.3, "local_epochs": 2, "lr": 0.05, "engine": "serial"}
# Exactly a fifth of each batch, and everybody in each round; or a fifth drawn from all sites, and small cohorts (5 of
# 15, 2 of 5), of which most can be hostile by chance.
SITES = {
    "fifth": {"schedule": "15+5", "sample_fraction": 1.0, "rounds_first": 10, "rounds_later": 6},
    "drawn": {"schedule": "15+5", "sample_fraction": 0.3, "rounds_first": 30, "rounds_later": 15},
}
ATTACKS = ("nobody", "flip3", "flip10", "noise", "same", "little", "late", "reports")
FALSE = 100.0  # the largest mean and deviation of features that a coordinator's door lets in


def attack(name: str, deltas: dict[int, torch.Tensor], hostile: list[int], drawn: torch.Generator) -> None:
    """Replace what hostile sites changed. They know what everyone sent, and act together.

    flip3, flip10: the opposite, so many times; late: the same ten times, after half of the rounds. noise: Gaussian,
    ten times as long. same: all weights alike, ten times as long, the same from all. little: 1.5 standard deviations
    from the mean in each weight, against it (Baruch et al. 2019, "A little is enough"). reports: uploads are honest,
    and the statistics told at the end of a step as false as the door lets in.
    """
    everyone = torch.stack(list(deltas.values()))
    for client in hostile:
        own = deltas[client]
        if name.startswith("flip"):
            deltas[client] = -float(name[4:]) * own
        elif name == "noise":
            noise = torch.randn(len(own), generator=drawn)
            deltas[client] = 10 * noise * (own.norm() / noise.norm())
        elif name == "same":
            deltas[client] = 10 * torch.full_like(own, float(own.norm()) / len(own) ** 0.5)
        elif name == "little":
            deltas[client] = everyone.mean(0) - 1.5 * everyone.std(0, correction=0) * everyone.mean(0).sign()


def false(report: Message) -> Message:
    return Message({"statistics": torch.full_like(report["statistics"], FALSE)})


class Attacked(Simulated):
    """Clients of which some are hostile."""

    kind, hostile = "nobody", frozenset()

    def ask(self, job, messages, memories, step, round):
        replies = list(super().ask(job, messages, memories, step, round))
        if job == "settle" and self._bench.method.settings.aggregation == "history":  # as a coordinator does
            self._bench.method.quorum = quorum(len(replies))
        if job == "settle" and self.kind == "reports":
            return [(k, (false(report) if k in self.hostile else report, memory)) for k, (report, memory) in replies]
        if job != "local" or self.kind in ("nobody", "reports"):
            return replies
        deltas = {k: reply["delta"] for k, (reply, _) in replies}
        kind = (
            self.kind if self.kind != "late" else "flip10" if 2 * round >= self._bench.plan.rounds(step) else "nobody"
        )
        hostile = [k for k in deltas if k in self.hostile]
        attack(kind, deltas, hostile, torch_stream(self._bench.config.seed, step, round, "attack"))
        return [(k, (Message({**r.tensors, "delta": deltas[k]}, r.facts), memory)) for k, (r, memory) in replies]


class Watch:
    """Notes who is left out in the last round of each step."""

    def __init__(self) -> None:
        self.out: dict[int, set[int]] = {}

    def event(self, kind, facts):
        if kind == "round":
            self.out[facts["step"]] = set(robust.left_out(self.federation.state))


def honest_accuracy(sites: str, rule: str, kind: str, seed: int) -> tuple[float, str]:
    """Of the honest sites at the end, and who was left out when each step ended (hostile/honest)."""
    bench = Workbench(Config(**SITES[sites], **TRAINING, seed=seed, options={"aggregation": rule}))
    engine = Serial(bench)
    clients, plan = Attacked(bench, engine), bench.plan
    clients.kind = kind
    each = [plan.batch(step)[4::5] for step in plan.steps]
    drawn = random.Random(f"hostile {seed}").sample(range(plan.clients), plan.clients // 5)
    clients.hostile = frozenset(drawn if sites == "drawn" else [k for batch in each for k in batch])
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, one_thread():
        federation = watch.federation = Federation(bench, engine, Checkpoints(Path(folder)), [watch], clients)
        for step in plan.steps:
            federation.step(step, 0)
    row = [a for k, a in enumerate(federation.ledger.acc[-1]) if a is not None and k not in clients.hostile]
    said = " ".join(f"{len(out & clients.hostile)}/{len(out - clients.hostile)}" for out in watch.out.values())
    return sum(row) / len(row), said


class Directions(Simulated):
    """Notes the mean cosine between two uploads of a round, step by step."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.cosines: dict[int, list[float]] = {}

    def ask(self, job, messages, memories, step, round):
        replies = list(super().ask(job, messages, memories, step, round))
        if job == "local":
            units = torch.nn.functional.normalize(torch.stack([reply["delta"] for _, (reply, _) in replies]))
            alike = units @ units.T
            pairs = ~torch.eye(len(units), dtype=torch.bool)
            self.cosines.setdefault(step, []).append(float(alike[pairs].mean()))
        return replies


def directions(seed: int) -> dict[int, list[float]]:
    """By step and round, with nobody hostile."""
    bench = Workbench(Config(**SITES["fifth"], **TRAINING, seed=seed))
    engine = Serial(bench)
    clients = Directions(bench, engine)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        federation = Federation(bench, engine, Checkpoints(Path(folder)), [], clients)
        for step in bench.plan.steps:
            federation.step(step, 0)
    return clients.cosines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", choices=list(SITES), default="fifth")
    parser.add_argument("--rules", nargs="+", default=["mean", "history"])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--longest", nargs="+", type=float, default=[robust.LONGEST], help="what history cuts at, in median norms"
    )
    parser.add_argument("--directions", action="store_true", help="only measure how alike honest uploads are, seed 100")
    parser.add_argument("--keep", action="store_true", help="add the runs to results/robust.csv")
    arguments = parser.parse_args()
    if arguments.directions:
        for step, found in directions(100).items():
            print(f"step {step}: mean cosines {', '.join(f'{cosine:.2f}' for cosine in found)}")
            if arguments.keep:
                keep("directions", f"step {step}", cosine=found)
        return
    rules = [(rule, longest) for rule in arguments.rules for longest in arguments.longest]
    names = [rule if longest == robust.LONGEST else f"{rule}, {longest:g} medians" for rule, longest in rules]
    table, rows = Table("attack", *names), []
    for kind in arguments.attacks:
        cells = []
        for name, (rule, longest) in zip(names, rules, strict=True):
            values = []
            for seed in arguments.seeds:
                with mock.patch.object(robust, "LONGEST", longest):
                    value, said = honest_accuracy(arguments.sites, rule, kind, seed)
                values.append(value)
                run = {"sites": arguments.sites, "attack": kind, "rule": name, "seed": str(seed)}
                rows.append(run | {"honest sites": f"{value:.2f}", "left out": said})
                print(f"{kind} {name} seed {seed}: {value:.1f}, left out {said}", flush=True)
            cells.append(f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        table.add_row(kind, *cells)
    Console(width=100).print(table)
    if arguments.keep:
        keep_rows("robust.csv", rows, ["sites", "attack", "rule", "seed"])


if __name__ == "__main__":
    main()
