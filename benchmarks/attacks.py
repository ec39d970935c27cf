"""Two attacks on what leaves a client, with and without clip and noise: they show leaks, and never their absence.

Inversion: from one upload after one batch of a few images, images are sought whose gradient points the same way (cosine
distance, total variation). The attacker is the coordinator: it knows the weights, the rate and, here, even the labels.
Membership: from the loss of a served model alone, was an image among those its client trained on?

`python benchmarks/attacks.py --out runs/privacy --docs` uses the runs of benchmarks/privacy.py, or makes them.
"""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from privacy import DOCS, measure, put

from pfeddsh.configure import build
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms.privacy import Protection, protect, repeatable
from pfeddsh.messages import Message
from pfeddsh.models.base import Model
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.values import read

IMAGES, STEPS, VARIATION, RATE = 4, 400, 1e-3, 0.05
CLIP = 0.2
NOISES = (None, 0.0, 5e-5, 5e-4, 5e-3, 1.5e-2)  # None: as it is; 0: clip alone
SERVED = ((0.0, 0.0), (0.2, 0.0), (0.2, 0.015), (0.2, 0.05), (0.2, 0.15))  # clips and noises of the federations


def gradient(model: Model, theta: Tensor, images: Tensor, labels: Tensor, graph: bool = False) -> Tensor:
    weights = theta.clone().requires_grad_()
    loss = F.cross_entropy(model.forward(weights, images), labels)
    (slope,) = torch.autograd.grad(loss, weights, create_graph=graph)
    return slope


def variation(images: Tensor) -> Tensor:
    down, right = images[:, :, 1:] - images[:, :, :-1], images[..., 1:] - images[..., :-1]
    return down.abs().mean() + right.abs().mean()


def invert(model: Model, theta: Tensor, upload: Tensor, labels: Tensor, draw: torch.Generator) -> Tensor:
    """Images whose gradient points where the upload does; the best of the way there, by the attacker's own measure."""
    images = torch.randn(len(labels), *model.shape, generator=draw).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=0.1)
    best, least = images.detach().clone(), float("inf")
    for step in range(STEPS):
        if step in (STEPS // 2, 3 * STEPS // 4):
            optimiser.param_groups[0]["lr"] /= 5
        slope = gradient(model, theta, images, labels, graph=True)
        loss = 1 - F.cosine_similarity(slope, upload, dim=0) + VARIATION * variation(images)
        if loss.item() < least:
            best, least = images.detach().clone(), loss.item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return best


def likeness(images: Tensor, found: Tensor) -> float:
    """Mean correlation of each image with what was found in its place; 1: the image, up to contrast."""
    pairs = zip(images.flatten(1), found.flatten(1), strict=True)
    return float(np.mean([float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs]))


def called(noise: float | str | None) -> str:
    if isinstance(noise, float):
        return f"clip {CLIP:g}, noise {noise:g}" if noise else f"clip {CLIP:g}"
    return noise or "as it is"


def inversion(trials: int) -> tuple[str, list[tuple[str, Tensor]]]:
    """A table of likenesses, and the images of the first trial."""
    bench = Workbench(build({"dataset": "digits", "method": "fedavg", "engine": "serial"}))
    model, theta = bench.task.model, bench.task.theta0
    scores: dict[str, list[float]] = {}
    shown: list[tuple[str, Tensor]] = []
    for trial in range(trials):
        images, labels = bench.shard(trial).train
        some = [int((labels == label).nonzero()[0]) for label in labels.unique()[:IMAGES]]
        images, labels = images[some], labels[some]
        delta = RATE * gradient(model, theta, images, labels)
        shown += [("original", images)] if trial == 0 else []
        for noise in (*NOISES, "none of it"):
            draw = torch.Generator().manual_seed(trial)
            told = Message({"delta": delta})
            if noise == "none of it":
                told["delta"] = torch.randn(len(delta), generator=draw)
            elif noise is not None:
                told = protect(Message(), told, Protection(clip=CLIP, noise=noise), repeatable(draw))
            found = invert(model, theta, told["delta"], labels, torch.Generator().manual_seed(100 + trial))
            name = called(noise)
            scores.setdefault(name, []).append(likeness(images, found))
            shown += [(name, found)] if trial == 0 else []
            print(
                "inversion", trial, name, round(scores[name][-1], 3), f"|delta| {float(delta.norm()):.3g}", flush=True
            )
    lines = ["| upload | likeness, mean | least | most |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {np.mean(own):.2f} | {min(own):.2f} | {max(own):.2f} |" for name, own in scores.items()]
    return "\n".join(lines), shown


def draw(shown: list[tuple[str, Tensor]], path: Path) -> None:
    drawing, rows = plt.subplots(
        len(shown), shown[0][1].shape[0], figsize=(4.6, 1.1 * len(shown)), layout="constrained"
    )
    for row, (name, images) in zip(rows, shown, strict=True):
        for axes, image in zip(row, images, strict=True):
            pixels = image.mean(0)
            axes.imshow(pixels, cmap="grey")
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    drawing.savefig(path, dpi=110)


def losses(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Losses of every client's served model on the images it trained on, and on its test images."""
    bench = Workbench(build(read(folder / "config.toml")))
    federation = Federation(bench, Serial(bench), Checkpoints(folder / "state"), [])
    seen, unseen = [], []
    for client in range(bench.plan.clients):
        served, data = federation.personal([client])[client], bench.shard(client)
        model = bench.method.current(served, data, federation.memories[client])
        for examples, into in ((data.train, seen), (data.test, unseen)):
            logits = bench.method.logits(model, examples[0], served)
            into.append(F.cross_entropy(logits, examples[1], reduction="none").numpy())
    return np.concatenate(seen), np.concatenate(unseen)


def membership(out: Path) -> str:
    lines = [
        "| method | clip | noise | accuracy, % | AUC | found at 1 % false alarms, % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method in ("pfeddsh", "fedavg-prior"):
        for clip, noise in SERVED:
            results = measure("digits", method, clip, noise, out)
            seen, unseen = losses(out / f"digits-{method}-{clip:g}-{noise:g}")
            truth, score = np.r_[np.ones(len(seen)), np.zeros(len(unseen))], -np.r_[seen, unseen]
            false, right, _ = roc_curve(truth, score)
            caught = 100 * right[false <= 0.01].max()
            what = [
                f"{clip:g}" if clip else "none",
                f"{noise:g}" if noise else "none",
                f"{results['acc_end_mean']:.1f}",
            ]
            lines.append(f"| {method} | {' | '.join(what)} | {roc_auc_score(truth, score):.3f} | {caught:.1f} |")
            print(lines[-1], flush=True)
    return "\n".join(
        [*lines, "", f"{len(seen)} images that were trained on, {len(unseen)} that were not; chance is 0.5 and 1 %."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--trials", type=int, default=2, help="clients whose upload is inverted")
    parser.add_argument("--docs", action="store_true", help="write figure and tables into docs/")
    parser.add_argument("--only", choices=["inversion", "membership"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.only != "membership":
        table, shown = inversion(given.trials)
        print(table)
        if given.docs:
            put("benchmarks/attacks.py inversion", table)
            draw(shown, DOCS / "inversion.png")
    if given.only != "inversion":
        table = membership(given.out)
        if given.docs:
            put("benchmarks/attacks.py membership", table)


if __name__ == "__main__":
    main()
