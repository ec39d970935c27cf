#!/usr/bin/env bash
# Repeats every run behind the README and docs/results.md: results/reproduce.sh [NAME-PATTERN]
# Needs the datasets under PFEDDSH_DATA. A run that is already in results/ is skipped; delete its file to repeat it.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${PFEDDSH:-.venv/bin/pfeddsh}

run() { # dataset method schedule seed [key=value ...]
    local dataset=$1 method=$2 schedule=$3 seed=$4 extra=() name
    shift 4
    name="$dataset-$method-$schedule-seed$seed"
    for setting in "$@"; do
        extra+=(--set "$setting")
        name+="-${setting#options.}"
    done
    [[ $name == *${pattern:-}* && ! -e results/$name.json ]] || return 0
    rm -rf "runs/$name"
    "$command" run --dataset "$dataset" --method "$method" --schedule "$schedule" --seed "$seed" --out "runs/$name" "${extra[@]}"
    cp "runs/$name/results.json" "results/$name.json"
    rm -rf "runs/$name"
}
pattern=${1:-}

run cifar10 pfeddsh 80+20 0
run cifar10 fedavg 80+20 0
run cifar10 fedper 80+20 0
run cifar10 local 80+20 0
run cifar10 joint 80+20 0
run cifar10 pfeddsh-neither 80+20 0
run cifar10 pfeddsh 80+20 1
run cifar10 pfeddsh 80+20 2
run cifar10 pfeddsh 80+4x5 0
run cifar100 pfeddsh 80+20 0
run tiny-imagenet pfeddsh 80+20 0
run cifar10 pfeddsh-gate 80+20 0
run cifar10 pfeddsh-snapshot 80+20 0 options.replay=off
run cifar10 pfeddsh 80+20 0 options.prior=false
run cifar10 pfeddsh-neither 80+4x5 0
run cifar10 fedper 80+4x5 0
run cifar10 pfeddsh-paper 80+20 0
run cifar10 pfeddsh 80+4x5 1
run cifar10 pfeddsh 80+4x5 2
for seed in 1 2; do
    for method in fedavg fedper joint pfeddsh-neither pfeddsh-gate; do
        run cifar10 "$method" 80+20 "$seed"
    done
    run cifar10 pfeddsh 80+20 "$seed" options.prior=false
done
