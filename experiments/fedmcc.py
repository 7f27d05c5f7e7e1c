"""Trains FedMCC, federated momentum contrastive clustering, and its baselines.

Paper: https://arxiv.org/abs/2206.05093.

python experiments/fedmcc.py
python experiments/fedmcc.py --methods fedmcc fed-cc fedu --class-share 1 0.2
python experiments/fedmcc.py --methods fedu fedema --cluster-by k-means
python experiments/fedmcc.py --methods mcc cc
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["fedmcc"])
