"""An example of another program: k-means of scikit-learn on each client.

    fcjax partition --clients 10 --p 0 1 --seed 0:5 --out partitions/digits
    python experiments/matrix/local_kmeans.py partitions/digits
    fcjax matrix --hours 0 --datasets digits --assignments scikit-learn=partitions

Each client clusters its examples, and the server clusters the clients' centroids. The
program fills the column `cluster` of the files of `fcjax partition`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans


def clusters_of(x: np.ndarray, client: np.ndarray, num_clusters: int) -> np.ndarray:
    """Clusters the examples of all clients.

    Args:
        x: the examples [P, D].
        client: the client of each example [P]; -1 for an example without a client.
        num_clusters: the number of clusters.

    Returns:
        The clusters [P].
    """
    options: dict[str, Any] = {"n_init": 10, "random_state": 0}
    uploads = []
    for index in range(client.max() + 1):
        own = x[client == index]
        kmeans = KMeans(min(num_clusters, len(own)), **options).fit(own)
        uploads.append(kmeans.cluster_centers_)
    server = KMeans(num_clusters, **options).fit(np.concatenate(uploads))
    return np.asarray(server.predict(x))


def main(folder: Path) -> None:
    """Fills the column `cluster` of all partitions in a folder.

    Args:
        folder: the result of `fcjax partition`.
    """
    data = np.load(folder / "examples.npz")
    x = data["x"].reshape(len(data["x"]), -1).astype(np.float64)
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path)
        client = table["client"].to_numpy()
        table["cluster"] = clusters_of(x, client, len(np.unique(data["y"])))
        table.to_csv(path, index=False)
        print(f"clusters: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
