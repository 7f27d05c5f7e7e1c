"""Scores in the tables of the SDA-FDC paper, Section 4, for comparison.

Yan et al., Federated deep clustering with GAN-based data synthesis, 2022
(https://arxiv.org/abs/2211.16965). The paper reports single runs.
"""

from fcjax.methods import paper_scores_ccfc as ccfc
from fcjax.methods.paper_scores_ccfc import LEVELS, Scores

CENTRAL = ("KM_central", "DCN_central")
"""The central methods, in the order of the columns."""
FEDERATED = ("SDA-FC-KM", "SDA-FDC (disjoint)", "SDA-FDC")
"""The federated methods, in the order of the columns."""
PAPER_NAMES = {
    "km": "KM_central",
    "dcn": "DCN_central",
    "sda-fc-km": "SDA-FC-KM",
    "sda-fdc-disjoint": "SDA-FDC (disjoint)",
    "sda-fdc": "SDA-FDC",
}
"""The name of each method in the paper."""
NMI: Scores = {  # Table 2
    "mnist": (
        (0.5304, 0.8009),
        (
            (0.5133, 0.6026, 0.6582),
            (0.5033, 0.5883, 0.6392),
            (0.5118, 0.6065, 0.6721),
            (0.5196, 0.6657, 0.7433),
            (0.5273, 0.7572, 0.8353),
        ),
    ),
    "fashion_mnist": (
        (0.6070, 0.6391),
        (
            (0.5947, 0.5725, 0.6091),
            (0.6052, 0.5519, 0.5975),
            (0.6063, 0.5384, 0.5784),
            (0.6077, 0.5696, 0.6103),
            (0.6065, 0.6255, 0.6467),
        ),
    ),
    "cifar10": (
        (0.0871, 0.1260),
        (
            (0.0823, 0.1151, 0.1165),
            (0.0835, 0.1166, 0.1185),
            (0.0838, 0.1185, 0.1237),
            (0.0864, 0.1157, 0.1157),
            (0.0856, 0.1337, 0.1318),
        ),
    ),
    "stl10": (
        (0.1532, 0.1718),
        (
            (0.1470, 0.1318, 0.1318),
            (0.1511, 0.1449, 0.1501),
            (0.1498, 0.1469, 0.1432),
            (0.1441, 0.1545, 0.1590),
            (0.1477, 0.1588, 0.1629),
        ),
    ),
    "pendigits": (
        (0.6877, 0.7409),
        (
            (0.6972, 0.6663, 0.7201),
            (0.6796, 0.6618, 0.7054),
            (0.6661, 0.6852, 0.7161),
            (0.6734, 0.7057, 0.7472),
            (0.5172, 0.5927, 0.5627),
        ),
    ),
}
KAPPA: Scores = {  # Table 3
    "mnist": (
        (0.4786, 0.7699),
        (
            (0.4977, 0.6065, 0.6134),
            (0.4781, 0.5848, 0.5773),
            (0.4884, 0.5862, 0.6007),
            (0.4926, 0.6508, 0.6892),
            (0.5000, 0.7480, 0.7884),
        ),
    ),
    "fashion_mnist": (
        (0.4778, 0.5186),
        (
            (0.4640, 0.4918, 0.4857),
            (0.4763, 0.4380, 0.4721),
            (0.4826, 0.4336, 0.4552),
            (0.4774, 0.4625, 0.4774),
            (0.4825, 0.5794, 0.5745),
        ),
    ),
    "cifar10": (
        (0.1347, 0.1599),
        (
            (0.1275, 0.1488, 0.1426),
            (0.1275, 0.1458, 0.1400),
            (0.1307, 0.1422, 0.1443),
            (0.1360, 0.1412, 0.1358),
            (0.1341, 0.1612, 0.1499),
        ),
    ),
    "stl10": (
        (0.1550, 0.1909),
        (
            (0.1533, 0.1579, 0.1557),
            (0.1448, 0.1578, 0.1611),
            (0.1377, 0.1695, 0.1415),
            (0.1513, 0.1762, 0.1813),
            (0.1527, 0.1832, 0.1868),
        ),
    ),
    "pendigits": (
        (0.6523, 0.7489),
        (
            (0.7444, 0.7358, 0.6908),
            (0.7304, 0.7283, 0.7466),
            (0.6149, 0.7277, 0.6916),
            (0.6228, 0.7542, 0.7774),
            (0.5063, 0.5724, 0.3929),
        ),
    ),
}


def scores_of(dataset: str, method: str) -> dict[float, dict[str, float]]:
    """Returns the NMI and kappa of a method for each p.

    The scores of a central method are the same for each p. The result is empty for a
    data set or a method that is not in the paper. SDA-FC-FCM is not in this paper; its
    scores are from the CCFC paper, which has the same scores for the other methods.

    Args:
        dataset: name of the data set, for example "mnist".
        method: name of the method in fcjax, for example "sda-fdc".

    Returns:
        Scores by p, and by "nmi" and "kappa".
    """
    if method == "sda-fc-fcm":
        return ccfc.scores_of(dataset, "SDA-FC-FCM")
    if method not in PAPER_NAMES:
        return {}
    column = [*CENTRAL, *FEDERATED].index(PAPER_NAMES[method])
    result: dict[float, dict[str, float]] = {}
    for name, scores in (("nmi", NMI), ("kappa", KAPPA)):
        central, levels = scores.get(dataset, ((), ()))
        for p, row in zip(LEVELS, levels, strict=False):
            result.setdefault(p, {})[name] = (*central, *row)[column]
    return result
