"""Who owns what: every image of a dataset goes to exactly one client, train and test by the same proportions."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pfeddsh.errors import UserError, unknown
from pfeddsh.rng import numpy_stream

Labels = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

RULES = ("dirichlet", "iid", "classes=k", "natural")
TRIES = 20  # draws before images are moved instead


@dataclass(frozen=True, eq=False)
class Partition:
    """Sorted indices of each client's images, and how many of each class they are (clients x classes)."""

    train: tuple[npt.NDArray[np.int64], ...]
    test: tuple[npt.NDArray[np.int64], ...]
    train_counts: Counts
    test_counts: Counts
    names: tuple[str, ...] = ()  # of the clients, where the data name them

    @property
    def clients(self) -> int:
        return len(self.train)


def partition(
    y_train: Labels, y_test: Labels, *, classes: int, clients: int, rule: str, alpha: float, seed: int
) -> Partition:
    """Divide a dataset, given by its labels, among clients.

    `dirichlet`: each class is divided by proportions drawn from Dirichlet(alpha, ..., alpha), see `_dirichlet`.
    `iid`: equal parts at random. `classes=k`: each client holds k classes, each divided equally among its holders.
    Clients are exchangeable: their numbers are a random permutation, drawn last.

    >>> labels = np.arange(1000) % 10
    >>> parts = partition(labels, labels[:200], classes=10, clients=5, rule="classes=2", alpha=0.1, seed=0)
    >>> (parts.train_counts > 0).sum(axis=1).tolist()
    [2, 2, 2, 2, 2]
    """
    if clients < 1:
        raise UserError(f"clients = {clients}: at least one is needed")
    if len(y_train) < 2 * clients or len(y_test) < clients:
        raise UserError(
            f"{len(y_train)} train and {len(y_test)} test images are too few for {clients} clients "
            "(at least 2 and 1 each); use fewer clients or a larger dataset"
        )
    rng = numpy_stream(seed, "partition")
    sizes = np.stack([np.bincount(y, minlength=classes) for y in (y_train, y_test)])
    if rule == "dirichlet":
        counts = _dirichlet(sizes, clients, alpha, rng)
    elif rule == "iid":
        counts = [_iid(y, classes, clients, rng) for y in (y_train, y_test)]
    elif rule.startswith("classes="):
        counts = _classes(sizes, clients, rule.removeprefix("classes="), rng)
    else:
        raise unknown("partition rule", rule, RULES)
    numbers = rng.permutation(clients)
    train_counts, test_counts = (count[:, numbers] for count in counts)
    train = _hand_out(y_train, train_counts, rng)
    test = _hand_out(y_test, test_counts, rng)
    return Partition(train, test, train_counts.T.copy(), test_counts.T.copy())


def _least(images: int, clients: int, wanted: int, floor: int) -> int:
    """The minimum per client: the wanted number where the data allow it, else half of an equal share rounded down."""
    return wanted if images >= wanted * clients else max(floor, images // (2 * clients))


def _dirichlet(sizes: Counts, clients: int, alpha: float, rng: np.random.Generator) -> list[Counts]:
    """For each class, proportions over clients ~ Dirichlet(alpha), the same for train and test.

    Every client gets at least 32 train and 8 test images, or what `_least` allows where the data are fewer. Of at most
    20 draws the first that satisfies this is taken, else the one that lacks least; then single images move to the
    clients that are short (`_top_up`): train images towards the class mix a client drew, test towards its train mix.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise UserError(f"alpha = {alpha}: the Dirichlet parameter must be a positive number")
    least = np.array([_least(int(sizes[0].sum()), clients, 32, 2), _least(int(sizes[1].sum()), clients, 8, 1)])
    fewest = np.inf
    for _ in range(TRIES):
        drawn = rng.dirichlet(np.full(clients, alpha), size=sizes.shape[1])
        counts = [_apportion(drawn, size) for size in sizes]
        totals = np.stack([count.sum(0) for count in counts])
        lacking = np.maximum(least[:, None] - totals, 0).sum()
        if lacking < fewest:
            fewest, shares, (train, test) = lacking, drawn, counts
        if not lacking:
            break
    mix = shares * sizes[0][:, None]
    lost = np.flatnonzero(mix.sum(0) == 0)  # a tiny alpha can leave a client without any share: give it a class
    mix[rng.integers(len(mix), size=len(lost)), lost] = 1
    _top_up(train, mix, int(least[0]))
    _top_up(test, train.astype(np.float64), int(least[1]))
    return [train, test]


def _top_up(counts: Counts, mix: Shares, least: int) -> None:
    """Move single images, in place, until every client has the minimum.

    Each image is of the class in which the receiver is furthest behind its mix among those that can be had, and comes
    from the largest client that holds this class and has more than the minimum.
    """
    totals = counts.sum(0)
    for client in np.flatnonzero(totals < least):
        goal = least * mix[:, client] / mix[:, client].sum()
        while totals[client] < least:
            can_give = (counts > 0) & (totals > least)
            behind = np.where(can_give.any(1), goal - counts[:, client], -np.inf)
            label = int(np.argmax(behind))
            donor = int(np.argmax(np.where(can_give[label], totals, -1)))
            counts[label, donor] -= 1
            counts[label, client] += 1
            totals[donor] -= 1
            totals[client] += 1


def _iid(labels: Labels, classes: int, clients: int, rng: np.random.Generator) -> Counts:
    """Class counts of equal parts of a random order; sizes differ by one at most."""
    owner = rng.permutation(np.arange(len(labels)) % clients)
    return np.bincount(labels * clients + owner, minlength=classes * clients).reshape(classes, clients)


def _classes(sizes: Counts, clients: int, text: str, rng: np.random.Generator) -> list[Counts]:
    """Each client takes the k classes with the fewest holders so far, ties at random: holders differ by one at most."""
    present = np.flatnonzero(sizes[0])
    if not text.isdecimal() or not 1 <= int(text) <= len(present):
        raise UserError(f"classes={text}: expected a whole number from 1 to {len(present)}, e.g. classes=2")
    k = int(text)
    if k * clients < len(present):
        raise UserError(
            f"classes={k} with {clients} clients leaves some of the {len(present)} classes without an owner; "
            f"use classes={-(-len(present) // clients)} or more"
        )
    holds = np.zeros((sizes.shape[1], clients))
    for client in range(clients):
        order = np.lexsort((rng.random(len(present)), holds[present].sum(1)))
        holds[present[order[:k]], client] = 1
    shares = holds / np.maximum(holds.sum(1, keepdims=True), 1)
    counts = [_apportion(shares, n) for n in sizes]
    if counts[0].sum(0).min() < 2 or counts[1].sum(0).min() < 1:
        raise UserError(f"classes={k} leaves one of {clients} clients without images; use fewer clients")
    return counts


def _apportion(shares: Shares, sizes: Counts) -> Counts:
    """Whole numbers nearest to shares x size that add up to each size (largest remainders)."""
    exact = shares * sizes[:, None]
    counts = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(counts - exact, axis=1, kind="stable"), axis=1)
    counts += rank < (sizes - counts.sum(1))[:, None]
    return counts


def _hand_out(labels: Labels, counts: Counts, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], ...]:
    """Concrete images, at random, for the counts (classes x clients)."""
    clients = counts.shape[1]
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(clients), len(counts)), counts.ravel())
    by_owner = np.argsort(owner, kind="stable")
    return tuple(np.split(by_owner, np.cumsum(counts.sum(0))[:-1]))
