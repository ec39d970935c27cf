"""What people see of a partition."""

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from pfeddsh.data import show
from pfeddsh.data.datasets import Dataset
from pfeddsh.data.partition import Partition
from pfeddsh.errors import UserError


@pytest.fixture
def example():
    """Client 0 holds nine apples and a pear; client 1 five pears and five figs."""
    y_train = np.array([0] * 9 + [1] + [1] * 5 + [2] * 5)
    x = np.zeros((20, 3, 32, 32), np.uint8)
    ones = np.ones(3, np.float32)
    dataset = Dataset("fruit", 3, ("apple", "pear", "fig"), x, y_train, x[:4], np.array([0, 0, 1, 2]), ones, ones, "")
    train, test = np.split(np.arange(20), 2), (np.array([0, 1]), np.array([2, 3]))
    counts = np.array([[9, 1, 0], [0, 5, 5]])
    return dataset, Partition(tuple(train), test, counts, np.array([[2, 0, 0], [0, 1, 1]]))


def test_the_table_tells_sizes_and_main_classes(example):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(show.show(*example))
    rows = [line.replace("│", " ").split() for line in capture.get().splitlines()]
    assert ["0", "10", "2", "2", "apple", "90%,", "pear", "10%"] in rows
    assert ["1", "10", "2", "2", "pear", "50%,", "fig", "50%"] in rows


def test_the_summary_counts_the_classes_that_make_nine_tenths(example):
    text = show.summary(example[1])
    assert "2 clients with 10 to 10 train images (median 10)" in text
    assert "1.5 classes on average" in text  # one class for client 0, two for client 1


def test_the_picture_is_written(example, tmp_path):
    dataset, partition = example
    show.draw(partition, dataset, tmp_path / "who.png")
    with Image.open(tmp_path / "who.png") as image:
        assert image.width > 800 and len(image.convert("RGB").getcolors(1 << 24) or []) > 10
    show.draw(partition, dataset, tmp_path / "who.svg")
    assert "</svg>" in (tmp_path / "who.svg").read_text()


def test_a_picture_that_cannot_be_written_is_named(example, tmp_path):
    dataset, partition = example
    for path in (tmp_path / "none" / "who.png", tmp_path / "who.what"):
        with pytest.raises(UserError, match=path.name):
            show.draw(partition, dataset, path)
