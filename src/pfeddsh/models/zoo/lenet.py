"""LeNet-5: its arithmetic is written by hand (`models/lenet.py`, `models/fast.py`)."""

from pfeddsh.models.lenet import lenet

__all__ = ["lenet"]
