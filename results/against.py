"""Does this tree still compute what an earlier revision did? `python results/against.py REVISION [METHOD...]`

Both run the same configuration on this machine, with few rounds, and every accuracy and every tensor of the final state
that both have is compared to the bit. Results kept from another kind of processor cannot show that: its sums differ.
Needs CIFAR-10 under PFEDDSH_DATA, and git.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from pfeddsh.storage.records import read_record

ROOT = Path(__file__).parents[1]
FIVE = ["fedavg", "fedper", "fedrep", "pfedhn", "local"]


def run(source: Path, method: str, out: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """What a source tree's program makes of it."""
    command = [sys.executable, "-m", "pfeddsh", "run", "--dataset", "cifar10", "--method", method, "--out", str(out)]
    command += ["--schedule", "80+20", "--set", "rounds_first=12", "--set", "rounds_later=6"]
    own = {"PYTHONPATH": str(source / "src"), "PFEDDSH_CACHE": str(out.parent / "cache")}
    subprocess.run(command, env={**os.environ, **own}, check=True, stdout=subprocess.DEVNULL)
    last = max((out / "state").glob("snapshot-*.safetensors"))
    return json.loads((out / "results.json").read_text()), read_record(last).tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("methods", nargs="*", default=FIVE)
    choice = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder, old = Path(name), Path(name) / "old" / "source"
        old.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", choice.revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=old, input=archive, check=True)
        for method in choice.methods:
            before, then = run(old, method, folder / "old" / method)
            after, now = run(ROOT, method, folder / "new" / method)
            numbers = all(before[field] == after[field] for field in ("batch", "acc", "local"))
            common = then.keys() & now.keys()
            equal = [key for key in common if torch.equal(then[key], now[key])]
            said = "the same accuracies" if numbers else "other accuracies"
            print(f"{method}: {said}, {len(equal)} of {len(common)} tensors have the same bits", flush=True)
            failed |= not numbers or len(equal) < len(common)
    sys.exit(failed)


if __name__ == "__main__":
    main()
