#!/usr/bin/env bash
# Cost of a BERT-base encoder against its length, and over a shaped network. Resumable: results that are there are kept.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out="$root/benchmarks/results/model"
mkdir -p "$out"
run() {
    local file="$out/$1.json"
    shift
    [ -s "$file" ] || "$root/.venv/bin/comet" bench model "$@" --json "$file"
}
for tokens in 32 64 128 256 512; do
    run "bert-base-$tokens" --shape bert-base --tokens "$tokens"
done
run bert-base-128-4steps --shape bert-base --tokens 128 --steps 4
run bert-base-128-200mbit --shape bert-base --tokens 128 --network 200mbit/10ms
run minilm-128 --shape minilm --tokens 128
