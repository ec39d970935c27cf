"""Who owns what, for people: a table for the terminal and a picture of clients x classes."""

from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from pfeddsh.data.datasets import Dataset
from pfeddsh.data.partition import Partition
from pfeddsh.errors import UserError

TOP = 3  # classes named per client


def summary(partition: Partition) -> str:
    """How unequal the clients are, in two sentences."""
    sizes, tests = partition.train_counts.sum(1), partition.test_counts.sum(1)
    return (
        f"{partition.clients} clients with {sizes.min()} to {sizes.max()} train images (median {np.median(sizes):.0f}) "
        f"and {tests.min()} to {tests.max()} test images (median {np.median(tests):.0f}). "
        f"90 % of a client's images are of {_main_classes(partition):.1f} classes on average."
    )


def _main_classes(partition: Partition) -> float:
    """How few classes make up 90 % of a client's training images, on average."""
    largest_first = -np.sort(-partition.train_counts, axis=1)
    reached = np.cumsum(largest_first, axis=1) >= 0.9 * largest_first.sum(axis=1, keepdims=True)
    return float(np.mean(np.argmax(reached, axis=1) + 1))


def notes(dataset: Dataset) -> str:
    """What the data are and what was done to them, a sentence a line."""
    clients = f", of {len(dataset.client_names)} clients" if dataset.client_names else ""
    counts = f"{len(dataset.y_train)} train and {len(dataset.y_test)} test, {dataset.classes} classes{clients}"
    return "\n".join(f"{dataset.name}: {note}" for note in (counts, *dataset.notes))


def show(dataset: Dataset, partition: Partition) -> RenderableType:
    """A table of the clients with the summary below it."""
    table = Table(title=f"{dataset.name}: who owns what")
    for heading in ("client", "train", "test", "classes"):
        table.add_column(heading, justify="right")
    table.add_column("most of")
    for client, (train, test) in enumerate(zip(partition.train_counts, partition.test_counts, strict=True)):
        top = [label for label in np.argsort(-train, kind="stable")[:TOP] if train[label]]
        most = ", ".join(f"{dataset.class_names[label]} {train[label] / train.sum():.0%}" for label in top)
        name = escape(partition.names[client]) if partition.names else str(client)
        table.add_row(name, str(train.sum()), str(test.sum()), str(np.count_nonzero(train)), most)
    return Group(table, summary(partition))


def draw(partition: Partition, dataset: Dataset, path: Path) -> None:
    """A picture (PNG, SVG or PDF by the suffix): colour is the number of images, bars are the clients' sizes."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    counts = partition.train_counts.T
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    bars, grid = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3])
    bars.bar(range(partition.clients), counts.sum(0), width=0.8, color="#4d4d4d")
    bars.set_ylabel("train images")
    bars.set_title(f"{dataset.name}: training images per client and class", loc="left")
    bars.spines[["top", "right"]].set_visible(False)
    image = grid.imshow(
        np.ma.masked_equal(counts, 0),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        norm=LogNorm(1, max(2, counts.max())),
    )
    grid.set_xlabel("client")
    if dataset.classes <= 30:
        grid.set_yticks(range(dataset.classes), dataset.class_names)
    else:
        grid.set_ylabel("class")
    figure.colorbar(image, ax=grid, label="images (white: none)", format="{x:.0f}")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the picture a name, for instance {path / 'clients.png'}")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture {path} ({error})") from error
