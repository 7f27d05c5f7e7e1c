"""A data scientist clusters a DataFrame with a column of sites, without labels.

Four groups are drawn, and k-means can find them. The number of clusters and the method
are chosen without the groups. Another process then predicts the clusters of new rows.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import adjusted_rand_score

import fcjax
from fcjax import data
from fcjax.methods import ExactKMeans, KFed

SITES = {"Aachen": 1300, "Bern": 800, "Celle": 500, "Davos": 280, "Essen": 120}
PREDICT = """
import sys
import pandas as pd
import fcjax

run = fcjax.open(sys.argv[1]).run(method=sys.argv[2], seed=0)
new = pd.read_parquet(sys.argv[3])
clusters = run.predict(new.drop(columns=["site", "group"]))  # original units
new.assign(cluster=clusters).to_parquet(sys.argv[3])
"""

rng = np.random.default_rng(7)
centers, scale = rng.normal(0, 1.5, (4, 12)), 10.0 ** rng.integers(-2, 3, 12)
parts = []
for site, size in SITES.items():
    group = rng.choice(4, size, p=rng.dirichlet([2] * 4))
    values = scale * (5 + centers[group] + rng.normal(0, 1, (size, 12)))
    columns = [f"value_{i}" for i in range(12)]
    parts.append(pd.DataFrame(values, columns=columns).assign(site=site, group=group))
table = pd.concat(parts).sample(frac=1, random_state=0)
new, old = table[:100], table[100:].drop(columns="group")
old = old.mask(rng.random(old.shape) < 0.01).assign(site=old.site)

frame = data.from_frame(old, client_column="site", missing="median", labels=False)
grid = fcjax.run(ExactKMeans(unit_length=False), frame, num_clusters=[3, 4, 5], seeds=2)
num_clusters = int(grid.choose().row["clusters"])
print("number of clusters by the silhouette:", num_clusters)
assert num_clusters == 4
with tempfile.TemporaryDirectory() as room:
    methods = [ExactKMeans(unit_length=False), KFed(unit_length=False)]
    out, rows = Path(room) / "runs", Path(room) / "new.parquet"
    both = fcjax.run(methods, frame, num_clusters=num_clusters, seeds=2, out=out)
    print(both.rank()[["method", "seed", "input"]])
    best = both.choose().row["method"]
    new.to_parquet(rows)
    subprocess.run([sys.executable, "-c", PREDICT, out, best, rows], check=True)
    predicted = pd.read_parquet(rows)
score = adjusted_rand_score(predicted["group"], predicted["cluster"])
print(f"{best}: adjusted Rand index of new rows {score:.2f}")
assert score > 0.9
