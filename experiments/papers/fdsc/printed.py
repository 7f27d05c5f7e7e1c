"""The scores that the FDSC paper reports, as fractions.

Zhang, Feng, Wang and Shang, Federated deep subspace clustering, 2025
(https://arxiv.org/abs/2501.00230), Section 4. The paper prints percentages, without
spreads.
"""

SCORES = ("acc", "nmi", "ami", "ari")
"""The columns of all tables."""
Scores = tuple[float, float, float, float]
DISPLAY_NAMES = {
    "lrsc": "LRSC",
    "dlrsc": "DLRSC",
    "dscn": "DSCN",
    "fdsc1": "FDSC1",
    "fdsc2": "FDSC2",
}
"""The paper's name of each method, by its name in the scripts."""
MAP_SCORES: dict[str, Scores] = {  # Table 1; its FDSC is assumed to be FDSC2.
    "DSCN": (0.391, 0.433, 0.407, 0.225),
    "FDSC2": (0.634, 0.592, 0.576, 0.454),
}
"""Scores of k-means on two-dimensional maps of codes."""
CLUSTER_SCORES: dict[str, dict[int, dict[str, Scores]]] = {
    "mnist": {
        5: {
            "LRSC": (0.774, 0.786, 0.791, 0.682),
            "DLRSC": (0.796, 0.802, 0.809, 0.693),
            "DSCN": (0.817, 0.823, 0.813, 0.713),
            "FDSC1": (0.824, 0.841, 0.836, 0.728),
            "FDSC2": (0.838, 0.846, 0.844, 0.731),
        },
        10: {
            "LRSC": (0.679, 0.721, 0.716, 0.658),
            "DLRSC": (0.685, 0.743, 0.737, 0.652),
            "DSCN": (0.704, 0.775, 0.761, 0.663),
            "FDSC1": (0.717, 0.781, 0.772, 0.631),
            "FDSC2": (0.729, 0.797, 0.789, 0.658),
        },
    },
    "orl": {
        20: {
            "LRSC": (0.508, 0.669, 0.345, 0.285),
            "DLRSC": (0.514, 0.673, 0.341, 0.279),
            "DSCN": (0.525, 0.692, 0.366, 0.287),
            "FDSC1": (0.532, 0.707, 0.364, 0.285),
            "FDSC2": (0.537, 0.716, 0.374, 0.293),
        },
        40: {
            "LRSC": (0.621, 0.735, 0.389, 0.347),
            "DLRSC": (0.626, 0.754, 0.386, 0.342),
            "DSCN": (0.645, 0.761, 0.401, 0.352),
            "FDSC1": (0.652, 0.765, 0.416, 0.361),
            "FDSC2": (0.675, 0.776, 0.424, 0.374),
        },
    },
    "coil20": {
        10: {
            "LRSC": (0.642, 0.728, 0.693, 0.504),
            "DLRSC": (0.663, 0.739, 0.701, 0.518),
            "DSCN": (0.685, 0.767, 0.712, 0.535),
            "FDSC1": (0.705, 0.739, 0.731, 0.547),
            "FDSC2": (0.713, 0.752, 0.741, 0.553),
        },
        20: {
            "LRSC": (0.687, 0.813, 0.752, 0.584),
            "DLRSC": (0.682, 0.819, 0.764, 0.608),
            "DSCN": (0.705, 0.842, 0.785, 0.614),
            "FDSC1": (0.713, 0.854, 0.798, 0.625),
            "FDSC2": (0.725, 0.866, 0.806, 0.636),
        },
    },
    "coil100": {
        50: {
            "LRSC": (0.607, 0.803, 0.713, 0.548),
            "DLRSC": (0.629, 0.815, 0.726, 0.554),
            "DSCN": (0.647, 0.834, 0.739, 0.565),
            "FDSC1": (0.658, 0.843, 0.753, 0.589),
            "FDSC2": (0.667, 0.857, 0.764, 0.595),
        },
        100: {
            "LRSC": (0.753, 0.864, 0.726, 0.584),
            "DLRSC": (0.764, 0.879, 0.735, 0.602),
            "DSCN": (0.781, 0.894, 0.752, 0.616),
            "FDSC1": (0.784, 0.905, 0.768, 0.634),
            "FDSC2": (0.794, 0.915, 0.772, 0.649),
        },
    },
}  # Table 2
"""Scores by data set, number of classes per client q and method."""
BY_CLIENTS: dict[int, dict[str, Scores]] = {
    10: {
        "FDSC1": (0.869, 0.815, 0.812, 0.793),
        "FDSC2": (0.876, 0.827, 0.825, 0.798),
    },
    20: {
        "FDSC1": (0.875, 0.832, 0.831, 0.786),
        "FDSC2": (0.884, 0.843, 0.842, 0.798),
    },
    30: {
        "FDSC1": (0.882, 0.851, 0.847, 0.821),
        "FDSC2": (0.906, 0.865, 0.869, 0.828),
    },
    40: {
        "FDSC1": (0.903, 0.867, 0.879, 0.835),
        "FDSC2": (0.919, 0.873, 0.881, 0.842),
    },
    50: {
        "FDSC1": (0.926, 0.879, 0.874, 0.836),
        "FDSC2": (0.935, 0.891, 0.895, 0.853),
    },
}  # Table 3
"""Scores on MNIST by the number of clients m."""
BY_SIZE: dict[int, dict[str, Scores]] = {
    100: {
        "FDSC1": (0.825, 0.806, 0.809, 0.747),
        "FDSC2": (0.832, 0.815, 0.816, 0.752),
    },
    250: {
        "FDSC1": (0.842, 0.827, 0.824, 0.768),
        "FDSC2": (0.858, 0.834, 0.829, 0.773),
    },
    500: {
        "FDSC1": (0.861, 0.839, 0.832, 0.776),
        "FDSC2": (0.874, 0.841, 0.838, 0.782),
    },
    750: {
        "FDSC1": (0.878, 0.836, 0.833, 0.792),
        "FDSC2": (0.892, 0.850, 0.856, 0.803),
    },
    1000: {
        "FDSC1": (0.919, 0.874, 0.879, 0.813),
        "FDSC2": (0.932, 0.899, 0.897, 0.826),
    },
}  # Table 4
"""Scores on MNIST by the batch size b."""


def scores_of(row: Scores) -> dict[str, float]:
    """Returns a row of a table as a dict by score.

    Args:
        row: ACC, NMI, AMI and ARI as fractions, in the order of `SCORES`.

    Returns:
        The value of each score, by its name in `SCORES`.
    """
    return dict(zip(SCORES, row, strict=True))
