"""The scores that the FedCRef paper reports.

Nardi, Valerio and Passarella, Federated clustering: an unsupervised cluster-wise
training for decentralized data distributions, 2026 (https://arxiv.org/abs/2408.10664,
version 3), Section 6.

A score is a mean and the half-width of its 95 % interval over five runs. The half-width
is None if the paper does not print it. Wrong associations are fractions here and
percentages in the paper. Improvements are percentages.
"""

from collections.abc import Mapping, Sequence

Interval = tuple[float, float | None]
"""Mean and half-width."""
Line = tuple[Interval, ...]

EMNIST, KMNIST, KMNIST49, FASHION = (
    "emnist/digits",
    "kmnist",
    "kmnist49",
    "fashion_mnist",
)
OURS, PERFECT = "FedCRef", "Perfect Associations"
CENTRAL_DEC, OURS_DEC, UIFCA = (
    "Centralized baseline w/ DEC",
    "FedCRef w/ DEC",
    "UIFCA",
)

OVERALL: dict[str, dict[str, Interval]] = {
    CENTRAL_DEC: {"acc": (0.793, 0.087), "categories": (9.0, 0.61)},
    OURS_DEC: {"acc": (0.894, 0.031), "categories": (10.8, 1.1)},
    UIFCA: {"acc": (0.439, 0.021)},  # UIFCA gets the number of categories as input.
}  # Table 3
"""Scores on EMNIST by method."""

FOUND_AND_ACC = (
    "initial_acc",
    "acc",
    "communities",
    "wrong_associations",
    "initial_isolated",
    "isolated",
)
FROM_DEC: Line = (
    (0.781, 0.045),
    (0.894, 0.031),
    (10.8, 1.1),
    (0.011, 0.016),
    (87.5, 3.2),
    (19.1, 7.2),
)  # Table 4
"""Scores on EMNIST of FedCRef w/ DEC, with the columns FOUND_AND_ACC."""

FOUND = ("communities", "wrong_associations", "initial_isolated", "isolated")
FOUND_BY_DIRTINESS: dict[str, dict[float, Line]] = {
    EMNIST: {
        0.0: ((10.1, 0.7), (0.0, 0.0), (89.4, 2.5), (17.3, 3.9)),
        0.3: ((9.8, 1.1), (0.051, 0.017), (87.6, 4.2), (16.1, 1.3)),
        0.5: ((10.2, 0.9), (0.069, 0.012), (89.4, 5.6), (48.0, 3.2)),
    },
    KMNIST: {
        0.0: ((9.8, 1.6), (0.0, 0.0), (87.0, 6.7), (18.6, 3.4)),
        0.3: ((9.8, 0.8), (0.020, 0.011), (88.1, 4.3), (19.2, 1.4)),
        0.5: ((10.8, 0.9), (0.031, 0.009), (86.4, 3.8), (31.0, 2.5)),
    },
    KMNIST49: {
        0.0: ((27.2, 1.6), (0.024, 0.023), (201.4, 11.5), (40.0, 7.8)),
        0.3: ((27.4, 2.6), (0.074, 0.022), (197.8, 14.5), (53.4, 4.3)),
        0.5: ((24.8, 4.4), (0.082, 0.030), (218.6, 17.2), (89.8, 5.1)),
    },
    FASHION: {
        0.0: ((8.2, 1.04), (0.052, 0.023), (87.2, 3.7), (5.8, 2.2)),
        0.3: ((8.33, 2.87), (0.040, 0.050), (84.7, 5.7), (9.7, 7.6)),
        0.5: ((7.67, 1.43), (0.098, 0.033), (85.6, 3.4), (16.0, 10.8)),
    },
}  # Table 5
"""Scores by data set and dirtiness, with the columns FOUND."""

ACC = ("initial_acc", "acc", "improvement")
ACC_BY_DIRTINESS: dict[str, dict[float, Line]] = {
    EMNIST: {
        0.0: ((1.0, None), (0.948, 0.011), (-5.2, 1.05), (0.982, 0.001)),
        0.3: ((0.701, None), (0.879, 0.028), (25.392, 4.00), (0.949, 0.0097)),
        0.5: ((0.503, None), (0.711, 0.049), (41.352, 9.74), (0.914, 0.0059)),
    },
    KMNIST: {
        0.0: ((1.0, None), (0.93, 0.016), (-7.0, 1.6), (0.963, 0.0025)),
        0.3: ((0.700, None), (0.863, 0.031), (23.286, 4.43), (0.933, 0.0047)),
        0.5: ((0.504, None), (0.765, 0.058), (51.786, 11.51), (0.905, 0.0059)),
    },
    KMNIST49: {
        0.0: ((1.0, None), (0.889, 0.008), (-11.1, 0.8), (0.933, 0.0041)),
        0.3: ((0.699, None), (0.769, 0.019), (10.014, 2.72), (0.889, 0.0029)),
        0.5: ((0.501, None), (0.622, 0.065), (24.152, 12.97), (0.849, 0.0011)),
    },
    FASHION: {
        0.0: ((1.0, None), (0.869, 0.015), (-13.1, 1.51), (0.864, 0.0026)),
        0.3: ((0.699, None), (0.787, 0.046), (12.62, 6.6), (0.828, 0.0021)),
        0.5: ((0.501, None), (0.740, 0.087), (47.7, 17.4), (0.808, 0.003)),
    },
}  # Table 6
"""Scores by data set and dirtiness, with the columns ACC, and ACC with perfect
associations."""

BY_THRESHOLD: dict[tuple[float, float], Line] = {
    (75.0, 0.2): ((0.879, 0.028), (9.8, 1.1), (0.051, 0.017), (87.6, 4.2), (16.1, 1.3)),
    (75.0, 0.1): ((0.709, 0.020), (1.6, 1.1), (0.0, None), (84.8, 5.6), (76.8, 8.2)),
    (75.0, 0.3): (
        (0.644, 0.024),
        (12.2, 1.0),
        (0.124, 0.023),
        (85.2, 4.8),
        (19.8, 2.2),
    ),
    (85.0, 0.2): ((0.752, 0.027), (6.8, 1.0), (0.008, 0.010), (87.3, 5.4), (51.4, 5.6)),
    (90.0, 0.2): ((0.700, None), (0.0, None), (0.0, None), (87.6, 5.4), (87.6, 5.4)),
}  # Table 7
"""Scores on EMNIST at dirtiness 0.3 by percentile alpha and threshold theta, with the
columns FOUND_AND_ACC without the first."""

FOUND_BY_OVERLAP: dict[float, Line] = {
    0.0: ((9.8, 1.7), (0.0, None), (88.2, 3.2), (18.8, 9.3)),
    0.3: ((10.0, 0.4), (0.0, None), (89.571, 5.8), (8.429, 3.2)),
    0.5: ((10.0, 0.1), (0.0, None), (90.167, 4.4), (1.333, 0.8)),
}  # Table 8
"""Scores on EMNIST at dirtiness 0.3 by overlap, with the columns FOUND."""

ACC_BY_OVERLAP: dict[float, Line] = {
    0.0: ((0.7, None), (0.903, 0.033), (28.816, 3.16), (0.953, 0.015)),
    0.3: ((0.7, None), (0.955, 0.016), (36.234, 2.32), (0.962, 0.012)),
    0.5: ((0.7, None), (0.976, 0.004), (39.23, 1.12), (0.97, 0.003)),
}  # Table 9
"""Scores on EMNIST at dirtiness 0.3 by overlap, with the columns of
ACC_BY_DIRTINESS."""

FOUND_BY_CLIENTS: dict[int, Line] = {
    20: ((10.2, 1.1), (0.00222, 0.00339), (70.9, 3.5), (21.4, 4.7)),
    30: ((10.0, 1.76), (0.0, 0.0), (105.5, 5.3), (16.8, 6.2)),
    40: ((11.5, 1.41), (0.0112, 0.00941), (141.4, 3.7), (30.9, 9.4)),
}  # Table 10
"""Scores on EMNIST at dirtiness 0.3 by number of clients, with the columns FOUND."""

ACC_BY_CLIENTS: dict[int, Line] = {
    20: ((0.7, None), (0.869, 0.03), (24.143, 4.286), (0.921, 0.041)),
    30: ((0.7, None), (0.916, 0.027), (30.67, 3.88), (0.937, 0.029)),
    40: ((0.7, None), (0.86, 0.06), (22.857, 8.571), (0.953, 0.007)),
}  # Table 11
"""Scores on EMNIST at dirtiness 0.3 by number of clients, with the columns of
ACC_BY_DIRTINESS."""

CONVERGENCE = ("iteration", "minutes")
CONVERGED_BY_CLIENTS: dict[int, Line] = {
    20: ((11.5, 2.1), (50.4, 11.8)),
    30: ((13.7, 1.7), (71.2, 9.9)),
    40: ((16.7, 3.6), (87.6, 16.2)),
}  # Table 12
"""Iterations to convergence and minutes on EMNIST at dirtiness 0.3, by number of
clients."""


def means(names: Sequence[str], row: Sequence[Interval]) -> dict[str, float]:
    """Returns the means of a row by column.

    Args:
        names: the names of the columns.
        row: mean and half-width of each column.

    Returns:
        The mean of each column, by its name.
    """
    return {name: mean for name, (mean, _) in zip(names, row, strict=True)}


def accuracies(
    setting: tuple, row: Sequence[Interval]
) -> Mapping[tuple, dict[str, float]]:
    """Returns the scores of a row of Table 6, 9 or 11, by setting and method.

    A row has the scores of FedCRef and of perfect associations.

    Args:
        setting: the data set and the swept value.
        row: the row as the paper prints it.

    Returns:
        The scores by setting and method.
    """
    *fedcref_scores, (perfect, _) = row
    return {
        (*setting, OURS): means(ACC, fedcref_scores),
        (*setting, PERFECT): {"acc": perfect},
    }
