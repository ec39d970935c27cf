"""The guard's regret: what clients lose by their choice between the model they have and the one they are offered.

python results/guard.py [--schedule 20+80] [--seed 100] [--hold-out 0.1]: one run of pFedDSH on CIFAR-10 (PFEDDSH_DATA).
Every offer is judged by each kind of evidence; test images only measure the outcome. The run goes on with the default.
Its rows go to results/guard.csv, in place of those of an earlier run with the same settings.
"""

import argparse
import tempfile
from pathlib import Path

import torch.nn.functional as F
from runs import keep

from pfeddsh.configure import build
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms import guard
from pfeddsh.methods.pfeddsh import PFedDSH
from pfeddsh.storage.checkpoint import Checkpoints

OFFERS: list[dict] = []
MARGINS = (0.02, 0.05)  # by which the loss could have to be better


def receive(self, message, data, memory, visit):
    """As the method does, with every rule's verdict and both accuracies noted."""
    prior = self.prior(data)
    models = guard.kept(memory, prior), self.followed(message, data, memory, anew=True)
    flipped = guard.shifted((data.train[0].flip(-1), data.train[1]))
    evidence = {"training images": data.train, "shifted": guard.shifted(data.train), "shifted and flipped": flipped}
    evidence["test images (an oracle)"] = data.test  # the best that any guard could know
    if visit_holds_out(data):
        evidence["set aside"] = data.held_out
    noted = {"acc": [100 * float((self.logits(m, data.test[0], message).argmax(1) == data.test[1]).float().mean())
                     for m in models]}  # fmt: skip
    for name, (images, labels) in evidence.items():
        logits = [self.logits(model, images, message) for model in models]
        losses = [float(F.cross_entropy(one, labels)) for one in logits]
        right = [int((one.argmax(1) == labels).sum()) for one in logits]
        noted[f"{name}, loss"] = losses[1] < losses[0]
        noted[f"{name}, right answers"] = (right[1], -losses[1]) > (right[0], -losses[0])
        if name == "shifted and flipped":
            noted |= {f"{name}, loss, better by {m:.0%}": losses[1] < (1 - m) * losses[0] for m in MARGINS}
    OFFERS.append(noted)
    return PFedDSH_receive(self, message, data, memory, visit)


def visit_holds_out(data) -> bool:
    return data.held_out is not data.train


PFedDSH_receive = PFedDSH.receive


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="20+80")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--hold-out", type=float, default=0.0)
    given = parser.parse_args()
    values = {"dataset": "cifar10", "schedule": given.schedule, "seed": given.seed, "hold_out": given.hold_out}
    bench = Workbench(build({**values, "method": "pfeddsh", "engine": "serial"}))
    PFedDSH.receive = receive  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder, one_thread():
        federation = Federation(bench, Serial(bench), Checkpoints(Path(folder)), [])
        federation.train()
    settings = {"schedule": given.schedule, "seed": str(given.seed), "hold-out": str(given.hold_out)}
    everyone = sum(a for a in federation.ledger.acc[-1]) / bench.plan.clients
    same = settings | {"offers": str(len(OFFERS)), "everyone": f"{everyone:.2f}"}
    keep("guard.csv", [same | row for row in judged()], list(settings))


def judged() -> list[dict[str, str]]:
    """What each kind of evidence would have made of the offers."""
    rules = {"take everything": lambda o: True, "keep everything": lambda o: False}
    answers = "test images (an oracle), right answers"  # that is the outcome itself
    rules |= {name: lambda o, name=name: o[name] for name in OFFERS[0] if name not in ("acc", answers)}
    rows = []
    for name, takes in rules.items():
        taken = [takes(o) for o in OFFERS]
        gains = [o["acc"][1] - o["acc"][0] for o in OFFERS]
        helpful = [t for t, g in zip(taken, gains, strict=True) if g > 0]
        harmful = [t for t, g in zip(taken, gains, strict=True) if g < 0]
        regret = [max(0.0, -g) if t else max(0.0, g) for t, g in zip(taken, gains, strict=True)]
        lost = [t and g < -2 for t, g in zip(taken, gains, strict=True)]
        rows.append({
            "evidence": name, "taken": share(taken), "helpful declined": share([not t for t in helpful]),
            "harmful taken": share(harmful), "regret": f"{sum(regret) / len(regret):.2f}", "lost > 2": share(lost),
        })  # fmt: skip
    return rows


def share(which: list[bool]) -> str:
    return f"{100 * sum(which) / max(1, len(which)):.0f}"


if __name__ == "__main__":
    main()
