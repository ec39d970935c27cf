"""Replay of one step for 85 clients: on the pool and over groups of clients, against the straightforward loop.

The straightforward loop takes one client at a time on one core and writes everything with autograd: invert, ask every
client for its opinion on every image, fine-tune the fully connected layers of a copy of the network.
"""

import time

import torch
import torch.nn.functional as F

from pfeddsh import Config, replay
from pfeddsh.federation import engines
from pfeddsh.federation.workbench import SERVER, Call, Workbench
from pfeddsh.messages import Message, State
from pfeddsh.methods.pfeddsh import PFedDSH

IMAGES = 600


def prepare() -> tuple[Workbench, PFedDSH, State]:
    """A federation of 80 and 5 newcomers at the end of step 2, untrained: replay costs the same."""
    bench = Workbench(Config(schedule="80+5", options={"images": IMAGES}))
    method = bench.method
    assert isinstance(method, PFedDSH)
    state = method.init()
    generator = torch.Generator().manual_seed(0)
    for step in (1, 2):
        cards = {k: bench.run(Call("card", bench.visit(step, 0, k)))[0] for k in bench.plan.batch(step)}
        method.open_step(state, step, 1, cards)
        models = method.download(state, list(cards))
        noise = torch.randn(64, 3, 32, 32, generator=generator)
        reports = {k: Message({"statistics": bench.task.model.calibrate(m["theta"], noise)}) for k, m in models.items()}
        method.close_step(state, reports)
    return bench, method, state


def straightforward(bench: Workbench, method: PFedDSH, state: State) -> None:
    """One client at a time, as one would first write it."""
    model = bench.task.model
    clients = [int(k) for k in state.facts["joined"]]
    models = method.originals(state, clients)
    thetas = {k: m["theta"] for k, m in models.items()}
    statistics = {k: state[f"statistics/{k}"] for k in clients}
    generator = torch.Generator().manual_seed(0)
    inverted = clients[-20:]
    pool = []
    for k in inverted:
        labels = torch.multinomial(state[f"histogram/{k}"], IMAGES // len(inverted), replacement=True)
        how = method.settings.how_to_invert()
        pool.append(replay.invert(model, thetas[k], statistics[k], None, labels, how, generator)[0])
    images = torch.cat(pool)
    for k in clients:
        with torch.no_grad():
            opinions = torch.stack([model.forward(thetas[j], images, statistics[j]) for j in clients[:1]])
        wanted = torch.softmax(opinions.mean(0), 1)
        dense = thetas[k][model.dense].clone().requires_grad_()
        fixed = thetas[k][: model.dense.start]
        optimiser = torch.optim.SGD([dense], lr=0.01, momentum=0.9)
        for _ in range(replay.Study().passes):
            for batch in torch.randperm(len(images), generator=generator).split(64):
                logits = model.forward(torch.cat([fixed, dense]), images[batch], statistics[k])
                optimiser.zero_grad()
                F.cross_entropy(logits, wanted[batch]).backward()
                optimiser.step()
    with torch.no_grad():  # every client's opinion once: the loop above asked one, so as not to ask 85 times 85
        for j in clients:
            model.forward(thetas[j], images, statistics[j])


def main() -> None:
    torch.set_num_threads(1)
    bench, method, state = prepare()
    began = time.perf_counter()
    straightforward(bench, method, state)
    slow = time.perf_counter() - began
    pool = engines.Pool(bench.config)

    def compute(job: str, messages: list[Message]) -> list[Message]:
        visits = [bench.visit(2, i, SERVER) for i in range(len(messages))]
        futures = [pool.submit(Call(job, v, m)) for v, m in zip(visits, messages, strict=True)]
        return [future.result()[0] for future in futures]

    first = next(iter(bench.plan.batch(1)))
    pool.submit(Call("card", bench.visit(1, 0, first))).result()  # the workers start
    began = time.perf_counter()
    method.replay(state, compute)
    fast = time.perf_counter() - began
    pool.close()
    print(f"replay for 85 clients, straightforward, one core   {slow:6.1f} s")
    print(f"replay for 85 clients, grouped, pool               {fast:6.1f} s")
    print(f"ratio                                              {slow / fast:6.2f}   (at least 2 wanted)")


if __name__ == "__main__":
    main()
