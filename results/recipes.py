"""pFedHN and PeFLL as their authors' repositories have them, on our split and budget: `python results/recipes.py`.

Written from the published algorithms with autograd through a hypernetwork of the original shape, one server and its
clients in one process. It is what a careful user of the originals gets in step 1; ours must not be below. Adds a row to
results/recipes.csv, in place of an earlier one with the same settings.
"""

import argparse
import math

import torch
from runs import keep
from torch import Tensor, nn

from pfeddsh.config import Config
from pfeddsh.federation.workbench import Workbench
from pfeddsh.models.training import sgd_epoch


class Hypernetwork(nn.Module):
    """Four linear layers of 100, then one linear head for each tensor of the target."""

    def __init__(self, inputs: int, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        layers = [nn.Linear(inputs, 100)]
        for _ in range(3):
            layers += [nn.ReLU(), nn.Linear(100, 100)]
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(100, math.prod(shape)) for shape in shapes.values())

    def forward(self, embedding: Tensor) -> Tensor:
        hidden = self.trunk(embedding)
        return torch.cat([head(hidden) for head in self.heads])


class Describe(nn.Module):
    """PeFLL's embedding network: LeNet with 16 and 32 kernels, labels as further input channels, mean over images."""

    def __init__(self, classes: int, outputs: int) -> None:
        super().__init__()
        self.classes = classes
        self.net = nn.Sequential(
            nn.Conv2d(3 + classes, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(800, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
        )  # fmt: skip

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        planes = nn.functional.one_hot(labels, self.classes).float()[:, :, None, None].expand(-1, -1, 32, 32)
        return self.net(torch.cat([images, planes], 1)).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", choices=["pfedhn", "pefll"])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--rate", type=float, help="of the server; the original's by default")
    choice = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(choice.seed)
    bench = Workbench(Config(dataset="cifar10", method="local", schedule="80+20", seed=choice.seed))
    model, trainer, plan = bench.task.model, bench.task.model.trainer(), bench.plan
    clients = plan.batch(1)
    width = 1 + len(clients) // 4
    target = Hypernetwork(width, model.shapes)
    if choice.recipe == "pfedhn":
        source: nn.Module = nn.Embedding(plan.clients, width)
        optimiser: torch.optim.Optimizer = torch.optim.SGD(
            [*target.parameters(), *source.parameters()], choice.rate or 1e-2, momentum=0.9, weight_decay=1e-3
        )
    else:
        source = Describe(model.classes, width)
        optimiser = torch.optim.Adam([*target.parameters(), *source.parameters()], choice.rate or 2e-4)
    constants: list[Tensor] = []

    def embed(client: int, images: int | None = 32) -> Tensor:
        if choice.recipe == "pfedhn":
            return source(torch.tensor(client))
        x, y = bench.shard(client).train
        some = torch.randperm(len(y))[:images]
        told = source(x[some], y[some])
        if not constants:  # of the first client, once, as in the original
            constants.extend([told.detach().mean(), told.detach().std()])
        return (told - constants[0]) / constants[1]

    for round in range(plan.rounds(1)):
        optimiser.zero_grad()
        cohort = plan.cohort(1, round)
        for client in cohort:
            theta = target(embed(client))
            trained, visit = theta.detach().clone(), bench.visit(1, round, client)
            x, y = bench.shard(client).train
            with torch.no_grad():
                sgd_epoch(trainer, trained, x, y, batches=visit.batches(len(y)), lr=visit.lr, momentum=visit.momentum)
            theta.backward((theta.detach() - trained) / len(cohort))
        nn.utils.clip_grad_norm_([*target.parameters(), *source.parameters()], 50)
        optimiser.step()
    accuracies = []
    with torch.no_grad():
        for client in clients:
            data, theta = bench.shard(client), target(embed(client, None))
            logits = model.forward(theta, data.test[0], model.calibrate(theta, data.train[0]))
            accuracies.append(100 * float((logits.argmax(1) == data.test[1]).float().mean()))
    settings = {"recipe": choice.recipe, "seed": str(choice.seed), "server rate": str(choice.rate or "original")}
    keep("recipes.csv", [settings | {"step 1 accuracy": f"{sum(accuracies) / len(accuracies):.2f}"}], list(settings))


if __name__ == "__main__":
    main()
