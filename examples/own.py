"""A network and a method of one's own, on worker processes and beside others: `python examples/own.py [OUT]`."""

import sys

from torch import nn

import pfeddsh
from pfeddsh.methods.fedavg import FedAvg

SMALL = {"rounds_first": 4, "rounds_later": 2, "sample_fraction": 0.5}


class Network(nn.Sequential):
    """Any module that gives logits, made for so many classes and images of this shape."""

    def __init__(self, classes, shape):
        small = [nn.Conv2d(shape[0], 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
        super().__init__(*small, nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, classes))


class HalfWay(FedAvg):
    """FedAvg whose server goes half of the way."""

    def aggregate(self, state, uploads):
        before = state["theta"].clone()
        super().aggregate(state, uploads)
        state["theta"] = (before + state["theta"]) / 2


if __name__ == "__main__":  # workers import this file for its classes
    out = sys.argv[1] if len(sys.argv) > 1 else "runs/own"
    found = pfeddsh.run(pfeddsh.Config(method=HalfWay, model=Network, schedule="6+2", **SMALL), f"{out}/alone")
    print(f"on the pool: {found['acc_end_mean']:.1f} %")
    plan = {"methods": ["fedavg", HalfWay], "schedules": ["6+2"], "set": {"model": Network, **SMALL}}
    for name, found in pfeddsh.compare(plan, f"{out}/compared").items():
        print(f"{name}: {found['acc_end_mean']:.1f} %")
