"""Trains the baselines: k-means and fuzzy c-means, central and federated.

python experiments/baselines.py --methods km fcm k-fed ffcm --p 0 0.25 0.5 0.75 1
python experiments/baselines.py --methods k-fed --local-clusters 3 --clients 20
python experiments/baselines.py --methods ffcm --fuzzifier 1.05 1.1 2 --no-unit-length
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["baselines"])
