"""Put the local-only accuracies of the runs kept here into the cache, so that new runs are compared with the same ones.

`python results/controls.py`, before runs are added: another processor rounds a client's own training otherwise, by some
hundredths of a point on average, and tables pair only runs of clients that did equally well alone.
"""

import json

from runs import HERE

from pfeddsh.configure import build
from pfeddsh.errors import UserError
from pfeddsh.storage import controls


def main() -> None:
    written = 0
    for path in sorted(HERE.glob("*-seed*.json")):
        kept = json.loads(path.read_text())
        named = {key: kept[key] for key in ("dataset", "schedule", "seed")}
        try:
            config = build({**named, **kept["protocol"], "method": "local"}, path.name)
        except UserError as error:
            print(f"{path.name}: left out, {error}")
            continue
        plan = config.plan()
        for step in plan.steps:
            batch = {k: kept["local"][k] for k in plan.batch(step)}
            if None not in batch.values():
                written += controls.keep(config, kept["environment"]["data"], step, batch)
    print(f"{written} batches of clients")


if __name__ == "__main__":
    main()
