"""Turn the runs in this folder into the tables of docs/results.md: `python results/tables.py` prints them."""

import json
import statistics
from collections import defaultdict
from pathlib import Path


def load() -> list[dict]:
    runs = []
    for path in sorted(Path(__file__).parent.glob("*.json")):
        run = json.loads(path.read_text())
        settings = path.stem.split(f"seed{run['seed']}")[1].strip("-")
        runs.append(run | {"label": run["method"] + (f", {settings}" if settings else "")})
    return runs


def changes(run: dict, field: str) -> list[list[float]]:
    """Per later step, each existing client's change against what it was served a step before."""
    acc = run[field]
    return [
        [acc[t][k] - acc[t - 1][k] for k, joined in enumerate(run["batch"]) if joined <= t and acc[t][k] is not None]
        for t in range(1, run["steps"])
    ]


def batch_mean(run: dict, row: list, step: int) -> float:
    return statistics.mean(row[k] for k, joined in enumerate(run["batch"]) if joined == step and row[k] is not None)


def facts(run: dict) -> dict[str, float]:
    """What a table shows of one run; RI both with and without the guard where there is one."""
    own, last = run["acc"], run["steps"] - 1
    result = {
        "step 1": batch_mean(run, own[0], 1),
        "local": batch_mean(run, run["local"], 1),
        "PA": run["pa_mean"],
        "RI last": run["ri_last"],
        "RI total": run["ri_cumulative"],
        "batch 1 at the end": batch_mean(run, own[last], 1),
        "% worse": 100 * statistics.mean(c < 0 for step in changes(run, "acc") for c in step),
        "lowest RI": min(statistics.mean(step) for step in changes(run, "acc")),
    }
    if "acc_unguarded" in run:
        bare = changes(run, "acc_unguarded")
        result["RI no guard"] = statistics.mean(bare[-1])
        first = [k for k, joined in enumerate(run["batch"]) if joined == 1 and own[0][k] is not None]
        result["RI total no guard"] = statistics.mean(run["acc_unguarded"][-1][k] - own[0][k] for k in first)
        result["lowest RI no guard"] = min(statistics.mean(step) for step in bare)
    return result


def main() -> None:
    groups = defaultdict(list)
    for run in load():
        groups[run["dataset"], run["schedule"], run["label"]].append(run)
    columns = [
        "step 1", "PA", "RI last", "RI total", "batch 1 at the end", "% worse", "lowest RI", "RI no guard",
        "RI total no guard", "lowest RI no guard",
    ]  # fmt: skip
    for dataset, schedule in dict.fromkeys((d, s) for d, s, _ in groups):
        print(f"\n### {dataset}, {schedule}\n")
        print("| method | seeds | " + " | ".join(columns) + " |")
        print("|---|---|" + "---:|" * len(columns))
        for (d, s, label), runs in groups.items():
            if (d, s) != (dataset, schedule):
                continue
            rows = [facts(run) for run in runs]
            cells = []
            for name in columns:
                values = [row[name] for row in rows if row.get(name) is not None]
                each = f" ({', '.join(f'{v:.2f}' for v in values)})" if len(values) > 1 else ""
                cells.append(f"{statistics.mean(values):.2f}{each}" if values else "")
            print(f"| {label} | {', '.join(str(run['seed']) for run in runs)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
