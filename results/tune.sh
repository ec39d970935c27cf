#!/usr/bin/env bash
# The trials behind every method's defaults: step 1 of CIFAR-10 on seed 100, which no table reports.
# Writes one line each to results/tuning.csv; started again, it goes on with the trials that are left.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${PFEDDSH:-.venv/bin/pfeddsh}
table=results/tuning.csv
[[ -e $table ]] || echo "method,settings,step 1 accuracy" > "$table"

trial() { # method [option=value ...]
    local method=$1 extra=() out mark
    mark=runs/done/$(tr ' /' '__' <<< "trial $*")
    [[ ! -e $mark ]] || return 0
    shift
    for setting in "$@"; do extra+=(--set "options.$setting"); done
    out=$(mktemp -d)
    "$command" run --dataset cifar10 --schedule 80+20 --seed 100 --method "$method" --set rounds_later=1 \
        --set engine=serial --out "$out/run" "${extra[@]}"
    { grep -v "^$method,$*," "$table" && accuracy "$out/run/results.json" "$method" "$*"; } > "$out/table"
    cp "$out/table" "$table"
    mkdir -p runs/done && touch "$mark"
    rm -rf "$out"
}

accuracy() { # results.json method settings
    python3 - "$@" <<'PYTHON'
import json, sys
results = json.load(open(sys.argv[1]))
first = [accuracy for accuracy in results["acc"][0] if accuracy is not None]
print(sys.argv[2], sys.argv[3], f"{sum(first) / len(first):.2f}", sep=",")
PYTHON
}

trial local
trial fedavg
trial fedavg statistics=own
trial fedper
trial fedper statistics=pooled
trial fedrep
trial fedselect
trial fedselect growth=0.1
trial fedselect rate=2
trial pfedhn
trial pfedhn rho=1.4
trial pfedhn embedding_rate=1
trial pefll rate=1e-5
trial pefll rate=1e-5 rho=1.4
trial pefll rate=1e-6
trial pefll rate=0
trial odpfl-hn rate=1e-5
trial odpfl-hn rate=1e-6
trial odpfl-hn rate=0
trial fedweit optimiser=sgd
trial fedweit optimiser=adam
trial hr reconstruction=1 scale=3072
trial hr scale=10
trial hr scale=30
trial hr scale=30 clip=1
trial hr scale=30 replay_steps=0
trial hr scale=100
trial hr scale=100 replay_rate=0.001
trial hr scale=300
trial hr-local-head attraction=10 scale=30
trial hr-local-head attraction=1 scale=30
trial hr-local-head attraction=1 scale=30 replay_steps=0
trial hr-local-head attraction=0.1 scale=30
trial hr-local-head attraction=0.1 scale=30 replay_steps=0
trial hr-local-head attraction=0.1 scale=300
trial hr-local-head attraction=1 scale=1000
trial hr-local-head attraction=1 scale=1000 replay_rate=0.1
trial hr-local-head attraction=10 scale=1000
trial fedavg-prior
trial fedavg-prior statistics=own
trial fedavg-prior-finetune
trial fedavg-prior-finetune finetune=4
trial fedavg-prior-finetune finetune=8
trial fedavg-prior-finetune finetune=2 finetune_rate=0.003
trial fedavg-prior-finetune finetune=4 finetune_rate=0.003
trial fedavg-prior-finetune finetune=2 finetune_rate=0.0003
trial fedper statistics=fresh
trial fedper statistics=blended
trial fedper-prior
trial fedrep head_epochs=1
trial fedrep head_epochs=4
trial fedrep head_epochs=1 statistics=fresh
trial fedrep statistics=fresh
trial fedrep statistics=blended
trial fedrep-prior
trial fedrep-prior head_epochs=1
trial fedselect every=1
trial fedselect every=1 statistics=fresh
trial fedweit statistics=fresh
trial pfedhn statistics=fresh
trial pfedhn-local-head
trial ditto
trial ditto lam=0.1
trial ditto-prior
trial ditto-prior lam=0.1
trial ditto-prior lam=0.01
trial pfeddsh
trial pfeddsh rate=0.1
trial pfeddsh rate=0.2
trial pfeddsh-hyper
trial central
