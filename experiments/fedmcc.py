"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093).

python experiments/fedmcc.py
python experiments/fedmcc.py --methods fedmcc fed-cc fedu --class-share 1 0.2
python experiments/fedmcc.py --methods fedu fedema --cluster-by k-means
python experiments/fedmcc.py --methods mcc cc
"""

from typing import Any

from fcjax.methods import SCRIPTS
from fcjax.sweep.command import main
from fcjax.sweep.flags import flags_of

Args: Any = flags_of(SCRIPTS["fedmcc"])

if __name__ == "__main__":
    main(SCRIPTS["fedmcc"])
