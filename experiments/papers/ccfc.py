"""Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024
(https://arxiv.org/abs/2401.06634), Section 4. Single runs, without spreads."""

from collections.abc import Mapping
from functools import partial

from . import measures
from .study import Paper, Preset, Row, Study

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""p."""
CENTRAL = ("KM", "FCM")
FEDERATED = ("k-FED", "FFCM", "SDA-FC-KM", "SDA-FC-FCM", "PPFC-GAN", "CCFC")

Scores = Mapping[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]]
"""By data set: those of `CENTRAL`, and for every p those of `FEDERATED`."""
NMI: Scores = {  # Table 1
    "mnist": (
        (0.5304, 0.5187),
        (
            (0.5081, 0.5157, 0.5133, 0.5141, 0.6582, 0.9236),
            (0.4879, 0.5264, 0.5033, 0.5063, 0.6392, 0.8152),
            (0.4515, 0.4693, 0.5118, 0.5055, 0.6721, 0.6718),
            (0.4552, 0.4855, 0.5196, 0.5143, 0.7433, 0.3611),
            (0.4142, 0.5372, 0.5273, 0.5140, 0.8353, 0.0766),
        ),
    ),
    "fashion_mnist": (
        (0.6070, 0.6026),
        (
            (0.5932, 0.5786, 0.5947, 0.6027, 0.6091, 0.6237),
            (0.5730, 0.5995, 0.6052, 0.5664, 0.5975, 0.5709),
            (0.6143, 0.6173, 0.6063, 0.6022, 0.5784, 0.6023),
            (0.5237, 0.6139, 0.6077, 0.5791, 0.6103, 0.4856),
            (0.5452, 0.5855, 0.6065, 0.6026, 0.6467, 0.1211),
        ),
    ),
    "cifar10": (
        (0.0871, 0.0823),
        (
            (0.0820, 0.0812, 0.0823, 0.0819, 0.1165, 0.2449),
            (0.0866, 0.0832, 0.0835, 0.0818, 0.1185, 0.2094),
            (0.0885, 0.0870, 0.0838, 0.0810, 0.1237, 0.2085),
            (0.0818, 0.0842, 0.0864, 0.0808, 0.1157, 0.1189),
            (0.0881, 0.0832, 0.0856, 0.0858, 0.1318, 0.0639),
        ),
    ),
    "stl10": (
        (0.1532, 0.1469),
        (
            (0.1468, 0.1436, 0.1470, 0.1406, 0.1318, 0.2952),
            (0.1472, 0.1493, 0.1511, 0.1435, 0.1501, 0.1727),
            (0.1495, 0.1334, 0.1498, 0.1424, 0.1432, 0.2125),
            (0.1455, 0.1304, 0.1441, 0.1425, 0.1590, 0.1610),
            (0.1403, 0.1565, 0.1477, 0.1447, 0.1629, 0.0711),
        ),
    ),
}
KAPPA: Scores = {  # Table 2
    "mnist": (
        (0.4786, 0.5024),
        (
            (0.5026, 0.5060, 0.4977, 0.5109, 0.6134, 0.9619),
            (0.4000, 0.5105, 0.4781, 0.5027, 0.5773, 0.8307),
            (0.3636, 0.3972, 0.4884, 0.4967, 0.6007, 0.6534),
            (0.3558, 0.4543, 0.4926, 0.5021, 0.6892, 0.3307),
            (0.3386, 0.5103, 0.5000, 0.5060, 0.7884, 0.0911),
        ),
    ),
    "fashion_mnist": (
        (0.4778, 0.5212),
        (
            (0.4657, 0.4974, 0.4640, 0.5252, 0.4857, 0.6411),
            (0.5222, 0.5180, 0.4763, 0.4962, 0.4721, 0.5261),
            (0.4951, 0.4974, 0.4826, 0.5258, 0.4552, 0.5929),
            (0.4240, 0.4995, 0.4774, 0.4955, 0.4774, 0.3945),
            (0.3923, 0.4672, 0.4825, 0.5323, 0.5745, 0.1434),
        ),
    ),
    "cifar10": (
        (0.1347, 0.1437),
        (
            (0.1305, 0.1439, 0.1275, 0.1283, 0.1426, 0.2854),
            (0.1366, 0.1491, 0.1275, 0.1376, 0.1400, 0.2281),
            (0.1252, 0.1316, 0.1307, 0.1411, 0.1443, 0.2214),
            (0.1303, 0.1197, 0.1360, 0.1464, 0.1358, 0.1214),
            (0.1147, 0.1237, 0.1341, 0.1494, 0.1499, 0.1047),
        ),
    ),
    "stl10": (
        (0.1550, 0.1602),
        (
            (0.1390, 0.1514, 0.1533, 0.1505, 0.1557, 0.1687),
            (0.1361, 0.1479, 0.1448, 0.1527, 0.1611, 0.1422),
            (0.1505, 0.1112, 0.1377, 0.1620, 0.1415, 0.1407),
            (0.1256, 0.1001, 0.1513, 0.1603, 0.1813, 0.1133),
            (0.1328, 0.1351, 0.1527, 0.1553, 0.1868, 0.0519),
        ),
    ),
}
NEIGHBORS = {  # Table 3: % of MNIST's test images, for each k of measures.NEIGHBORS
    "Raw pixels": (97.05, 96.88, 96.94, 96.59, 94.40, 87.31, 70.16),
    "PPFC-GAN": (95.26, 95.20, 95.25, 95.25, 92.73, 85.37, 71.19),
    "SCFC": (98.11, 98.23, 98.25, 98.21, 97.54, 96.30, 94.09),
    "CCFC": (98.25, 98.33, 98.26, 98.32, 97.86, 97.09, 97.09),
}
SCFC = {"sample_contrastive": True}
FEDAVG = {"model_weight": (0.0,)}
ALONE = {"standalone": True, **FEDAVG}
VARIANTS = {  # Table 4's columns: double dagger, dagger, and the whole method
    "SCFC standalone": {**SCFC, **ALONE},
    "CCFC standalone": ALONE,
    "SCFC FedAvg": {**SCFC, **FEDAVG},
    "CCFC FedAvg": FEDAVG,
    "SCFC": SCFC,
    "CCFC": {},
}
CLIENTS = (  # Table 4: kappa of clients 1 to 10, with each of the variants
    (0.1286, 0.4255, 0.8243, 0.8749, 0.8970, 0.9605),
    (0.1774, 0.2036, 0.8297, 0.8787, 0.9046, 0.9643),
    (0.1685, 0.0517, 0.8273, 0.8783, 0.9027, 0.9611),
    (0.2751, 0.1847, 0.8239, 0.8714, 0.8987, 0.9617),
    (0.2134, 0.0926, 0.8179, 0.8689, 0.8976, 0.9609),
    (0.1862, 0.1892, 0.8201, 0.8696, 0.8987, 0.9625),
    (0.1876, 0.1681, 0.8241, 0.8722, 0.8995, 0.9624),
    (0.3407, 0.3741, 0.8330, 0.8750, 0.9030, 0.9611),
    (0.2810, 0.2936, 0.8190, 0.8687, 0.8983, 0.9616),
    (0.1940, 0.2727, 0.8214, 0.8686, 0.9000, 0.9630),
)
FAILURE_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of Figure 6, whose own the text does not give."""
MODEL_WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Of Figure 7, whose own the text does not give."""


def scores_of(dataset: str, method: str) -> dict[float, dict[str, float]]:
    """Returns the NMI and kappa of a method for every p, those of a central one being
    the same; {} where the paper has no such data set."""
    found: dict[float, dict[str, float]] = {}
    for name, scores in (("nmi", NMI), ("kappa", KAPPA)):
        central, levels = scores.get(dataset, ((), ()))
        for p, row in zip(LEVELS, levels, strict=False):
            column = [*CENTRAL, *FEDERATED].index(method)
            found.setdefault(p, {})[name] = (*central, *row)[column]
    return found


def of_table(name: str, scores: Scores) -> Paper:
    """Returns Table 1 or 2 by data set, p (None where the data is central) and
    method."""
    found = {}
    for dataset, (central, levels) in scores.items():
        rows = [(None, CENTRAL, central)]
        rows += [(p, FEDERATED, row) for p, row in zip(LEVELS, levels, strict=True)]
        for p, methods, row in rows:
            for method, score in zip(methods, row, strict=True):
                found[dataset, p, method] = {name: score}
    return found


def of_clients() -> Paper:
    """Returns Table 4 by data set, method and client, with the means over clients."""
    found = {}
    for method, column in zip(VARIANTS, zip(*CLIENTS, strict=True), strict=True):
        for client, score in enumerate(column, start=1):
            found["mnist", method, client] = {"kappa": score}
        found["mnist", method, "mean"] = {"kappa": sum(column) / len(column)}
    return found


def of_figure(level: float) -> Paper:
    """Returns what Tables 1 and 2 have for a figure's curves, by data set, method, p
    and the level that the tables were made at; the figure's own values are nowhere in
    print."""
    return {
        ("mnist", "CCFC", p, level): scores
        for p, scores in scores_of("mnist", "CCFC").items()
    }


SHORT = {"ccfc": {"pretrain_rounds": (30,), "cluster_rounds": (10,)}}
FULL = {script: {"preset": "paper"} for script in ("ccfc", "baselines")}


def presets(
    smoke: Mapping[str, tuple],
    paper: Mapping[str, tuple],
    *,
    smoke_seeds: tuple[int, ...] = (0, 1, 2),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
) -> dict[str, Preset]:
    """Returns both presets from the grid of each."""
    return {
        "smoke": Preset(smoke, smoke_seeds, SHORT),
        "paper": Preset(paper, seeds, FULL),
    }


METHODS = (
    Row("KM", "baselines", {"methods": ("km",)}, central=True),
    Row("FCM", "baselines", {"methods": ("fcm",)}, central=True),
    Row("k-FED", "baselines", {"methods": ("k-fed",)}),
    Row("FFCM", "baselines", {"methods": ("ffcm",)}),
    Row("SDA-FC-KM"),
    Row("SDA-FC-FCM"),
    Row("PPFC-GAN"),
    Row("CCFC", "ccfc"),
)
IID = {"p": (0.0,)}
SCORES = ("nmi", "kappa", "surviving_nmi", "surviving_kappa")
STUDIES = {
    "ccfc-table1": Study(
        "NMI of all methods for each p",
        datasets=tuple(NMI),
        rows=METHODS,
        presets=presets({"p": LEVELS}, {"p": LEVELS}),
        measure=measures.scores,
        by=("dataset", "p", "method"),
        values=("nmi",),
        paper=of_table("nmi", NMI),
    ),
    "ccfc-table2": Study(
        "kappa of all methods for each p",
        datasets=tuple(KAPPA),
        rows=METHODS,
        presets=presets({"p": LEVELS}, {"p": LEVELS}),
        measure=measures.scores,
        by=("dataset", "p", "method"),
        values=("kappa",),
        paper=of_table("kappa", KAPPA),
    ),
    "ccfc-table3": Study(
        "accuracy of k neighbours' votes in each representation, p = 0",
        datasets=("mnist",),
        rows=(
            Row("Raw pixels", untrained=measures.neighbors_of_pixels),
            Row("PPFC-GAN"),
            Row("SCFC", "ccfc", SCFC),
            Row("CCFC", "ccfc"),
        ),
        presets=presets(IID, IID),
        measure=measures.neighbors,
        by=("dataset", "method", "k"),
        values=("accuracy",),
        paper={
            ("mnist", method, k): {"accuracy": percent / 100}
            for method, row in NEIGHBORS.items()
            for k, percent in zip(measures.NEIGHBORS, row, strict=True)
        },
    ),
    "ccfc-table4": Study(
        "kappa of each client without each component, p = 0, one run",
        datasets=("mnist",),
        rows=tuple(Row(label, "ccfc", flags) for label, flags in VARIANTS.items()),
        presets=presets(IID, IID, smoke_seeds=(0,), seeds=(0,)),
        measure=measures.clients,
        by=("dataset", "method", "client"),
        values=("imbalance", "kappa"),
        paper=of_clients(),
    ),
    "ccfc-figure6": Study(
        "CCFC against the share of clients that fail, a line for each p",
        datasets=("mnist",),
        rows=(Row("CCFC", "ccfc"),),
        presets=presets(
            {"p": (0.0, 0.5), "failure_rate": (0.0, 0.3, 0.6)},
            {"p": LEVELS, "failure_rate": FAILURE_RATES},
            smoke_seeds=(0, 1),
        ),
        measure=measures.scores,
        by=("dataset", "method", "p", "failure_rate"),
        values=SCORES,
        paper=of_figure(0.0),
        draw=partial(measures.against, level="failure_rate", values=SCORES),
    ),
    "ccfc-figure7": Study(
        "CCFC against lambda, the weight of the model-contrastive term, for each p",
        datasets=("mnist",),
        rows=(Row("CCFC", "ccfc"),),
        presets=presets(
            {"p": (0.0, 0.5), "model_weight": (0.001, 0.1, 10.0)},
            {"p": LEVELS, "model_weight": MODEL_WEIGHTS},
            smoke_seeds=(0, 1),
        ),
        measure=measures.scores,
        by=("dataset", "method", "p", "model_weight"),
        values=SCORES[:2],
        paper=of_figure(0.001),
        draw=partial(measures.against, level="model_weight", values=SCORES[:2]),
    ),
}
