"""Trains FDSC, federated deep subspace clustering, and its baselines.

Paper: https://arxiv.org/abs/2501.00230.

python experiments/fdsc.py --methods fdsc2 fdsc1 dscn dlrsc lrsc
python experiments/fdsc.py --dataset ORL_32x32.mat --classes-per-client 20 40
python experiments/fdsc.py --dataset mnist --data-dir DIR --clients 20 --client-size 500
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["fdsc"])
