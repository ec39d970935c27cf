"""Central: one model trained on the pooled images of everyone onboarded so far. The setting forbids it.

It is the ceiling of what sharing can bring: as many images a round as a cohort holds on average, drawn from all, with
the protocol's learning rate and momentum. What separates it from FedAvg is the skew of the clients and nothing else.
Served as FedAvg is, with each client's prior and its own statistics taken anew by the registry's preset.
"""

from pfeddsh.methods.fedavg import FedAvg


class Central(FedAvg):
    """State and messages are those of FedAvg; the one who trains in a round is handed images of everyone's."""

    pools_data = True
    sends_changes = False  # those of no client
