#!/usr/bin/env bash
# Somebody with three machines goes from a simulation to Flower with TLS. Here the machines
# are processes on one machine, with the commands of docs/guides/federation.md.
set -euo pipefail
guide=$PWD/docs/guides/federation.md
out=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; wait; rm -rf "$out"' EXIT
cd "$out"
export FLWR_HOME=$out/home FLWR_TELEMETRY_ENABLED=0

python - <<'P'
import numpy as np
from sklearn.datasets import load_digits

# The largest hospital comes first, as fcjax numbers clients by their size.
digits = load_digits()
x, y = digits.data[:300], digits.target[:300]
hospital = np.repeat([0, 1, 2], [120, 100, 80])
np.savez("all.npz", x=x, y=y, client=hospital)
for site in range(3):
    np.savez(f"site{site}.npz", x=x[hospital == site], y=y[hospital == site])
P
fcjax baselines --methods exact-km --dataset all.npz --num-rounds 2 --scale-columns none --out trial
fcjax deploy trial/exact-km --to federation

# Certificates and keys: the block of the guide.
awk -v RS='```' 'sub(/^text\n/, "") && /openssl.cnf/' "$guide" | bash -euo pipefail 2> openssl.log
for site in 0 1 2; do ssh-keygen -q -t ecdsa -b 384 -N "" -f key$site; done
mkdir "$FLWR_HOME"
printf '[superlink]\ndefault = "hospitals"\n[superlink.hospitals]\naddress = "127.0.0.1:8000"\nroot-certificates = "%s/ca.crt"\n' "$out" > "$FLWR_HOME/config.toml"

appears() { # FILE TEXT
  for _ in $(seq 120); do grep -q "$2" "$1" && return; sleep 1; done
  cat "$1"
  return 1
}
flower-superlink --host 0.0.0.0 --enable-supernode-auth --database superlink.db \
  --disable-runtime-dependency-installation \
  --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key > link.log 2>&1 &
appears link.log "Uvicorn running"
for site in 0 1 2; do
  flwr supernode register key$site.pub hospitals
  flower-supernode --superlink localhost:8000 --root-certificates ca.crt --port $((9100 + site)) \
    --auth-supernode-private-key key$site \
    --node-config "site=$site data=\"$out/site$site.npz\" out=\"$out/out$site\" scale-columns=\"none\"" > site$site.log 2>&1 &
  appears site$site.log "SuperNode ID"
done
flwr run federation hospitals --stream --run-config "out='$out/results'"

python - <<'P'
import fcjax
import pandas as pd

simulated = fcjax.open("trial/exact-km")[0].labels_
sites = [pd.read_csv(f"out{site}/assignments.csv")["cluster"] for site in range(3)]
found = pd.concat(sites).to_numpy()
print(f"{(found == simulated).sum()} of {len(found)} clusters are those of the simulation")
assert (found == simulated).all()
P
