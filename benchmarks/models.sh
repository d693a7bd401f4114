#!/usr/bin/env bash
# Cost of whole encoders: against their length, with a dealer and without, and over a shaped network. Resumable: results
# that are there are kept. Some minutes a row without a dealer, seconds with one.
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
