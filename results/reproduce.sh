#!/usr/bin/env bash
# Repeats every run behind README and docs: results/reproduce.sh [PLAN...], by default the paper's tables and results/plans.
# Needs the datasets under PFEDDSH_DATA. Interrupted, it continues where it was; steps are computed once for all plans.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${PFEDDSH:-.venv/bin/pfeddsh}
plans=("$@")
[[ ${#plans[@]} -gt 0 ]] || plans=(examples/{table1,growth,ablation,sensitivity}.toml results/plans/*.toml)
for plan in "${plans[@]}"; do
    out=runs/$(basename "$plan" .toml)
    "$command" compare "$plan" --out "$out"
    for run in "$out"/*/results.json; do
        cp "$run" "results/$(basename "$(dirname "$run")").json"
    done
done
