#!/usr/bin/env bash
# An engineer has unlabelled pictures of four plants, chooses a number of clusters, and
# hands a colleague the report and a table of files, plants and clusters.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"

python - <<'P'
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
plants = {"north": range(6), "south": range(3, 8), "east": range(5, 10), "west": [8, 9, 0]}
random = np.random.default_rng(7)
for plant, kinds in plants.items():
    folder = Path("parts") / plant
    folder.mkdir(parents=True)
    for i in random.choice(np.flatnonzero(np.isin(digits.target, kinds)), 90, False):
        picture = Image.fromarray((digits.images[i] * 15.9).astype("uint8"))
        picture.resize((20, 18) if plant == "west" else (16, 16)).save(folder / f"{i}.png")
P
fcjax baselines --methods exact-km --dataset parts --client-folders --no-labels --resize 16 --clusters 8 10 12 --seed 0 1 2 --out runs
fcjax how-many runs/exact-km
next=$(fcjax choose runs/exact-km --where clusters=10 | sed -n 's/^next: //p')
fcjax consensus runs/exact-km --where clusters=10
echo "+ $next"
eval "$next --out ten"
mkdir new && cp parts/north/*.png new
fcjax predict runs/exact-km --where clusters=10 seed=0 --dataset new --out new.csv
python - <<'P'
import pandas as pd

page = open("ten/report.html").read()
assert "<h2>Clients</h2>" in page and "<th>north</th>" in page
assert "The 3 runs agree on" in page and "All runs have" not in page
table = pd.read_csv("ten/assignments.csv")
assert (table.client_name == table.example.str.split("/").str[0]).all()
print(pd.crosstab(table.client_name, table.cluster))
P
