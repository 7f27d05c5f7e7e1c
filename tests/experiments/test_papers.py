"""The tables of papers as data: as printed, and as the papers speak of them."""

from types import SimpleNamespace

import ccfc
import numpy as np
import pytest
import reproduce
from papers import ccfc as paper

TABLES = {
    "nmi": reproduce.STUDIES["ccfc-table1"].paper,
    "kappa": reproduce.STUDIES["ccfc-table2"].paper,
}


@pytest.mark.parametrize(
    ("score", "setting", "printed"),
    [
        ("nmi", ("mnist", None, "KM"), 0.5304),
        ("nmi", ("mnist", 0.25, "PPFC-GAN"), 0.6392),
        ("nmi", ("fashion_mnist", 1.0, "SDA-FC-KM"), 0.6065),
        ("nmi", ("fashion_mnist", None, "FCM"), 0.6026),
        ("nmi", ("cifar10", 0.5, "k-FED"), 0.0885),
        ("nmi", ("stl10", 0.0, "CCFC"), 0.2952),
        ("nmi", ("stl10", 1.0, "FFCM"), 0.1565),
        ("kappa", ("mnist", None, "FCM"), 0.5024),
        ("kappa", ("mnist", 0.0, "CCFC"), 0.9619),
        ("kappa", ("fashion_mnist", 0.75, "k-FED"), 0.4240),
        ("kappa", ("cifar10", None, "KM"), 0.1347),
        ("kappa", ("cifar10", 0.25, "k-FED"), 0.1366),
        ("kappa", ("cifar10", 0.25, "CCFC"), 0.2281),
        ("kappa", ("cifar10", 0.5, "FFCM"), 0.1316),
        ("kappa", ("stl10", None, "KM"), 0.1550),
        ("kappa", ("stl10", 0.75, "SDA-FC-FCM"), 0.1603),
    ],
)
def test_tables_1_and_2_are_as_printed(score, setting, printed):
    assert TABLES[score][setting] == {score: printed}


@pytest.mark.parametrize(
    ("score", "wins", "over_gan", "over_k_fed"),
    [
        # The last line of each table counts how often a federated method is best.
        ("nmi", {"FFCM": 2, "SDA-FC-KM": 1, "PPFC-GAN": 6, "CCFC": 11}, 0.2654, 0.4155),
        (
            "kappa",
            {"FFCM": 1, "SDA-FC-FCM": 2, "PPFC-GAN": 7, "CCFC": 10},
            0.3485,
            0.4593,
        ),
    ],
)
def test_tables_1_and_2_agree_with_what_the_paper_says_of_them(
    score, wins, over_gan, over_k_fed
):
    table = TABLES[score]
    datasets = ("mnist", "fashion_mnist", "cifar10", "stl10")
    # Two central methods, and six others at five p.
    assert len(table) == 4 * (2 + 5 * 6)
    counted = {}
    for dataset in datasets:
        for p in (0.0, 0.25, 0.5, 0.75, 1.0):
            row = {m: table[dataset, p, m][score] for m in paper.FEDERATED}
            best = max(row, key=lambda method: row[method])
            counted[best] = counted.get(best, 0) + 1
    assert counted == wins
    mnist = {m: table["mnist", 0.0, m][score] for m in paper.FEDERATED}
    assert mnist["CCFC"] - mnist["PPFC-GAN"] == pytest.approx(over_gan, abs=1e-9)
    assert mnist["CCFC"] - mnist["k-FED"] == pytest.approx(over_k_fed, abs=1e-9)


def test_tables_3_and_4_are_as_printed():
    third = reproduce.STUDIES["ccfc-table3"].paper
    assert third["mnist", "Raw pixels", 7000] == {"accuracy": pytest.approx(0.7016)}
    assert third["mnist", "SCFC", 5] == {"accuracy": pytest.approx(0.9823)}
    assert third["mnist", "CCFC", 3] == {"accuracy": pytest.approx(0.9825)}
    assert len(third) == 4 * 7
    fourth = reproduce.STUDIES["ccfc-table4"].paper
    assert fourth["mnist", "CCFC standalone", 1] == {"kappa": 0.4255}
    assert fourth["mnist", "SCFC FedAvg", 8] == {"kappa": 0.8330}
    assert fourth["mnist", "CCFC", 10] == {"kappa": 0.9630}
    # 0.9605 + 0.9643 + 0.9611 + 0.9617 + 0.9609 + 0.9625 + 0.9624 + 0.9611 + 0.9616
    # + 0.9630 = 9.6191
    assert fourth["mnist", "CCFC", "mean"] == {"kappa": pytest.approx(0.96191)}
    assert len(fourth) == 6 * 11


def test_figures_have_the_tables_value_where_the_two_meet():
    sixth = reproduce.STUDIES["ccfc-figure6"].paper
    assert sixth["mnist", "CCFC", 0.5, 0.0] == {"nmi": 0.6718, "kappa": 0.6534}
    seventh = reproduce.STUDIES["ccfc-figure7"].paper
    assert seventh["mnist", "CCFC", 0.0, 0.001] == {"nmi": 0.9236, "kappa": 0.9619}


def test_a_script_shows_the_figures_of_the_tables():
    found = paper.scores_of("stl10", "CCFC")
    nmi, kappa = ({p: x[name] for p, x in found.items()} for name in ("nmi", "kappa"))
    assert nmi == {0.0: 0.2952, 0.25: 0.1727, 0.5: 0.2125, 0.75: 0.1610, 1.0: 0.0711}
    assert kappa[0.25] == 0.1422
    assert paper.scores_of("digits", "CCFC") == {}
    of_fcm = paper.scores_of("mnist", "FCM")
    assert of_fcm == {p: {"nmi": 0.5187, "kappa": 0.5024} for p in paper.LEVELS}


def test_a_file_that_is_called_as_a_data_set_has_its_settings(tmp_path):
    """A latent size of 64 and lambda 1, where all other images have 256 and 0.001."""
    path = tmp_path / "fashion_mnist.npz"
    path.touch()
    dataset = SimpleNamespace(examples=np.zeros((20, 28, 28, 1), np.uint8))
    args = ccfc.Args(dataset=str(path), preset="paper")
    method = ccfc.describe(args, dataset, num_clients=10, num_clusters=10)
    assert method.settings["latent_size"] == (64,)
    assert method.settings["model_weight"] == (1.0,)
    assert method.paper == paper.scores_of("fashion_mnist", "CCFC") != {}
