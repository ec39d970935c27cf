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

    existing = "guard"
    presets = {"prior": {"prior": True}}
'''
NETWORK = '''
from torch import nn

__all__ = ["tiny"]

def tiny(classes, shape):
    """A single layer."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))
'''
PROTECTION = '''

class Halved(Unprotected):
    """Newcomers write half as much, from the first step on."""

    def write(self, state, clients, deltas, keys, rate, bias_rate):
        return super().write(state, clients, deltas, keys, rate / 2, bias_rate)


PROTECTIONS["halved"] = Halved
'''
ASKED = """
import sys
from pathlib import Path

from pfeddsh.compare.keys import stops
from pfeddsh.configure import build
from pfeddsh.data.known import names
from pfeddsh.federation.workbench import Workbench
from pfeddsh.federation.run import run
from pfeddsh.methods.registry import METHODS

bench = Workbench(build({"method": "my-method", "model": "tiny"}))
assert METHODS["my-method"].summary == "One of my own." and type(bench.method).__name__ == "Mine"
assert bench.task.model.size == 64 * 10 + 10
assert build({"method": "my-method"}).existing == "guard"
assert build({"method": "my-method-prior"}).options["prior"] and not build({"method": "my-method"}).options["prior"]
small = {"method": "pfeddsh-hyper", "schedule": "2+1", "rounds_first": 1, "rounds_later": 1, "engine": "serial"}
configs = [build({**small, "options": {"hidden": 8, "protection": name}}) for name in ("halved", "none", "projection")]
benches, first = [Workbench(c) for c in configs], [stops(c, "images")[0].key for c in configs]
assert first[1] == first[2] != first[0], "it acts in step 1"
assert [bench.method.frozen_trunk for bench in benches] == [True, False, True]
assert None not in run(configs[0], Path(sys.argv[1]))["acc"][-1]
assert "my-set" in names()
print(list(METHODS)[-2])
"""


def test_one_file_each(tmp_path):
    source = tmp_path / "pfeddsh"
    shutil.copytree(Path(pfeddsh.__file__).parent, source, ignore=shutil.ignore_patterns("__pycache__"))
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.py")}
    (source / "methods" / "my_method.py").write_text(METHOD)
    (source / "models" / "zoo" / "tiny.py").write_text(NETWORK)
    with (source / "mechanisms" / "protection.py").open("a") as file:
        file.write(PROTECTION)
    with (source / "data" / "known.py").open("a") as file:
        file.write('\nKNOWN["my-set"] = KNOWN["cifar10"]\n')
    now = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.py")}
    touched = [name for name, content in now.items() if files.get(name) != content]
    assert len(touched) == 4, "one file each"
    own = {**os.environ, "PYTHONPATH": str(tmp_path)}
    asked = subprocess.run([sys.executable, "-c", ASKED, tmp_path / "run"], env=own, capture_output=True, text=True)
    assert asked.stdout == "my-method\n", asked.stderr
