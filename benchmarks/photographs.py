"""Photographs of 224x224 pixels with `resnet18`: peak memory of a short run, and the size of its hypernetwork.

Makes a folder of JPEG files (coloured noise with one shape a class), trains pFedDSH on it for a few rounds on the pool,
and samples the memory of all processes meanwhile. At most 4 GB are wanted, and 300 MB for the hypernetwork.
With `--keep`, the numbers go to results/measured.csv.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from pfeddsh import Config, run
from pfeddsh.methods import registry
from pfeddsh.methods.task import Task

SIDE, CLASSES, EACH = 224, 4, 40


def photographs(folder: Path) -> None:
    """One folder a class; its images have a bright square in one of the corners."""
    stream = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"corner-{label}").mkdir(parents=True)
        top, left = SIDE // 2 * (label // 2), SIDE // 2 * (label % 2)
        for number in range(EACH):
            pixels = stream.integers(0, 160, (SIDE, SIDE, 3), dtype=np.uint8)
            pixels[top + 20 : top + 90, left + 20 : left + 90] += 90
            Image.fromarray(pixels).save(folder / f"corner-{label}" / f"{number}.jpg", quality=90)


class Peak(threading.Thread):
    """The largest sum of proportional set sizes of this process and all below it, in MB, by ten looks a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.most = threading.Event(), 0.0

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.most = max(self.most, sum(map(memory, family(os.getpid()))))


def family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _words(children):
            found += family(int(child))
    return found


def memory(pid: int) -> float:
    words = _words(Path(f"/proc/{pid}/smaps_rollup"))
    return int(words[words.index("Pss:") + 1]) / 1e3 if "Pss:" in words else 0.0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # the process has ended
        return []


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PFEDDSH_CACHE"] = str(folder / "cache")
        photographs(folder / "photographs")
        config = Config(
            dataset=str(folder / "photographs"), model="resnet18", schedule="4+2", partition="iid", rounds_first=3,
            rounds_later=2, sample_fraction=0.5, batch_size=16,
        )  # fmt: skip
        peak, began = Peak(), time.perf_counter()
        peak.start()
        results = run(config, folder / "run")
        peak.over.set()
        seconds, images = time.perf_counter() - began, results["environment"]["images"]
    task = Task.create(CLASSES, 0, "resnet18", (3, SIDE, SIDE))
    hyper = registry.create("pfeddsh-hyper", registry.find("pfeddsh-hyper").options({}), task)
    size = sum(tensor.nbytes for part, tensor in hyper.init().tensors.items() if part in ("W1", "b1", "W2", "b2"))
    print(f"resnet18, {task.model.size:,} weights; {'; '.join(images)}")
    print(f"pfeddsh, {config.schedule} clients, 3+2 rounds   {seconds:8,.0f} s")
    print(f"peak memory with {os.cpu_count()} workers         {peak.most:8,.0f} MB (sum of proportional set sizes)")
    print(f"hypernetwork of pfeddsh-hyper         {size / 1e6:8,.1f} MB")
    if sys.argv[1:] == ["--keep"]:
        from kept import keep

        keep("photographs", "resnet18", peak=peak.most, hypernetwork=size / 1e6, seconds=seconds)


if __name__ == "__main__":
    main()
