#!/usr/bin/env bash
# Repeats everything behind README and docs: results/reproduce.sh [PART...]; --list names the parts, the most important first.
# Needs the datasets under PFEDDSH_DATA. Interrupted, it continues where it was; steps are computed once for all plans.
set -euo pipefail
cd "$(dirname "$0")/.."
command=${PFEDDSH:-.venv/bin/pfeddsh}
python=${PYTHON:-.venv/bin/python}
parts=(
    # the tables
    table1 controls guard guard-finetune finetune-rate frozen more-seeds rivals more-controls variants seeds
    dirichlet dirichlet-controls
    datasets datasets-seeds controls-datasets guard-finetune-datasets datasets-more-seeds pneumonia pneumonia-convnet demo demo-seeds
    # which part does what
    ablation own-frozen own-frozen-datasets paper-form deviation investigations replay sensitivity
    guard-rivals frozen-rivals frozen-datasets frozen-rivals-datasets
    # the guard's offers, pooled images, the originals' recipes, rivals' settings, attacks, privacy
    regret ceilings recipes trials robust privacy doors
    growth growing resnet8 resnet8-frozen resnet8-small counted counted-datasets prior statistics fedselect round-robin
    story repeat       # the federation on one machine, on several seeds; whether kept results repeat on this processor
    latency live speed # want a quiet machine
    documents # figures and texts, from whatever is there
)

compare() { # PLAN [OPTION...]
    local out=runs/$(basename "$1" .toml)
    "$command" compare "$1" --out "$out" "${@:2}"
}

keep() { # the results of a plan's runs
    for run in runs/"$1"/*/results.json; do
        [[ ! -e $run ]] || cp "$run" "results/$(basename "$(dirname "$run")").json"
    done
    rm -f results/*-weights-default.json # the ablation has the same runs
}

once() { # NAME COMMAND...: not again when the script is started anew
    [[ -e runs/done/$1 ]] && return
    "${@:2}" && mkdir -p runs/done && touch "runs/done/$1"
}

spent() { # PART SECONDS FAILED: what a part took, over all restarts; results/measured.csv has it once the part is done
    local before=0 total done=runs/done/part-$1
    [[ ! -e $done ]] || return 0
    mkdir -p runs/spent runs/done
    [[ ! -e runs/spent/$1 ]] || before=$(< "runs/spent/$1")
    total=$((before + $2))
    echo "$total" > "runs/spent/$1"
    [[ $3 != 0 ]] || { "$python" results/measured.py reproduce "$1" seconds "$total" && touch "$done"; }
}

part() {
    local failed=0 plan=examples/$1.toml
    [[ -e $plan && ! -e results/plans/$1.toml ]] || plan=results/plans/$1.toml
    case $1 in
    regret)
        for schedule in 20+80 80+20 80+4x5; do
            once "regret-$schedule" "$python" results/guard.py --schedule "$schedule" || failed=1
        done
        ;;
    ceilings) for seed in 0 1 2; do once "ceiling-$seed" "$python" results/ceiling.py --seed "$seed" || failed=1; done ;;
    recipes) for recipe in pfedhn pefll; do once "recipe-$recipe" "$python" results/recipes.py "$recipe" || failed=1; done ;;
    trials) results/tune.sh || failed=1 ;;
    robust)
        once robust-fifth "$python" benchmarks/robust.py --keep || failed=1
        once robust-drawn "$python" benchmarks/robust.py --keep --sites drawn --attacks nobody flip3 flip10 || failed=1
        once robust-longest "$python" benchmarks/robust.py --keep --rules history --longest 1 1.5 3 --attacks nobody flip3 noise || failed=1
        once robust-directions "$python" benchmarks/robust.py --keep --directions || failed=1
        ;;
    privacy)
        for protocol in digits digits-half cifar10; do
            once "privacy-$protocol" "$python" benchmarks/privacy.py --keep --protocol "$protocol" || failed=1
        done
        once privacy-cohorts "$python" benchmarks/privacy.py --keep --cohorts || failed=1
        once membership "$python" benchmarks/membership.py --keep || failed=1
        once inversion "$python" benchmarks/inversion.py --keep --clients 0 1 2 3 4 || failed=1
        ;;
    demo-seeds) once demo-seeds "$python" benchmarks/demo.py --keep || failed=1 ;;
    story) once story "$python" benchmarks/story.py --keep || failed=1 ;;
    repeat) once repeat "$python" results/repeat.py --keep || failed=1 ;;
    doors) once doors "$python" benchmarks/doors.py --keep || failed=1 ;;
    live)
        once live-4 "$python" benchmarks/live.py --keep || failed=1
        once live-16 "$python" benchmarks/live.py --keep --nodes 16 --rounds 2 --only ours || failed=1
        once large-reply "$python" benchmarks/large_reply.py --keep || failed=1
        ;;
    speed)
        once throughput "$python" benchmarks/throughput.py --keep lenet mlp convnet resnet8 resnet20 resnet18 || failed=1
        once whole-run-digits "$python" benchmarks/whole_run.py --keep || failed=1
        once whole-run-cifar10 "$python" benchmarks/whole_run.py --keep cifar10 80+20 200 || failed=1
        for name in hypernetwork cohort scale six_hundred status_page photographs; do
            once "$name" "$python" "benchmarks/$name.py" --keep || failed=1
        done
        make .venv-peers/.ready && once peers .venv-peers/bin/python benchmarks/peers.py --keep || failed=1
        ;;
    latency) # nothing of other plans is reused: it would cost no time
        compare "$plan" --jobs 1 --cache runs/latency-cache && "$python" results/latency.py runs/latency || failed=1
        ;;
    documents) "$python" results/figure.py && "$python" results/privacy_figure.py && "$python" results/tables.py || failed=1 ;;
    *)
        if [[ $1 == pneumonia* ]]; then
            mkdir -p runs
            "$python" examples/pneumonia_sites.py "$PFEDDSH_DATA/medmnist/pneumoniamnist.npz" runs/sites.npz || return 1
        fi
        compare "$plan" || failed=1
        keep "$1" # also what was finished of a plan that failed
        ;;
    esac
    return $failed
}

if [[ ${1:-} == --list ]]; then
    printf '%s\n' "${parts[@]}"
    exit
fi
[[ $# -gt 0 ]] || set -- "${parts[@]}"
for name in "$@"; do
    [[ " ${parts[*]} " == *" $name "* ]] || { echo "no part '$name'; --list names them" >&2 && exit 2; }
done
[[ $* == documents ]] || : "${PFEDDSH_DATA:?is not set: the folder with the datasets}"
failed=()
for name in "$@"; do
    began=$SECONDS
    trap 'spent "$name" $((SECONDS - began)) 1' EXIT # stopped within the part
    code=0
    part "$name" || { code=1 && failed+=("$name"); }
    trap - EXIT
    spent "$name" $((SECONDS - began)) $code
    echo "$name: $((SECONDS - began)) seconds"
done
[[ ${#failed[@]} == 0 ]] || { echo "failed: ${failed[*]}; the same command continues them" >&2 && exit 1; }
