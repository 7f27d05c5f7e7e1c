"""Trains Orchestra: federated learning by globally consistent clustering.

Paper: https://arxiv.org/abs/2205.11506.

python experiments/orchestra.py
python experiments/orchestra.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2
python experiments/orchestra.py --dataset cifar10 --data-dir DIR --preset paper
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["orchestra"])
