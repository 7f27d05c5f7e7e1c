"""Trains FedCRef, federated cluster refinement, and its baselines.

Paper: https://arxiv.org/abs/2408.10664.

python experiments/fedcref.py
python experiments/fedcref.py --start dirty --dirtiness 0 0.3 0.5 --seed 0 1 2
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["fedcref"])
