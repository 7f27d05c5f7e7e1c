#!/usr/bin/env bash
# A reviewer asks what the privacy budget of a run is, checks it with a formula of their
# own, and asks what uploads without a guarantee reveal.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fcjax baselines --methods exact-km --clients 20 --p 0.25 --epsilon 1 --seed 7 --no-plot --out "$out/private"
python - "$out/private/exact-km" <<'P'
import sys
from math import erf, exp, sqrt

import fcjax
import numpy as np
from fcjax.privacy import noise_of, parts_of

(run,) = fcjax.open(sys.argv[1])
row = run.row
parts = parts_of(int(row["rounds"]))
noise = noise_of(parts, epsilon=row["epsilon"], delta=row["delta"])
# Balle and Wang 2018: delta of a Gaussian mechanism, mu = sensitivity / noise.
mu = sqrt(sum(p.times / p.noise_multiplier(noise) ** 2 for p in parts))
phi = lambda t: (1 + erf(t / sqrt(2))) / 2
epsilon = row["epsilon"]
delta = phi(mu / 2 - epsilon / mu) - exp(epsilon) * phi(-mu / 2 - epsilon / mu)
print(f"epsilon {epsilon:g} for {row['privacy_unit']}: delta {delta:.3g}, stated {row['delta']:g}")
assert abs(delta / row["delta"] - 1) < 1e-3
assert np.isnan(run.model.centers).all()  # no mean without noise
P

refused() {  # REASON COMMAND: one line with the reason, and the status of a wrong command.
  local reason=$1 status=0; shift
  "$@" > "$out/said" 2>&1 || status=$?
  tail -1 "$out/said"
  [ "$status" = 2 ] && tail -1 "$out/said" | grep -q "error:.*$reason" || { echo "not refused: $*"; exit 1; }
}
refused "no bounded part" fcjax baselines --methods k-fed --epsilon 1
refused "no gradient belongs" fcjax ccfc --epsilon 1 --privacy-unit examples
refused "must be finite and above 0" fcjax baselines --methods exact-km --epsilon 0
refused "epsilon" fcjax privacy "$out/private/exact-km"
refused "seed of the noise" fcjax deploy "$out/private/exact-km" --to "$out/federation"

fcjax baselines --methods k-fed --clients 20 --p 0.25 --limit 1000 --keep-uploads --no-plot --out "$out/open"
fcjax privacy "$out/open/k-fed"
