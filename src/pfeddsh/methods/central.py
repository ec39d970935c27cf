"""Central: one model trained on the pooled images of everyone onboarded so far. The setting forbids it.

It is the ceiling of what sharing can bring: as many images a round as a cohort holds on average, drawn from all, with
the protocol's learning rate and momentum. What separates it from FedAvg is the skew of the clients and nothing else.
By the registry's preset it is served with each client's prior and pooled statistics. In later steps it goes on training
on everyone's images, so its RI has more training in it as well as newcomers' images.
"""

from pfeddsh.methods.fedavg import FedAvg


class Central(FedAvg):
    """State and messages are those of FedAvg; the one who trains in a round is handed images of everyone's."""

    pools_data = True
    sends_changes = False  # those of no client
