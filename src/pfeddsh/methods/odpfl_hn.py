"""ODPFL-HN (Amosy et al. 2024): PeFLL whose embedding network sees no labels, so a late client needs none to join.

Nothing else distinguishes the two here: the authors have published no code, and of the rates of the one implementation
of its parts (SGD, 0.01) all descriptors become one. Standardising each number of the descriptor by the clients of step
1 is what keeps them apart: images alone hardly tell clients with skewed labels from each other.
"""

from pfeddsh.methods.pefll import PeFLL


class ODPFLHN(PeFLL):
    """State, settings and messages are PeFLL's; the embedding network has 3 input channels."""

    labelled = False
