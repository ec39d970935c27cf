"""How much replay could give at best: the students' own opinion, the common one and their target on real test images.

    pfeddsh run --dataset cifar10 --method pfeddsh --schedule 80+20 --out RUN
    python results/teacher.py RUN

Replay never sees these images; a student that learnt its target perfectly from synthetic ones would score the last one.
"""

import sys
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from pfeddsh.config import build, read
from pfeddsh.federation.workbench import Workbench
from pfeddsh.messages import State
from pfeddsh.methods.pfeddsh import PFedDSH
from pfeddsh.replay import log_prior, targets, trust
from pfeddsh.results.checkpoint import Checkpoints


def main(run: Path) -> None:
    bench = Workbench(build(read(run / "config.toml"), str(run)))
    method = bench.method
    assert isinstance(method, PFedDSH)
    found = Checkpoints(run / "state").latest()
    assert found is not None, "the run has no state"
    state = State(found[1]["state"].tensors, found[1]["state"].facts)
    clients = [int(k) for k in state.facts["joined"] if f"statistics/{k}" in state]
    existing = [k for k in clients if state.facts["joined"][str(k)] < state.facts["step"]]
    models = {k: message["theta"] for k, message in method.originals(state, clients).items()}
    priors = {k: log_prior(state[f"histogram/{k}"]) for k in clients}
    weight = trust(torch.stack([state[f"histogram/{k}"] for k in clients]))
    scores: dict[str, list[float]] = {"own": [], "common": [], "target": []}
    for k in existing:
        images, labels = bench.shard(k).test
        with torch.inference_mode():
            said = [method.model.forward(models[j], images, state[f"statistics/{j}"]) - priors[j] for j in clients]
            common = (torch.stack(said) * weight[:, None]).sum(0) / weight.sum(0) + priors[k]
            own = said[clients.index(k)] + priors[k]
            opinions = {"own": own, "common": common, "target": targets(common, own)}
        for name, opinion in opinions.items():
            scores[name].append(_accuracy(opinion, labels))
    print(
        f"{len(existing)} existing clients, mean accuracy: "
        + ", ".join(f"{n} {fmean(s):.2f}" for n, s in scores.items())
    )


def _accuracy(opinion: Tensor, labels: Tensor) -> float:
    return 100.0 * float((opinion.argmax(1) == labels).float().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
