"""FedCRef: which global clusters there are, found without a server or their number.

Federated Clustering: An Unsupervised Cluster-Wise Training for Decentralized Data
Distributions
    Mirko Nardi, Lorenzo Valerio, Andrea Passarella. 2024.
    https://arxiv.org/abs/2408.10664
    Authors' code: https://github.com/mirqr/fedcref
"""

from fcjax.algorithms.fedcref.algorithm import fedcref
from fcjax.algorithms.fedcref.association import Association
from fcjax.algorithms.fedcref.models import Training
from fcjax.algorithms.fedcref.refinement import Halting
from fcjax.algorithms.fedcref.start import Start, given, on_clients

__all__ = [
    "Association",
    "Halting",
    "Start",
    "Training",
    "fedcref",
    "given",
    "on_clients",
]
