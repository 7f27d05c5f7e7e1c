"""Trains SDA-FDC, deep clustering of synthetic data, and its baselines.

Each client trains a GAN. The server clusters the examples that the GANs generate.
Paper: https://arxiv.org/abs/2211.16965.

python experiments/sda_fdc.py
python experiments/sda_fdc.py --methods sda-fc-km sda-fdc-disjoint sda-fdc --p 0 0.5 1
python experiments/sda_fdc.py --methods dcn --dataset mnist --data-dir DIR
"""

from fcjax.cli.main import main
from fcjax.methods import SCRIPTS

if __name__ == "__main__":
    main(SCRIPTS["sda-fdc"])
