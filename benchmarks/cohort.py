"""Is one batched step for a whole cohort faster than its clients one after the other? `cohort.py [MODEL...] [--keep]`

`torch.func.vmap` over flat vectors, with SGD and momentum, against the trainers that clients use; four clients, the
same mini-batches, one thread. The two take turns; above 1, batching wins.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from kept import keep
from throughput import CASES
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pfeddsh.models import registry
from pfeddsh.models.autograd import normalisations
from pfeddsh.models.flat import Layout
from pfeddsh.models.training import sgd_epoch

CLIENTS, BATCH, BATCHES, TURNS, RATE, MOMENTUM = 4, 32, 4, 5, 0.01, 0.9


def main(name: str) -> list[float]:
    shape = (*CASES[name].shape, 1, 1)[:3]
    model, stream = registry.create(name, 10, shape), torch.Generator().manual_seed(0)
    images = torch.randn(CLIENTS, BATCHES * BATCH, *shape, generator=stream)
    labels = torch.randint(10, (CLIENTS, BATCHES * BATCH), generator=stream)
    first, trainer = model.init(stream), model.trainer()
    module = registry.find(name)(classes=10, shape=shape).train()
    for norm in normalisations(module).values():
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    layout, parts = Layout(model.shapes), torch.arange(BATCHES * BATCH).split(BATCH)

    def loss(theta: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, layout.views(theta), (images,)), labels)

    gradients = vmap(grad(loss))

    def one_by_one() -> Tensor:
        thetas = first.repeat(CLIENTS, 1)
        for theta, x, y in zip(thetas, images, labels, strict=True):
            sgd_epoch(trainer, theta, x, y, batches=parts, lr=RATE, momentum=MOMENTUM)
        return thetas

    def batched() -> Tensor:
        thetas = first.repeat(CLIENTS, 1)
        velocity = torch.zeros_like(thetas)
        for part in parts:
            velocity.mul_(MOMENTUM).add_(gradients(thetas, images[:, part], labels[:, part]))
            thetas.sub_(velocity, alpha=RATE)
        return thetas

    torch.testing.assert_close(batched(), one_by_one(), rtol=1e-3, atol=5e-3)  # and both are warm
    seconds: dict[str, list[float]] = {"one": [], "batched": []}
    for _ in range(TURNS):
        for kind, run in (("one", one_by_one), ("batched", batched)):
            began = time.process_time()
            run()
            seconds[kind].append(time.process_time() - began)
    ratios = [one / many for one, many in zip(*seconds.values(), strict=True)]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{name:9} batched / one by one: {statistics.median(ratios):.2f}   (each: {each})", flush=True)
    return ratios


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[name for name in CASES if name != "lenet"], metavar="MODEL")
    parser.add_argument("--keep", action="store_true", help="put what was measured into results/measured.csv")
    given = parser.parse_args()
    for name in given.models:
        ratios = main(name)
        if given.keep:
            keep("cohort", name, ratio=ratios)
