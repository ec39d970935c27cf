"""Membership: from the loss of the model that a client is served, was an image among those it trained on?

One threshold for all clients (Yeom et al. 2018). As a check that the attack can find something at all, the same is done
to clients that train alone and long. It uses the runs of benchmarks/privacy.py, or makes them:

    python benchmarks/membership.py --out runs/privacy --keep     # rows of results/membership.csv
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from kept import keep_rows
from privacy import measure, name
from sklearn.metrics import roc_auc_score, roc_curve

from pfeddsh.configure import build
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.workbench import Workbench
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.values import read

LEVELS = ((0.0, 0.0), (0.2, 0.0), (0.2, 0.015), (0.2, 0.05), (0.2, 0.15))  # clips and noises of the federations
SEED = 0
FALSE = 0.01  # false alarms among images that were not trained on
LONG = ("digits-long", "local", 0.0, 0.0)  # the check


def losses(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Losses of every client's served model on the images it trained on, and on its test images."""
    bench = Workbench(build(read(folder / "config.toml")))
    serving = Federation(bench, Serial(bench), Checkpoints(folder / "state"), []).serving
    seen, unseen = [], []
    for client in range(bench.plan.clients):
        served, data = serving.personal([client])[client], bench.shard(client)
        model = bench.method.current(served, data, serving.memories[client])
        for examples, into in ((data.train, seen), (data.test, unseen)):
            logits = bench.method.logits(model, examples[0], served)
            into.append(F.cross_entropy(logits, examples[1], reduction="none").numpy())
    return np.concatenate(seen), np.concatenate(unseen)


def found(seen: np.ndarray, unseen: np.ndarray) -> tuple[float, float]:
    """The area under the curve, and the share of members found, %, at few false alarms."""
    truth, score = np.r_[np.ones(len(seen)), np.zeros(len(unseen))], -np.r_[seen, unseen]
    false, right, _ = roc_curve(truth, score)
    return float(roc_auc_score(truth, score)), 100 * float(right[false <= FALSE].max())


def membership(out: Path) -> list[dict[str, str]]:
    rows = []
    levels = [("digits", method, *level) for method in ("pfeddsh", "fedavg-prior") for level in LEVELS]
    for protocol, method, clip, noise in [*levels, LONG]:
        results = measure(protocol, method, clip, noise, SEED, out)
        seen, unseen = losses(out / name(protocol, method, clip, noise, SEED))
        area, caught = found(seen, unseen)
        rows.append({
            "protocol": protocol, "method": method, "clip": f"{clip:g}", "noise": f"{noise:g}", "seed": str(SEED),
            "accuracy": f"{results['acc_end_mean']:.4f}", "auc": f"{area:.6f}", "found": f"{caught:.4f}",
            "trained on": str(len(seen)), "others": str(len(unseen)),
            "revision": results["environment"]["revision"] or "",
        })  # fmt: skip
        print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--keep", action="store_true", help="add the rows to results/membership.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = membership(given.out)
    if given.keep:
        keep_rows("membership.csv", rows, ["protocol", "method", "clip", "noise", "seed"])


if __name__ == "__main__":
    main()
