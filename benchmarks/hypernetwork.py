"""Server time and memory of a round, against the same round through autograd on the full hypernetwork.

A round is what the server does for a cohort of 4: make their weights, take in their updates. Three sides: the forms
with a hypernetwork (`pfeddsh-hyper`, `pfeddsh-paper`), the default, which has none, and autograd. Each runs in a
process of its own, so that peak memory can be read off; they take turns. Times are seconds of one core. With `--keep`
they go to results/measured.csv.
"""

import resource
import statistics
import subprocess
import sys
import time

import torch
from kept import keep

from pfeddsh.mechanisms import hypernet
from pfeddsh.messages import Message
from pfeddsh.methods import registry
from pfeddsh.methods.task import Task
from pfeddsh.models.lenet import LeNet

COHORT, ROUNDS, TURNS = 4, 12, 3


def material() -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    net = hypernet.create(LeNet(10).init(generator), generator)
    return net, torch.randn(COHORT, 32, generator=generator), 0.01 * torch.randn(COHORT, 62_006, generator=generator)


def ours() -> list[float]:
    net, embeddings, deltas = material()
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        keys = torch.stack([hypernet.key(net, e) for e in embeddings])
        hypernet.generate(net, keys)
        at_keys = hypernet.update(net, deltas, keys, rate=0.7, bias_rate=0.3)
        gradient = hypernet.trunk_gradient(net, embeddings, at_keys)
        net["W1"].sub_(gradient["W1"])
        embeddings = embeddings - gradient["embeddings"]
        times.append(time.process_time() - began)
    return times


def default() -> list[float]:
    torch.set_num_threads(1)
    method = registry.create("pfeddsh", {}, Task.create(10, 0))
    state, generator = method.init(), torch.Generator().manual_seed(0)
    cards = {k: Message() for k in range(COHORT)}
    method.open_step(state, 1, ROUNDS, cards)
    uploads = {k: Message({"delta": 0.01 * torch.randn(62_006, generator=generator)}, {"samples": 500}) for k in cards}
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        method.download(state, list(cards))
        method.aggregate(state, uploads)
        times.append(time.process_time() - began)
    return times


def autograd() -> list[float]:
    net, embeddings, deltas = material()
    parameters = {name: tensor.requires_grad_() for name, tensor in net.items()}
    embeddings = embeddings.requires_grad_()
    optimiser = torch.optim.SGD([*parameters.values(), embeddings], lr=0.7)
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        h = torch.nn.functional.normalize(torch.relu(embeddings @ parameters["W1"].t() + parameters["b1"]), dim=1)
        theta = h @ parameters["W2"].t() + parameters["b2"]
        optimiser.zero_grad()
        theta.backward(deltas / COHORT)
        optimiser.step()
        times.append(time.process_time() - began)
    return times


def measure(side: str) -> tuple[float, float]:
    """Median seconds of a round and peak megabytes of one side, in a process of its own."""
    output = subprocess.run([sys.executable, __file__, side], capture_output=True, text=True, check=True).stdout
    seconds, megabytes = output.split()
    return float(seconds), float(megabytes)


def main(kept: bool) -> None:
    idle = measure("idle")[1]
    turns = [(measure("ours"), measure("autograd"), measure("default")) for _ in range(TURNS)]
    own, full, plain = (statistics.median(turn[i][0] for turn in turns) for i in (0, 1, 2))
    ratio = statistics.median(turn[0][0] / turn[1][0] for turn in turns)
    weights = 4 * 62_006 * 512 / 1e6
    print(f"server round, rank-m in place   {1e3 * own:7.1f} ms")
    print(f"server round, autograd          {1e3 * full:7.1f} ms")
    print(f"ratio, median of {TURNS} turns        {ratio:7.3f}   (at most 0.2 wanted)")
    print(f"server round of the default     {1e3 * plain:7.1f} ms")
    print(f"ratio to autograd's             {plain / full:7.3f}   (at most 0.15 wanted)")
    for name, i in (("rank-m in place", 0), ("autograd", 1)):
        peak = statistics.median(turn[i][1] for turn in turns) - idle
        print(f"peak memory, {name:<18} {peak:7.0f} MB = {peak / weights:.2f} x the hypernetwork's {weights:.0f} MB")
    if kept:
        for case, i in (("hypernetwork", 0), ("autograd", 1), ("default", 2)):
            keep(
                "server round", case, ms=[1e3 * turn[i][0] for turn in turns], mb=[turn[i][1] - idle for turn in turns]
            )


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--keep"]):
        times = {"ours": ours, "autograd": autograd, "default": default, "idle": lambda: [0.0]}[sys.argv[1]]()
        print(statistics.median(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    else:
        main(kept=bool(sys.argv[1:]))
