#!/usr/bin/env bash
# Cost of whole encoders: against their length, with a dealer and without, and over a shaped network. Resumable: results
# that are there are kept. Some minutes a row without a dealer, seconds with one. Then plans for the trade-off that
# `comet report` draws, by rule: seconds each.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out="$root/benchmarks/results/model"
mkdir -p "$out"
run() {
    local file="$out/$1.json"
    shift
    [ -s "$file" ] || "$root/.venv/bin/comet" bench model "$@" --json "$file"
}
for tokens in 128 32 64; do
    run "bert-base-$tokens-quadratic-pair" --shape bert-base --tokens "$tokens" --rule quadratic --source pair
done
for tokens in 32 64 128 256 512; do
    run "bert-base-$tokens-quadratic" --shape bert-base --tokens "$tokens" --rule quadratic
done
run bert-base-128 --shape bert-base --tokens 128
run bert-base-128-quadratic-200mbit --shape bert-base --tokens 128 --rule quadratic --network 200mbit/10ms
run minilm-128-quadratic --shape minilm --tokens 128 --rule quadratic
run bert-base-128-quadratic-pair-1gbit --shape bert-base --tokens 128 --rule quadratic --source pair --network 1gbit/1ms
run bert-base-128-quadratic-pair-200mbit --shape bert-base --tokens 128 --rule quadratic --source pair \
    --network 200mbit/10ms
run bert-base-256-quadratic-pair --shape bert-base --tokens 256 --rule quadratic --source pair

plans="$root/benchmarks/results/plan"
mkdir -p "$plans"
for shape in minilm bert-base; do
    for rule in 2 3 4 linear quadratic cubic quartic; do # a quintic does not fit its ring without a dealer
        file="$plans/$shape-128-$rule-pair.json"
        case $rule in [0-9]) words=(--steps "$rule") ;; *) words=(--rule "$rule") ;; esac
        [ -s "$file" ] || "$root/.venv/bin/comet" plan --shape "$shape" --tokens 128 "${words[@]}" --source pair \
            --json "$file" >/dev/null
    done
done
