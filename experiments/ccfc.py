"""Trains CCFC: cluster-contrastive federated clustering.

Paper: https://arxiv.org/abs/2401.06634.

python experiments/ccfc.py --clients 10 --p 0.25
python experiments/ccfc.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2 3 4
python experiments/ccfc.py --dataset mnist --data-dir DIR --limit 10000 --p 0
python experiments/ccfc.py --dataset path/to/images --clusters 10
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["ccfc"])
