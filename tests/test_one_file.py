"""What it takes to ship one more method, network, protection or dataset: one file each, nothing else to edit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pfeddsh

METHOD = '''
from pfeddsh.methods.fedavg import FedAvg

class Mine(FedAvg):
    """One of my own."""
'''
NETWORK = '''
from torch import nn

__all__ = ["tiny"]

def tiny(classes, shape):
    """A single layer."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
'''
ASKED = """
from pfeddsh.configure import build
from pfeddsh.data.known import names
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms.protection import Unprotected
from pfeddsh.methods.registry import METHODS

bench = Workbench(build({"method": "my-method", "model": "tiny"}))
assert METHODS["my-method"].summary == "One of my own." and type(bench.method).__name__ == "Mine"
assert bench.task.model.size == 64 * 10 + 10
hyper = Workbench(build({"method": "pfeddsh-hyper", "options": {"protection": "mine"}})).method
assert type(hyper.protection) is Unprotected
assert "my-set" in names()
print(list(METHODS)[-1])
"""


def test_one_file_each(tmp_path):
    source = tmp_path / "pfeddsh"
    shutil.copytree(Path(pfeddsh.__file__).parent, source, ignore=shutil.ignore_patterns("__pycache__"))
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.py")}
    (source / "methods" / "my_method.py").write_text(METHOD)
    (source / "models" / "zoo" / "tiny.py").write_text(NETWORK)
    with (source / "mechanisms" / "protection.py").open("a") as file:
        file.write('\nPROTECTIONS["mine"] = Unprotected\n')
    with (source / "data" / "known.py").open("a") as file:
        file.write('\nKNOWN["my-set"] = KNOWN["cifar10"]\n')
    now = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.py")}
    touched = [name for name, content in now.items() if files.get(name) != content]
    assert len(touched) == 4, "one file each"
    own = {**os.environ, "PYTHONPATH": str(tmp_path)}
    asked = subprocess.run([sys.executable, "-c", ASKED], env=own, capture_output=True, text=True)
    assert asked.stdout == "my-method\n", asked.stderr
