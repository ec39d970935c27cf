"""Run kept results again, and compare every accuracy to the bit: `python results/repeat.py [NAME...]`.

Without names, six methods that have not changed since: what grew around them must not have moved a bit. Needs the
datasets under PFEDDSH_DATA. Bits are those of one kind of processor and one version of PyTorch: elsewhere, run the
revision that `environment.revision` names as well, and compare with its results by `--kept FOLDER`. With `--keep`, how
many accuracies differ goes to results/measured.csv.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from measured import keep

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.federation.run import resume, run
from pfeddsh.results.metrics import completed

HERE = Path(__file__).parent
METHODS = ("local", "fedavg", "fedper", "fedrep", "pfedhn", "pfeddsh")
SIX = [f"tiny-imagenet-{method}-80+20-seed0" for method in METHODS]
COMPARED = ("batch", "acc", "acc_before_replay", "local")


class Interrupt:
    """Stops a run after so many rounds, as Ctrl-C does."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        self.left -= kind == "round"
        if self.left == 0 and kind == "round":
            raise KeyboardInterrupt


def repeat(config: Config, out: Path, interrupt: int) -> dict[str, Any]:
    if not interrupt:
        return run(config, out)
    try:
        run(config, out, [Interrupt(interrupt)])
    except KeyboardInterrupt:
        print(f"interrupted after {interrupt} rounds", flush=True)
    return resume(out)


def differences(kept: Any, found: Any) -> list[float]:
    """How far apart numbers at the same place are, where they are not equal; infinite where one is missing."""
    if isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        return [gap for pair in zip(kept, found, strict=True) for gap in differences(*pair)]
    if kept == found:
        return []
    return [abs(kept - found) if isinstance(kept, float) and isinstance(found, float) else float("inf")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=SIX)
    parser.add_argument("--kept", type=Path, default=HERE, help="the folder of the results to compare with")
    parser.add_argument("--engine", default="pool", help="serial: one core, the same bits")
    parser.add_argument("--interrupt", type=int, default=0, help="stop after so many rounds, and resume")
    parser.add_argument("--keep", action="store_true", help="put it into results/measured.csv, whatever it is")
    choice = parser.parse_args()
    folder, failed = HERE.parent / "runs" / f"repeat-{choice.engine}", False
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["PFEDDSH_CACHE"] = str(folder / "cache")  # controls that another revision left must not count
    for name in choice.names:
        kept = json.loads((choice.kept / f"{name}.json").read_text())
        named = {key: kept[key] for key in ("dataset", "method", "schedule", "seed", "options")}
        config = build({"engine": choice.engine} | named | kept["protocol"], name)
        found = repeat(config, folder / name, choice.interrupt)
        for field in COMPARED:
            gaps = differences(kept[field], found[field])
            said = f"{len(gaps)} numbers differ, at most by {max(gaps):.2f}" if gaps else "the same bits"
            print(f"{name}, {field} (kept from {kept['environment']['revision']}): {said}", flush=True)
            failed |= bool(gaps)
        if choice.keep:
            count = sum(value is not None for row in kept["acc"] for value in row)
            ends = [completed(result)["acc_end_mean"] for result in (kept, found)]
            differ, moved = differences(kept["acc"], found["acc"]), ends[1] - ends[0]
            keep("repeat", name, of=count, differ=len(differ), most=max(differ, default=0.0), end=moved)
    sys.exit(failed and not choice.keep)


if __name__ == "__main__":
    main()
