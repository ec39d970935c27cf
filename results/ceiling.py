"""What the label prior in training costs: one model on pooled images, with and without the prior of each image's owner.

python results/ceiling.py [--seed 100]: step 1 of CIFAR-10, 80+20 (PFEDDSH_DATA), 3,200 steps of 128 images, as many as
200 rounds of four clients take. Served with every client's prior, by pooled statistics. No client could train so; the
difference tells how much of the way to this ceiling no method can go that compares only images of the same client.
Adds a row to results/ceiling.csv, in place of an earlier one of that seed.
"""

import argparse
import math

import torch
from runs import keep

from pfeddsh.configure import build
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Workbench
from pfeddsh.methods.base import pooled
from pfeddsh.models.training import cross_entropy

STEPS, BATCH = 3200, 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=100)
    config = build({"dataset": "cifar10", "schedule": "80+20", "seed": parser.parse_args().seed, "method": "central"})
    bench = Workbench(config)
    with one_thread():
        with_prior, without = (served(bench, trained(bench, told)) for told in (True, False))
    row = {"seed": str(config.seed), "without prior": f"{without:.2f}", "with the owner's prior": f"{with_prior:.2f}"}
    keep("ceiling.csv", [row], ["seed"])


def trained(bench: Workbench, told: bool) -> torch.Tensor:
    """One model, by SGD on images drawn from all clients of the first batch."""
    clients, method, seed = bench.plan.batch(1), bench.method, bench.config.seed
    shards = [bench.shard(k) for k in clients]
    images = torch.cat([shard.train[0] for shard in shards]).permute(0, 2, 3, 1).contiguous()
    labels = torch.cat([shard.train[1] for shard in shards])
    priors = torch.cat([method.prior(shard).expand(len(shard.train[1]), -1) for shard in shards])
    theta, drawn = bench.task.theta0.clone(), torch.Generator().manual_seed(seed)
    velocity = torch.zeros_like(theta)
    for step in range(STEPS):
        batch = torch.randint(len(labels), (BATCH,), generator=drawn)
        logits = method.trainer.forward(theta, images[batch].permute(0, 3, 1, 2))
        _, d = cross_entropy(logits + priors[batch] if told else logits, labels[batch])
        velocity.mul_(bench.config.momentum).add_(method.trainer.backward(d))
        theta.sub_(velocity, alpha=0.5 * bench.config.lr * (1 + math.cos(math.pi * step / STEPS)))
    return theta


def served(bench: Workbench, theta: torch.Tensor) -> float:
    """Mean accuracy of the first batch with each client's prior."""
    method, shards = bench.method, [bench.shard(k) for k in bench.plan.batch(1)]
    statistics = pooled(method.model, [method.model.calibrate(theta, shard.train[0]) for shard in shards])
    right = [
        (method.model.forward(theta, shard.test[0], statistics) + method.prior(shard)).argmax(1) == shard.test[1]
        for shard in shards
    ]
    return 100 * sum(float(one.float().mean()) for one in right) / len(right)


if __name__ == "__main__":
    main()
