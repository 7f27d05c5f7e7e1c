#!/usr/bin/env bash
# A researcher looks up a row of a paper's table, sweeps one setting over five seeds,
# compares its values, and takes the table and the versions for a paper.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

python experiments/reproduce.py ccfc-table1 --from experiments/results --datasets mnist --out "$out/table"
python experiments/ccfc.py --p 0.5 --limit 500 --seed 0:5 --decorrelation-weight 0 0.1 1 --pretrain-rounds 5 --cluster-rounds 2 --evaluate-every 100 --out "$out/sweep"
for values in "0.1 0" "1 0" "1 0.1"; do
  set -- $values
  fcjax compare "$out/sweep" "$out/sweep" --first-where decorrelation_weight=$1 --second-where decorrelation_weight=$2 --out "$out/compare-$1-$2"
done
ls "$out/sweep/table.tex" "$out/sweep/figures/against_decorrelation_weight.png"
grep -h -m1 '"commit"' "$out/sweep/environment.json"
