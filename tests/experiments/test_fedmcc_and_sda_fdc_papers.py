"""The tables of the FedMCC and SDA-FDC papers as data: as printed, and as texts have
them."""

import numpy as np
import pytest
import reproduce
import sda_fdc
from papers import ccfc
from papers import sda_fdc as paper

from fcjax.data import Dataset

IID, NON_IID = 1.0, 0.2
PAPER = {
    name: study.paper
    for name, study in reproduce.STUDIES.items()
    if name.startswith(("fedmcc-", "sda-fdc-"))
}
FEDMCC = {name: table for name, table in PAPER.items() if name.startswith("fedmcc-")}
SDA_FDC = {"nmi": PAPER["sda-fdc-table2"], "kappa": PAPER["sda-fdc-table3"]}


@pytest.mark.parametrize(
    ("table", "setting", "printed"),
    [
        (1, ("cifar10", IID, "FedU + K-means"), (47.0, 57.6, 36.1)),
        (1, ("imagenet-10", IID, "FedU + MCC"), (53.7, 63.1, 44.9)),
        (1, ("stl10", IID, "Fed + CC"), (41.8, 49.3, 30.7)),
        (1, ("cifar100", IID, "FedMCC"), (35.6, 22.0, 11.8)),
        (1, ("cifar10", IID, "FedMCC"), (57.0, 69.4, 50.6)),
        (1, ("mnist", IID, "FedMCC"), (79.6, 87.3, 76.2)),
        (1, ("stl10", IID, "NCC (central)"), (75.8, 86.7, 73.7)),
        (2, ("mnist", NON_IID, "FedU + K-means"), (42.0, 41.8, 25.8)),
        (2, ("stl10", NON_IID, "FedU + MCC"), (33.6, 36.9, 19.6)),
        (2, ("cifar100", NON_IID, "Fed + CC"), (30.5, 14.7, 5.8)),
        (2, ("imagenet-10", NON_IID, "FedMCC"), (44.8, 51.1, 33.2)),
        (2, ("mnist", NON_IID, "FedMCC"), (59.4, 58.0, 44.4)),
        (2, ("cifar10", NON_IID, "NCC (central)"), (88.6, 94.3, 88.4)),
        (3, ("cifar10", IID, "Single client"), (83.2,)),
        (3, ("cifar100", NON_IID, "FedSimCLR"), (38.7,)),
        (3, ("cifar10", NON_IID, "FedCA"), (68.0,)),
        (3, ("cifar100", IID, "FedSimSiam"), (46.3,)),
        (3, ("cifar100", NON_IID, "FedEMA (tau = 0.7)"), (62.8,)),
        (3, ("cifar10", IID, "FedMCC"), (86.8,)),
        (4, ("cifar10", NON_IID, "Single client"), (72.0,)),
        (4, ("cifar100", IID, "FedU"), (56.5,)),
        (4, ("cifar10", NON_IID, "FedEMA (lambda = 0.8)"), (82.8,)),
        (4, ("cifar100", NON_IID, "FedMCC (tuned)"), (59.9,)),
        (4, ("cifar10", NON_IID, "FedMCC (tuned)"), (85.2,)),
        (5, ("cifar10", 0.01, NON_IID, "Single client (Res50)"), (63.7,)),
        (5, ("cifar10", 0.01, IID, "FedCA (Res50)"), (50.7,)),
        (5, ("cifar10", 0.1, NON_IID, "FedU (Res50)"), (80.1,)),
        (5, ("cifar10", 0.1, NON_IID, "FedEMA (lambda = 1, Res18)"), (79.0,)),
        (5, ("cifar10", 0.1, IID, "FedMCC (Res18)"), (82.9,)),
        (5, ("cifar10", 0.1, NON_IID, "FedMCC (Res18)"), (82.0,)),
        (5, ("cifar10", 0.1, NON_IID, "FedMCC (Res18, tuned)"), (82.0,)),
        (6, ("cifar10", "k-means"), (8.7, 22.9, 4.9)),
        (6, ("tiny-imagenet", "DAC"), (19.0, 6.6, 1.7)),
        (6, ("imagenet-dogs", "PICA"), (33.6, 32.4, 17.9)),
        (6, ("imagenet-dogs", "MiCE"), (42.3, 43.9, 28.6)),
        (6, ("stl10", "SCAN"), (80.9, 69.8, 64.6)),
        (6, ("imagenet-10", "IDFD"), (89.8, 95.4, 90.1)),
        (6, ("cifar20", "PCL"), (52.8, 52.6, 36.3)),
        (6, ("tiny-imagenet", "NCC"), (40.5, 25.6, 14.3)),
        (6, ("tiny-imagenet", "MCC"), (35.09, 15.2, 7.5)),
        (6, ("stl10", "MCC"), (77.2, 87.0, 74.8)),
        (6, ("imagenet-10", "MCC"), (90.4, 95.9, 91.1)),
        (7, ("cifar10", NON_IID, "FedMCC, targets averaged"), (34.9, 40.4, 22.8)),
        (7, ("mnist", IID, "FedMCC, targets averaged"), (62.6, 62.9, 47.7)),
        (8, ("cifar10", IID, 1), (48.7, 57.6, 36.2)),
        (8, ("cifar100", NON_IID, 2), (32.9, 17.6, 3.4)),
        (8, ("cifar100", IID, 10), (34.3, 19.0, 8.2)),
        (9, ("cifar10", NON_IID, 0.996), (37.5, 45.2, 25.7)),
        (9, ("cifar100", IID, 0.996), (33.9, 19.0, 7.8)),
    ],
)
def test_tables_of_fedmcc_are_as_printed(table, setting, printed):
    names = ("nmi", "acc", "ari") if len(printed) == 3 else ("accuracy",)
    shares = [pytest.approx(percent / 100, abs=1e-9) for percent in printed]
    found = PAPER[f"fedmcc-table{table}"][setting]
    assert found == dict(zip(names, shares, strict=True))


@pytest.mark.parametrize(
    ("score", "setting", "printed"),
    [
        ("nmi", ("mnist", 0.25, "SDA-FDC (disjoint)"), 0.5883),
        ("nmi", ("fashion_mnist", None, "DCN_central"), 0.6391),
        ("nmi", ("fashion_mnist", 0.5, "SDA-FDC (disjoint)"), 0.5384),
        ("nmi", ("cifar10", 1.0, "SDA-FDC (disjoint)"), 0.1337),
        ("nmi", ("pendigits", 0.0, "SDA-FC-KM"), 0.6972),
        ("nmi", ("pendigits", 0.75, "SDA-FDC"), 0.7472),
        ("nmi", ("pendigits", 1.0, "SDA-FC-KM"), 0.5172),
        ("nmi", ("pendigits", 1.0, "SDA-FDC"), 0.5627),
        ("kappa", ("mnist", None, "DCN_central"), 0.7699),
        ("kappa", ("fashion_mnist", 1.0, "SDA-FDC (disjoint)"), 0.5794),
        ("kappa", ("cifar10", None, "DCN_central"), 0.1599),
        ("kappa", ("cifar10", 0.25, "SDA-FDC (disjoint)"), 0.1458),
        ("kappa", ("stl10", 0.5, "SDA-FDC (disjoint)"), 0.1695),
        ("kappa", ("pendigits", None, "KM_central"), 0.6523),
        ("kappa", ("pendigits", 0.0, "SDA-FC-KM"), 0.7444),
        ("kappa", ("pendigits", 1.0, "SDA-FC-KM"), 0.5063),
        ("kappa", ("pendigits", 1.0, "SDA-FDC"), 0.3929),
    ],
)
def test_tables_of_sda_fdc_are_as_printed(score, setting, printed):
    assert SDA_FDC[score][setting] == {score: printed}


def test_no_cell_is_missing_and_dashes_are_none():
    cells = {name: sum(map(len, table.values())) for name, table in PAPER.items()}
    # Four methods on five data sets, and NCC on four, by three scores.
    assert cells["fedmcc-table1"] == cells["fedmcc-table2"] == 3 * (4 * 5 + 4)
    assert cells["fedmcc-table3"] == 8 * 4
    assert cells["fedmcc-table4"] == 6 * 4
    assert cells["fedmcc-table5"] == 9 * 4 - 2
    # 18 methods on six data sets; nine dashes of IIC and two in CIFAR-20, three of
    # PICA, nine of SCAN, six of MiCE, three of IDFD and of PCL.
    assert cells["fedmcc-table6"] == 18 * 18 - (11 + 3 + 9 + 6 + 3 + 3)
    assert cells["fedmcc-table7"] == 2 * 6 * 3
    assert cells["fedmcc-table8"] == 4 * 4 * 3
    assert cells["fedmcc-table9"] == 2 * 4 * 3
    assert cells["sda-fdc-table2"] == cells["sda-fdc-table3"] == 5 * (2 + 5 * 3)
    assert PAPER["fedmcc-table6"]["cifar20", "IIC"] == {"acc": 0.257}
    assert ("imagenet-10", "SCAN") not in PAPER["fedmcc-table6"]
    # Figures have what the tables have: at 100 rounds, and where no client fails.
    sixth, fourth = PAPER["fedmcc-figure6"], PAPER["sda-fdc-figure4"]
    assert (len(sixth), len(fourth)) == (6, 2 * 5)
    assert sixth["mnist", NON_IID, "Fed + CC", 100] == {"acc": pytest.approx(0.545)}
    assert fourth["mnist", "SDA-FDC", 0.5, 0.0] == {"nmi": 0.6721, "kappa": 0.6007}
    assert fourth["mnist", "SDA-FC-KM", 1.0, 0.0] == {"nmi": 0.5273, "kappa": 0.5000}
    every = [found for table in FEDMCC.values() for found in table.values()]
    assert all(0 < value < 1 for found in every for value in found.values())


def test_ablations_meet_tables_1_and_2_and_lose():
    both = PAPER["fedmcc-table1"] | PAPER["fedmcc-table2"]
    for table, own in ((7, "FedMCC"), (8, 5), (9, 0.99)):
        for (dataset, share, value), found in PAPER[f"fedmcc-table{table}"].items():
            whole = both[dataset, share, "FedMCC"]
            assert found == whole if value == own else found["acc"] < whole["acc"]


def test_slips_of_the_paper_are_kept_and_said():
    """FedU's CIFAR-100 rows of Table I are in Table II once more, and NCC's figures of
    CIFAR-100 are those of CIFAR-20 in Table VI."""
    for method in ("FedU + K-means", "FedU + MCC"):
        first = PAPER["fedmcc-table1"]["cifar100", IID, method]
        assert PAPER["fedmcc-table2"]["cifar100", NON_IID, method] == first
    central = PAPER["fedmcc-table6"]["cifar20", "NCC"]
    assert PAPER["fedmcc-table1"]["cifar100", IID, "NCC (central)"] == central
    for table in ("fedmcc-table1", "fedmcc-table2"):
        said = reproduce.note(reproduce.STUDIES[table], reproduce.Args(table=table))
        assert "FedU has the same figures in Tables I and II, likely a slip" in said


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
    rows = [
        [SDA_FDC[score][dataset, p, method][score] for method in paper.FEDERATED]
        for dataset in ("mnist", "fashion_mnist", "cifar10", "stl10", "pendigits")
        for p in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    order = np.argsort(-np.array(rows), axis=1, kind="stable")
    ranks = 1 + np.argsort(order, axis=1)
    np.testing.assert_allclose(ranks.mean(axis=0), np.add(printed, off), atol=1e-9)


def test_the_ccfc_paper_has_the_same_figures():
    """Where both have a method and a data set, under two names."""
    both = {"KM": "km", "SDA-FC-KM": "sda-fc-km", "PPFC-GAN": "sda-fdc"}
    for theirs, ours in both.items():
        for dataset in ("mnist", "fashion_mnist", "cifar10", "stl10"):
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
