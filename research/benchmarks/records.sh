#!/usr/bin/env bash
# Every record that `comet-lab report` shows, the most important first. Durations are those of two free cores: let nothing
# else run. Records that are there are kept, and a run that broke off goes on; --again makes the named ones anew.
#
#   research/benchmarks/records.sh [--again] [SECTION …]      all but slow, accuracy and secure, if no section is named
#
#   models    8 min   whole encoders: against their length, with a dealer and without
#   networks 10 min   BERT-base over slower networks
#   slow     20 min   the same over the slowest, and the longest text without a dealer; only if it is named
#   plans     3 min   the same by rule and by length, without running them
#   peers    14 min   one BERT-base layer, two, and single operations, beside CrypTen and SPU (to install them: 5 min more)
#   paper    11 min   tables 3 and 4, and the appendix
#   ops       3 min   single operations by every method
#   rules     1 min   errors and costs of every rule for 1/sqrt
#   profile   1 min   where the time of a query goes
#   kernels   1 min   the kernels beside numpy
#   demo      1 min   the bundled model
#   truncation 1 min  10^8 truncations
#   trials   10 min   how often CrypTen is wrong
#   secure    1 h     200 rows of each task inside the protocol   (GLUE and WORK, after accuracy)
#   accuracy  hours   every row of the tables of accuracy         (ENCODER, GLUE and WORK; says first how long)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here="$root/research/benchmarks"
results="$here/results"
comet="$root/.venv/bin/comet" lab="$root/.venv/bin/comet-lab"
again=
if [ "${1:-}" = --again ]; then
    again=yes
    shift
fi

# keep FILE COMMAND …: runs it with --json FILE, unless that is there
keep() {
    local file="$results/$1.json"
    shift
    mkdir -p "$(dirname "$file")"
    if [ -n "$again" ]; then rm -f "$file"; fi
    [ -s "$file" ] || "$@" --json "$file"
}

# goes_on FILE COMMAND …: the same for a command that goes on with a file that is there
goes_on() {
    local file="$results/$1.json"
    shift
    mkdir -p "$(dirname "$file")"
    if [ -n "$again" ]; then rm -f "$file"; fi
    "$@" --json "$file"
}

# model NAME TOKENS RULE SOURCE [NETWORK]: a whole encoder
model() {
    local name="model/$1-$2-$3" words=(--shape "$1" --tokens "$2" --rule "$3" --source "$4")
    if [ "$4" = pair ]; then name=$name-pair; fi
    if [ -n "${5:-}" ]; then
        name=$name-${5/\//-}
        words+=(--network "$5")
    fi
    keep "$name" "$lab" bench model "${words[@]}"
}

models() {
    local source tokens rule
    for source in dealer pair; do
        for rule in fitted quadratic; do model bert-base 128 "$rule" "$source"; done
        for tokens in 32 128; do model minilm "$tokens" fitted "$source"; done
    done
    for tokens in 32 64 256; do
        for source in dealer pair; do model bert-base "$tokens" fitted "$source"; done
    done
    model bert-base 512 fitted dealer
}

networks() {
    local network
    model bert-base 128 fitted dealer 1gbit/50ms
    model bert-base 128 fitted pair 200mbit/10ms
    for network in 1gbit/1ms 200mbit/10ms 100mbit/100ms; do model bert-base 128 fitted dealer "$network"; done
    for network in 1gbit/1ms 1gbit/50ms 100mbit/100ms; do model bert-base 128 fitted pair "$network"; done
}

slow() {
    model bert-base 128 fitted pair 20mbit/150ms
    model bert-base 512 fitted pair
    model bert-base 128 fitted dealer 20mbit/150ms
}

plans() {
    local rule words shape source tokens network
    for shape in minilm bert-base; do
        for rule in 2 3 4 linear quadratic cubic quartic; do # a quintic does not fit its ring without a dealer
            case $rule in [0-9]) words=(--steps "$rule") ;; *) words=(--rule "$rule") ;; esac
            keep "plan/$shape-128-$rule-pair" "$comet" plan --shape "$shape" "${words[@]}" --source pair >/dev/null
        done
    done
    for source in pair dealer; do
        for tokens in 32 64 128 256 512; do
            for rule in fitted quadratic; do
                keep "plan/bert-base-$tokens-$rule-$source" "$comet" plan --shape bert-base --tokens "$tokens" \
                    --rule "$rule" --source "$source" >/dev/null
            done
        done
        for network in 50mbit/1ms 200mbit/10ms 1gbit/1ms 100mbit/100ms 1gbit/50ms 20mbit/150ms; do
            keep "plan/bert-base-128-fitted-$source-${network/\//-}" "$comet" plan --shape bert-base \
                --rule fitted --source "$source" --network "$network" >/dev/null
        done
    done
}

peers() {
    goes_on peers/layer "$lab" bench peers --task layer
    goes_on peers/two_layers "$lab" bench peers --task two_layers --system crypten --system spu-semi2k --system spu-cheetah
    goes_on peers/operations "$lab" bench peers --task activation --task attention --task layer_norm \
        --task inverse_sqrt --system comet --system comet-pair --system crypten --system crypten-comet \
        --system crypten-paper --system spu-semi2k
    again='' goes_on peers/operations "$lab" bench peers --task activation --system spu-cheetah
}

paper() {
    goes_on paper/3 "$lab" bench paper 3
    goes_on paper/4 "$lab" bench paper 4
    keep paper/appendix "$lab" bench paper appendix
}

ops() { keep ops "$lab" bench ops; }
rules() { keep rules "$lab" bench rules; }
kernels() { keep kernels "$root/.venv/bin/python" "$here/kernels.py"; }
truncation() { keep truncation "$lab" bench truncation; }
trials() { goes_on trials "$lab" bench trials; }

profile() {
    keep profile/demo "$lab" bench profile
    keep profile/bert-base-128-2layers "$lab" bench profile --shape bert-base --layers 2
}

demo() {
    keep demo/pair "$comet" demo
    keep demo/dealer "$comet" demo --source dealer
}

secure() {
    local model task name
    for task in rte mrpc sts-b cola sst-2; do
        for model in "${WORK:?where accuracy has put its checkpoints}"/*-"$task"-seed1/certified-quadratic; do
            name=$(basename "$(dirname "$model")" -seed1)
            keep "secure/$name-quadratic" "$comet" eval "$model" --task "$task" --data "${GLUE:?GLUE data}" --secure \
                --source dealer --limit 200
        done
    done
}

accuracy() {
    local table
    for table in 1 2 5; do
        "$root/.venv/bin/python" "$here/accuracy.py" table "$table" "${ENCODER:?a checkpoint}" \
            "${GLUE:?GLUE data}" "${WORK:?for checkpoints}" --seed 1 --seed 2
    done
}

for section in "${@:-models networks plans peers paper ops rules profile kernels demo truncation trials}"; do
    for name in $section; do
        echo "== $name: $(sed -n "s/^#   $name  *\([0-9a-z]* *[a-z]*\)  .*/\1/p" "$0")"
        "$name"
    done
done
"$lab" report "$results" --docs "$root/docs" --page "$root/report.html"
