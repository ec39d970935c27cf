#!/usr/bin/env bash
# The trials behind every method's defaults: step 1 of CIFAR-10 on seed 100, which no table reports.
# Prints METHOD SETTINGS ACCURACY SECONDS to results/tuning.csv; a trial that is already there is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${PFEDDSH:-.venv/bin/pfeddsh}
table=results/tuning.csv
[[ -e $table ]] || echo "method,settings,step 1 accuracy,seconds a round" > "$table"

trial() { # method [option=value ...]
    local method=$1 extra=() out
    shift
    grep -q "^$method,$*," "$table" && return 0
    for setting in "$@"; do extra+=(--set "options.$setting"); done
    out=$(mktemp -d)
    "$command" run --dataset cifar10 --schedule 80+20 --seed 100 --method "$method" --set rounds_later=1 \
        --set engine=serial --out "$out/run" "${extra[@]}"
    python3 - "$out/run/results.json" "$method" "$*" >> "$table" <<'PYTHON'
import json, sys
results = json.load(open(sys.argv[1]))
first = [accuracy for accuracy in results["acc"][0] if accuracy is not None]
print(sys.argv[2], sys.argv[3], f"{sum(first) / len(first):.2f}", f"{results['seconds']['round_mean']:.2f}", sep=",")
PYTHON
    rm -rf "$out"
}

