"""The scores that the FedMCC paper reports, in percent.

Miao and Koyuncu, Federated momentum contrastive clustering, 2022
(https://arxiv.org/abs/2206.05093), Sections IV and V. The paper has single runs without
spreads.
"""

IID, NON_IID = 1.0, 0.2
"""Class share: the share of all classes that each of the five clients has."""
SCORES = ("nmi", "acc", "ari")
FEDERATED = ("cifar10", "cifar100", "stl10", "imagenet-10", "mnist")
"""Data sets of Tables I and II."""
CENTRAL = (
    "cifar10",
    "cifar20",  # CIFAR-100 by its 20 super-classes
    "stl10",
    "imagenet-10",
    "imagenet-dogs",
    "tiny-imagenet",
)
"""Data sets of Table VI."""

Scores = tuple[float | None, ...]
"""NMI, ACC and ARI of each data set in turn. None stands for a dash in the paper."""
NCC = (88.6, 94.3, 88.4, 60.6, 61.4, 45.1, 75.8, 86.7, 73.7, 89.6, 95.6, 90.6)
CLUSTERING: dict[float, dict[str, Scores]] = {  # Tables I and II
    IID: {
        "FedU + K-means": (
            *(47.0, 57.6, 36.1),
            *(37.0, 21.9, 11.5),
            *(35.2, 39.4, 20.2),
            *(49.9, 61.8, 37.8),
            *(77.4, 80.6, 71.2),
        ),
        "FedU + MCC": (
            *(52.9, 62.5, 43.9),
            *(31.7, 16.7, 6.9),
            *(35.2, 41.8, 21.9),
            *(53.7, 63.1, 44.9),
            *(79.9, 83.7, 75.2),
        ),
        "Fed + CC": (
            *(54.6, 64.2, 45.4),
            *(28.7, 14.9, 6.9),
            *(41.8, 49.3, 30.7),
            *(53.3, 63.6, 50.4),
            *(75.0, 80.8, 68.2),
        ),
        "FedMCC": (
            *(57.0, 69.4, 50.6),
            *(35.6, 22.0, 11.8),
            *(41.7, 49.6, 30.8),
            *(61.6, 67.3, 54.1),
            *(79.6, 87.3, 76.2),
        ),
        "NCC (central)": (*NCC, None, None, None),
    },
    NON_IID: {
        "FedU + K-means": (
            *(45.8, 48.7, 30.0),
            *(37.0, 21.9, 11.5),
            *(34.8, 38.9, 19.9),
            *(40.0, 48.0, 29.3),
            *(42.0, 41.8, 25.8),
        ),
        "FedU + MCC": (
            *(38.2, 47.2, 26.6),
            *(31.7, 16.7, 6.9),
            *(33.6, 36.9, 19.6),
            *(39.8, 47.6, 29.0),
            *(53.1, 55.1, 38.2),
        ),
        "Fed + CC": (
            *(38.4, 43.4, 25.6),
            *(30.5, 14.7, 5.8),
            *(34.2, 38.7, 20.1),
            *(44.3, 50.4, 32.6),
            *(55.6, 54.5, 40.4),
        ),
        "FedMCC": (
            *(45.5, 49.5, 29.8),
            *(37.9, 22.6, 11.4),
            *(34.3, 43.0, 21.9),
            *(44.8, 51.1, 33.2),
            *(59.4, 58.0, 44.4),
        ),
        "NCC (central)": (*NCC, None, None, None),
    },
}
PROBED = tuple((x, share) for x in ("cifar10", "cifar100") for share in (IID, NON_IID))
"""Columns of Tables III and IV: data set and class share. The scores are top-1
accuracies."""
RESNET50 = {  # Table III
    "Single client": (83.2, 77.8, 57.2, 55.2),
    "FedSimCLR": (68.1, 64.1, 39.8, 38.7),
    "FedCA": (71.3, 68.0, 43.3, 42.3),
    "FedSimSiam": (79.6, 76.7, 46.3, 48.8),
    "FedU": (86.5, 83.2, 59.5, 61.9),
    "FedEMA (lambda = 0.8)": (86.1, 85.3, 60.9, 62.5),
    "FedEMA (tau = 0.7)": (85.1, 84.3, 59.5, 62.8),
    "FedMCC": (86.8, 85.3, 60.8, 62.3),
}
RESNET18 = {  # Table IV
    "Single client": (81.2, 72.0, 51.3, 49.7),
    "FedU": (85.2, 78.7, 56.5, 57.1),
    "FedEMA (lambda = 0.8)": (85.6, 82.8, 57.9, 61.2),
    "FedEMA (tau = 0.7)": (86.3, 83.3, 58.6, 61.8),
    "FedMCC": (85.5, 82.7, 57.2, 57.1),
    "FedMCC (tuned)": (87.8, 85.2, 59.6, 59.9),
}
FEW_LABELS = {  # Table V, CIFAR-10: IID, non-IID at 1 % of the labels, then at 10 %
    "Single client (Res18)": (74.8, 60.3, 78.1, 70.6),
    "Single client (Res50)": (74.8, 63.7, 80.3, 74.3),
    "FedSimCLR (Res50)": (50.0, 26.0, 60.7, 33.8),
    "FedCA (Res50)": (50.7, 28.5, 61.0, 36.3),
    "FedU (Res50)": (79.4, 71.2, 83.1, 80.1),
    "FedU (Res18)": (79.4, 68.3, 82.6, 78.5),
    "FedEMA (lambda = 1, Res18)": (None, 72.8, None, 79.0),
    "FedMCC (Res18)": (80.0, 72.2, 82.9, 82.0),
    "FedMCC (Res18, tuned)": (82.9, 73.3, 83.1, 82.0),
}
_DASH = (None, None, None)
CENTRALIZED: dict[str, Scores] = {  # Table VI
    "k-means": (
        *(8.7, 22.9, 4.9),
        *(8.4, 13.0, 2.8),
        *(12.5, 19.2, 6.1),
        *(11.9, 24.1, 5.7),
        *(5.5, 10.5, 2.0),
        *(6.5, 2.5, 0.5),
    ),
    "SC": (
        *(10.3, 24.7, 8.5),
        *(9.0, 13.6, 2.2),
        *(9.8, 15.9, 4.8),
        *(15.1, 27.4, 7.6),
        *(3.8, 11.1, 1.3),
        *(6.3, 2.2, 0.4),
    ),
    "AE": (
        *(23.9, 31.4, 16.9),
        *(10.0, 16.5, 4.8),
        *(25.0, 30.3, 16.1),
        *(21.0, 31.7, 15.2),
        *(10.4, 18.5, 7.3),
        *(6.9, 2.7, 0.5),
    ),
    "VAE": (
        *(24.5, 29.1, 16.7),
        *(10.8, 15.2, 4.0),
        *(20.0, 28.2, 14.6),
        *(19.3, 33.4, 16.8),
        *(10.7, 17.9, 7.9),
        *(11.3, 3.6, 0.6),
    ),
    "JULE": (
        *(19.2, 27.2, 13.8),
        *(10.3, 13.7, 3.3),
        *(18.2, 27.7, 16.4),
        *(17.5, 30.0, 13.0),  # printed "13."
        *(5.4, 13.8, 2.8),
        *(10.2, 3.3, 0.6),
    ),
    "DEC": (
        *(25.7, 30.1, 16.1),
        *(13.6, 18.5, 5.0),
        *(27.6, 35.9, 18.6),
        *(28.2, 38.1, 20.3),
        *(12.2, 19.5, 7.9),
        *(11.5, 3.7, 0.7),
    ),
    "DAC": (
        *(39.6, 52.2, 30.6),
        *(18.5, 23.8, 8.8),
        *(36.6, 47.0, 25.7),
        *(39.4, 52.7, 30.2),
        *(21.9, 27.5, 11.1),
        *(19.0, 6.6, 1.7),
    ),
    "IIC": (
        *(51.3, 61.7, 41.1),
        *(None, 25.7, None),
        *(43.1, 49.9, 29.5),
        *_DASH,
        *_DASH,
        *_DASH,
    ),
    "DCCM": (
        *(49.6, 62.3, 40.8),
        *(28.5, 32.7, 17.3),
        *(37.6, 48.2, 26.2),
        *(60.8, 71.0, 55.5),
        *(32.1, 38.3, 18.2),
        *(22.4, 10.8, 3.8),
    ),
    "PICA": (
        *(56.1, 64.5, 46.7),
        *(29.6, 32.2, 15.9),
        *_DASH,
        *(78.2, 85.0, 73.3),
        *(33.6, 32.4, 17.9),
        *(27.7, 9.8, 4.0),
    ),
    "CC": (
        *(70.5, 79.0, 63.7),
        *(43.1, 42.9, 26.6),
        *(76.4, 85.0, 72.6),
        *(85.9, 89.3, 82.2),
        *(44.5, 42.9, 27.4),
        *(34.0, 14.0, 7.1),
    ),
    "SCAN": (
        *(79.7, 88.3, 77.2),
        *(48.6, 50.7, 33.3),
        *(80.9, 69.8, 64.6),
        *_DASH,
        *_DASH,
        *_DASH,
    ),
    "GCC": (
        *(76.4, 85.6, 72.8),
        *(47.2, 47.2, 30.5),
        *(68.4, 78.8, 63.1),
        *(84.2, 90.1, 82.2),
        *(49.0, 52.6, 36.2),
        *(34.7, 13.8, 7.5),
    ),
    "MiCE": (
        *(73.7, 83.5, 69.8),
        *(43.6, 44.0, 28.0),
        *(63.5, 75.2, 57.5),
        *_DASH,
        *(42.3, 43.9, 28.6),
        *_DASH,
    ),
    "IDFD": (
        *(71.1, 81.5, 66.3),
        *(42.6, 42.5, 26.4),
        *(64.3, 75.6, 57.5),
        *(89.8, 95.4, 90.1),
        *(54.6, 59.1, 41.3),
        *_DASH,
    ),
    "PCL": (
        *(80.2, 87.4, 76.6),
        *(52.8, 52.6, 36.3),
        *(71.8, 41.0, 67.0),
        *(84.1, 90.7, 82.2),
        *(44.0, 41.2, 29.9),
        *_DASH,
    ),
    "NCC": (
        *NCC,
        *(69.2, 74.5, 62.7),
        *(40.5, 25.6, 14.3),
    ),
    "MCC": (
        *(76.2, 84.9, 72.7),
        *(44.0, 45.4, 28.5),
        *(77.2, 87.0, 74.8),
        *(90.4, 95.9, 91.1),
        *(53.0, 54.7, 39.5),
        *(35.09, 15.2, 7.5),
    ),
}
AVERAGED_TARGET = {  # Table VII
    ("cifar10", IID): (53.2, 58.3, 43.5),
    ("cifar10", NON_IID): (34.9, 40.4, 22.8),
    ("cifar100", IID): (33.0, 18.3, 7.6),
    ("cifar100", NON_IID): (30.9, 15.5, 6.4),
    ("mnist", IID): (62.6, 62.9, 47.7),
    ("mnist", NON_IID): (24.5, 37.3, 14.9),
}
LOCAL_EPOCHS = {  # Table VIII: by E and R, in the order of PROBED
    (1, 500): (
        *(48.7, 57.6, 36.2),
        *(39.5, 40.9, 25.9),
        *(34.6, 19.2, 8.4),
        *(32.3, 17.1, 7.1),
    ),
    (2, 250): (
        *(50.5, 59.1, 39.3),
        *(41.4, 45.0, 28.4),
        *(34.4, 19.5, 8.27),
        *(32.9, 17.6, 3.4),
    ),
    (5, 100): (
        *(57.0, 69.4, 50.6),
        *(45.5, 49.5, 29.8),
        *(35.6, 22.0, 11.8),
        *(37.9, 22.6, 11.4),
    ),
    (10, 50): (
        *(50.7, 58.7, 41.3),
        *(37.4, 43.1, 24.2),
        *(34.3, 19.0, 8.2),
        *(24.1, 12.1, 4.2),
    ),
}
MOMENTUM = {  # Table IX, likewise
    0.996: (
        *(45.6, 52.4, 34.0),
        *(37.5, 45.2, 25.7),
        *(33.9, 19.0, 7.8),
        *(31.8, 16.6, 6.6),
    ),
    0.99: LOCAL_EPOCHS[5, 100],
}
FIGURE5_NMI = (21.1, 70.6)
"""NMI under Figure 5: MCC on STL-10 in epochs 0 and 500."""


def of_clustering(share: float) -> dict[tuple, dict[str, float]]:
    """Returns the scores of Table I or II by data set, class share and method.

    Args:
        share: the class share: `IID` for Table I, `NON_IID` for Table II.

    Returns:
        NMI, ACC and ARI as fractions, by setting. Missing scores are left out.
    """
    return {
        (dataset, share, method): scores
        for method, row in CLUSTERING[share].items()
        for dataset, scores in zip(FEDERATED, by_score(row), strict=True)
        if scores
    }


def of_clustering_everywhere() -> dict[tuple, dict[str, float]]:
    """Returns the scores of Tables I and II together."""
    return of_clustering(IID) | of_clustering(NON_IID)


def by_score(row: Scores) -> list[dict[str, float]]:
    """Returns NMI, ACC and ARI per data set as fractions.

    Args:
        row: NMI, ACC and ARI of each data set in turn, in percent. None is a missing
            score.

    Returns:
        One dict per data set, from the name of a score to its value. Missing scores are
        left out.
    """
    return [
        {
            name: value / 100
            for name, value in zip(SCORES, row[start : start + 3], strict=True)
            if value is not None
        }
        for start in range(0, len(row), 3)
    ]
