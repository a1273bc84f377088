#!/bin/sh
# Mismatch rate, rho and DEFF of stock per prompt set, at the full budget, and the statistics to simulate from.
#
#   sh tools/rho/run.sh FIVE_SETS.jsonl OUT
#
# FIVE_SETS.jsonl is made where the packages are: python -m tools.export_prompts FIVE_SETS.jsonl --most 200
# OUT gets rho-real.json, rho-generated.json and stock-statistics/ (copy the latter over fixtures/stock-statistics).
set -eu
prompts=$1 out=$2
here=$(dirname "$0")
work=$(mktemp -d)
mkdir -p "$out"
cp "$here/real.toml" "$here/generated.toml" "$work"
cp "$prompts" "$work/five-sets.jsonl"
check() { # CONFIG BUDGET; INCONCLUSIVE and FAIL leave a finished run all the same
    lossguard check --config "$work/$1.toml" --candidate other-batches --budget "$2" --folder "$work/$1" \
        --json "$out/report-$1.json" || echo "$1: exit code $?"
}
check real 620x512
check generated full
python -m tools.stock_statistics "$work/real/run-0001" --json "$out/rho-real.json" | tee "$out/rho-real.md"
python -m tools.stock_statistics "$work/generated/run-0001" --json "$out/rho-generated.json" \
    --write "$out/stock-statistics" | tee "$out/rho-generated.md"
