"""FedCRef (https://arxiv.org/abs/2408.10664) and what it is measured by.

python experiments/fedcref.py
python experiments/fedcref.py --start dirty --dirtiness 0 0.3 0.5 --seed 0 1 2
"""

from typing import Any

from fcjax.methods import SCRIPTS
from fcjax.sweep.command import main
from fcjax.sweep.flags import flags_of

Args: Any = flags_of(SCRIPTS["fedcref"])

if __name__ == "__main__":
    main(SCRIPTS["fedcref"])
