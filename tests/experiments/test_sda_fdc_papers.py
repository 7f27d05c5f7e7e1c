"""The tables of the SDA-FDC paper as data: as printed, and as others speak of them."""

import numpy as np
import pytest
import reproduce
import sda_fdc
from papers import ccfc
from papers import sda_fdc as paper

from fcjax.data import Dataset

TABLES = {
    "nmi": reproduce.STUDIES["sda-fdc-table2"].paper,
    "kappa": reproduce.STUDIES["sda-fdc-table3"].paper,
}
DATASETS = ("mnist", "fashion_mnist", "cifar10", "stl10", "pendigits")


@pytest.mark.parametrize(
    ("score", "setting", "printed"),
    [
        ("nmi", ("mnist", None, "KM_central"), 0.5304),
        ("nmi", ("mnist", 0.25, "SDA-FDC (disjoint)"), 0.5883),
        ("nmi", ("fashion_mnist", None, "DCN_central"), 0.6391),
        ("nmi", ("fashion_mnist", 0.5, "SDA-FDC (disjoint)"), 0.5384),
        ("nmi", ("cifar10", 1.0, "SDA-FDC (disjoint)"), 0.1337),
        ("nmi", ("stl10", 0.75, "SDA-FDC"), 0.1590),
        ("nmi", ("pendigits", 0.0, "SDA-FC-KM"), 0.6972),
        ("nmi", ("pendigits", 0.75, "SDA-FDC"), 0.7472),
        ("kappa", ("mnist", None, "DCN_central"), 0.7699),
        ("kappa", ("mnist", 0.25, "SDA-FDC"), 0.5773),
        ("kappa", ("fashion_mnist", 1.0, "SDA-FDC (disjoint)"), 0.5794),
        ("kappa", ("cifar10", None, "DCN_central"), 0.1599),
        ("kappa", ("cifar10", 0.25, "SDA-FDC (disjoint)"), 0.1458),
        ("kappa", ("stl10", 0.5, "SDA-FDC (disjoint)"), 0.1695),
        ("kappa", ("pendigits", None, "KM_central"), 0.6523),
        ("kappa", ("pendigits", 0.0, "SDA-FC-KM"), 0.7444),
    ],
)
def test_tables_are_as_printed(score, setting, printed):
    assert TABLES[score][setting] == {score: printed}


@pytest.mark.parametrize(
    ("score", "printed", "off"),
    [
        # 2.14 is no mean of 25 whole ranks, and 2.44 + 2.14 + 1.4 is not 6.
        ("nmi", (2.44, 2.14, 1.4), (0.0, 0.02, 0.0)),
        ("kappa", (2.56, 1.72, 1.72), (0.0, 0.0, 0.0)),
    ],
)
def test_mean_ranks_are_as_printed_with_ties_in_the_order_of_columns(
    score, printed, off
):
    table = TABLES[score]
    assert len(table) == 5 * (2 + 5 * 3)
    rows = [
        [table[dataset, p, method][score] for method in paper.FEDERATED]
        for dataset in DATASETS
        for p in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    order = np.argsort(-np.array(rows), axis=1, kind="stable")
    ranks = 1 + np.argsort(order, axis=1)
    np.testing.assert_allclose(ranks.mean(axis=0), np.add(printed, off), atol=1e-9)


def test_the_text_says_the_same():
    """Section 4.2 has two partitions of Pendigits, and what MNIST gains at p = 1."""
    scores = {
        method: {name: TABLES[name]["pendigits", 1.0, method][name] for name in TABLES}
        for method in ("SDA-FC-KM", "SDA-FDC")
    }
    assert scores == {
        "SDA-FC-KM": {"nmi": 0.5172, "kappa": 0.5063},
        "SDA-FDC": {"nmi": 0.5627, "kappa": 0.3929},
    }
    for score, gains in {"nmi": (0.23, 0.31), "kappa": (0.25, 0.29)}.items():
        by_examples, disjoint, joint = (
            TABLES[score]["mnist", 1.0, method][score] for method in paper.FEDERATED
        )
        found = disjoint - by_examples, joint - by_examples
        assert found == pytest.approx(gains, abs=0.005)


def test_the_ccfc_paper_has_the_same_figures():
    """Where both have a method and a data set, under two names."""
    both = {"KM": "km", "SDA-FC-KM": "sda-fc-km", "PPFC-GAN": "sda-fdc"}
    for theirs, ours in both.items():
        for dataset in DATASETS[:4]:
            expected = ccfc.scores_of(dataset, theirs)
            assert paper.scores_of(dataset, ours) == expected


def test_a_script_shows_the_figures_of_its_method(tmp_path):
    def reported(name, dataset):
        args = sda_fdc.Args(methods=(name,), dataset=str(dataset))
        images = np.zeros((20, 16), np.float32)
        given = Dataset("rows", images, np.arange(20) % 10)
        return sda_fdc.describe(args, given, 10, 10).paper

    (tmp_path / "pendigits.csv").touch()
    found = reported("sda-fdc-disjoint", tmp_path / "pendigits.csv")
    assert found[0.5] == {"nmi": 0.6852, "kappa": 0.7277}
    assert reported("sda-fdc", "mnist")[1.0] == {"nmi": 0.8353, "kappa": 0.7884}
    # A central method has the same for every p.
    of_dcn = reported("dcn", "stl10")
    assert of_dcn == {p: {"nmi": 0.1718, "kappa": 0.1909} for p in paper.LEVELS}
    # SDA-FC-FCM is in the CCFC paper alone.
    found = reported("sda-fc-fcm", "cifar10")[1.0]
    assert found == {"nmi": 0.0858, "kappa": 0.1494}
    assert reported("sda-fc-fcm", tmp_path / "pendigits.csv") == {}
    assert reported("dcn-disjoint", "mnist") == {}
    assert reported("sda-fdc", "digits") == {}


def test_figure_4_has_the_tables_value_where_no_client_fails():
    fourth = reproduce.STUDIES["sda-fdc-figure4"].paper
    assert fourth["mnist", "SDA-FDC", 0.5, 0.0] == {"nmi": 0.6721, "kappa": 0.6007}
    assert fourth["mnist", "SDA-FC-KM", 1.0, 0.0] == {"nmi": 0.5273, "kappa": 0.5000}
    assert len(fourth) == 2 * 5
