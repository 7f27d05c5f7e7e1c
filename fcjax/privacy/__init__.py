"""Differential privacy of the clients' uploads, and simulated secure sums."""

from fcjax.privacy.accounting import Part, epsilon_of, noise_of
from fcjax.privacy.gaussian import Updates, add_noise, clip_norm
from fcjax.privacy.guarantee import Privacy
from fcjax.privacy.kmeans import PrivateKMeans, parts_of
from fcjax.privacy.secure_sums import secure_sum

__all__ = [
    "Part",
    "Privacy",
    "PrivateKMeans",
    "Updates",
    "add_noise",
    "clip_norm",
    "epsilon_of",
    "noise_of",
    "parts_of",
    "secure_sum",
]
