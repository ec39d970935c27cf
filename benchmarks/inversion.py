"""Inversion of one upload: images are sought whose gradient points where the upload does.

The attack of Geiping et al. (2020, "Inverting gradients"): cosine distance, total variation, signed Adam, a box, and
restarts, of which the attacker keeps the best by its own loss. The attacker is the coordinator: it knows the weights,
that images are grey, and, here, the labels. An attack that fails shows that this attack fails, and nothing more.

    python benchmarks/inversion.py --keep       # rows of results/inversion.csv, and docs/inversion.png
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from kept import keep_rows
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from pfeddsh.configure import build
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.mechanisms.clip import Protection
from pfeddsh.mechanisms.privacy import protect, repeatable
from pfeddsh.messages import Message
from pfeddsh.models.base import Model
from pfeddsh.results.ledger import revision

VARIATION, RATE, CLIP, WINDOW = 1e-2, 0.1, 0.2, 7
UPLOADS: dict[str, float | None] = {  # what the coordinator gets: as it is, or clipped and with this noise
    "as it is": None,
    "clip 0.2, noise 0.0005": 0.0005,
    "clip 0.2, noise 0.015": 0.015,
    "nothing of it: pure noise": 1e6,
}


@dataclass
class Case:
    """An upload whose images are known to us, and what the attacker spends on it."""

    name: str
    images: Tensor
    labels: Tensor
    delta: Tensor
    steps: int
    restarts: int


def gradient(model: Model, theta: Tensor, images: Tensor, labels: Tensor, graph: bool = False) -> Tensor:
    weights = theta.clone().requires_grad_()
    loss = F.cross_entropy(model.forward(weights, images), labels)
    (slope,) = torch.autograd.grad(loss, weights, create_graph=graph)
    return slope


def variation(images: Tensor) -> Tensor:
    down, right = images[:, :, 1:] - images[:, :, :-1], images[..., 1:] - images[..., :-1]
    return down.abs().mean() + right.abs().mean()


def invert(
    model: Model, theta: Tensor, upload: Tensor, labels: Tensor, box: tuple[float, float], seed: int, case: Case
) -> Tensor:
    """Images whose gradient points where the upload does: the best of all restarts, by the attacker's own measure."""
    channels, *size = model.shape
    best, least = torch.empty(0), float("inf")
    for restart in range(case.restarts):
        draw = torch.Generator().manual_seed(1000 * seed + restart)
        grey = torch.randn(len(labels), 1, *size, generator=draw).clamp(*box).requires_grad_()
        optimiser = torch.optim.Adam([grey], lr=RATE)
        ends = [case.steps * eighth // 8 for eighth in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, ends, gamma=0.3)
        for _ in range(case.steps):
            slope = gradient(model, theta, grey.expand(-1, channels, -1, -1), labels, graph=True)
            loss = 1 - F.cosine_similarity(slope, upload, dim=0) + VARIATION * variation(grey)
            if loss.item() < least:
                best, least = grey.detach().clone(), loss.item()
            (grey.grad,) = torch.autograd.grad(loss, grey)
            grey.grad.sign_()
            optimiser.step()
            schedule.step()
            grey.data.clamp_(*box)
    return best


def levelled(found: Tensor, everyone: Tensor, box: tuple[float, float]) -> Tensor:
    """With the brightness and contrast that images have on average: normalisation hides both from the gradient."""
    (spread, centre), (wanted, middle) = (
        (images.std((1, 2, 3), keepdim=True), images.mean((1, 2, 3), keepdim=True)) for images in (found, everyone)
    )
    return ((found - centre) / spread.clamp_min(1e-6) * wanted.mean() + middle.mean()).clamp(*box)


def psnr(image: Tensor, other: Tensor, box: tuple[float, float]) -> Tensor:
    """Peak signal-to-noise ratio in dB, over the last three dimensions; of an image with itself, 99."""
    error = (image - other).square().mean((-3, -2, -1)).clamp_min(1e-9)
    return (20 * torch.log10(torch.tensor(box[1] - box[0])) - 10 * torch.log10(error)).clamp_max(99)


def ssim(image: Tensor, other: Tensor, box: tuple[float, float]) -> float:
    """Structural similarity (Wang et al. 2004) with a plain window of 7x7; 1: the same."""
    one, two, span = image[None], other[None], box[1] - box[0]
    a, b = F.avg_pool2d(one, WINDOW, 1), F.avg_pool2d(two, WINDOW, 1)
    va, vb = F.avg_pool2d(one**2, WINDOW, 1) - a**2, F.avg_pool2d(two**2, WINDOW, 1) - b**2
    cov, c1, c2 = F.avg_pool2d(one * two, WINDOW, 1) - a * b, (0.01 * span) ** 2, (0.03 * span) ** 2
    return float(((2 * a * b + c1) * (2 * cov + c2) / ((a**2 + b**2 + c1) * (va + vb + c2))).mean())


def matched(images: Tensor, found: Tensor, labels: Tensor) -> Tensor:
    """What was found, in the order of the images: which of several of one label is which is decided in our favour."""
    cost = (images[:, None] - found[None]).square().mean((2, 3, 4))
    cost[labels[:, None] != labels[None]] = 1e9
    return found[torch.from_numpy(linear_sum_assignment(cost.numpy())[1])]


def score(case: Case, found: Tensor, others: Tensor, box: tuple[float, float]) -> list[float]:
    """PSNR and SSIM with the image itself, PSNR with the nearest image of others, and how often itself is nearest."""
    own = psnr(case.images[:, :1], found, box)
    nearest = torch.stack([psnr(others, one, box).max() for one in found])
    alike = np.mean([ssim(a, b, box) for a, b in zip(case.images[:, :1], found, strict=True)])
    return [float(own.mean()), float(alike), float(nearest.mean()), 100 * float((own > nearest).float().mean())]


def cases(bench: Workbench, client: int, effort: float) -> list[Case]:
    """One step on one image and on four, and a whole visit of a round as it is sent."""
    model, theta, (images, labels) = bench.task.model, bench.task.theta0, bench.shard(client).train
    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique()[:4]]
    visit = bench.visit(1, 0, client)
    found = []
    for name, some, steps, restarts in (("one image", firsts[:1], 1000, 2), ("four images", firsts, 1000, 1)):
        delta = gradient(model, theta, images[some], labels[some])
        found.append(Case(name, images[some], labels[some], visit.lr * delta, int(effort * steps), restarts))
    sent = bench.run(Call("local", visit, Message({"theta": theta})))[0]
    delta = sent["delta"] if "delta" in sent else theta - sent["theta"]
    return [*found, Case("a visit", images, labels, delta, int(effort * 400), 1)]


def inversion(clients: list[int], effort: float) -> tuple[list[dict[str, str]], list[tuple[str, Tensor]]]:
    """Rows of results/inversion.csv, and the images of the first client."""
    bench = Workbench(build({"dataset": "digits", "method": "pfeddsh", "engine": "serial"}))
    model, theta = bench.task.model, bench.task.theta0
    everyone = [bench.shard(k).train[0][:, :1] for k in range(bench.plan.clients)]
    box = float(torch.cat(everyone).min()), float(torch.cat(everyone).max())
    rows = []
    shown: list[tuple[str, Tensor]] = []
    for client in clients:
        others = torch.cat([images for k, images in enumerate(everyone) if k != client])
        for case in cases(bench, client, effort):
            shown += [("itself", case.images[:4, :1])] if client == clients[0] else []
            for name, noise in UPLOADS.items():
                told = Message({"delta": case.delta})
                if noise is not None:
                    uniform = repeatable(torch.Generator().manual_seed(client))
                    told = protect(Message(), told, Protection(clip=CLIP, noise=noise), uniform)
                found = invert(model, theta, told["delta"], case.labels, box, client, case)
                found = levelled(found, others, box)
                found = matched(case.images[:, :1], found, case.labels)
                own, alike, nearest, share = score(case, found, others, box)
                rows.append({
                    "upload of": case.name, "sent": name, "client": str(client), "images": str(len(case.labels)),
                    "psnr": f"{own:.3f}", "ssim": f"{alike:.4f}", "psnr with the nearest": f"{nearest:.3f}",
                    "nearer to itself": f"{share:.2f}", "effort": f"{effort:g}", "revision": revision() or "",
                })  # fmt: skip
                shown += [(name, found[:4])] if client == clients[0] else []
                print(*rows[-1].values(), flush=True)
    return rows, shown


def draw(shown: list[tuple[str, Tensor]], path: Path) -> None:
    """A column for each image, a row for each upload."""
    drawing, rows = plt.subplots(len(shown), 4, figsize=(5, 0.9 * len(shown)), layout="constrained")
    for row, (name, images) in zip(rows, shown, strict=True):
        for axes in row:
            axes.axis("off")
        for axes, image in zip(row, images, strict=False):
            axes.imshow(image[0], cmap="grey")
        row[0].text(-0.15, 0.5, name, ha="right", va="center", fontsize=8, transform=row[0].transAxes)
    drawing.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", nargs="+", type=int, default=[0], help="whose uploads are inverted")
    parser.add_argument("--effort", type=float, default=1.0, help="of 1000 steps of the search, 400 for a visit")
    parser.add_argument("--keep", action="store_true", help="add the rows to results/, and draw the figure in docs/")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, shown = inversion(given.clients, given.effort)
    if given.keep:
        keep_rows("inversion.csv", rows, ["upload of", "sent", "client", "effort"])
        draw(shown, Path(__file__).parents[1] / "docs" / "inversion.png")


if __name__ == "__main__":
    main()
