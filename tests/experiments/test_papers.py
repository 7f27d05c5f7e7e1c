"""The tables of the papers as data: as printed, and as their texts speak of them."""

import numpy as np
import pytest

from experiments import reproduce
from experiments.reproduce import task_of
from fcjax.data import Dataset
from fcjax.methods import CCFC
from fcjax.methods import paper_scores_ccfc as ccfc_paper
from fcjax.sweep.plan import Task

PAPER = {name: study.paper for name, study in reproduce.STUDIES.items()}
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
IID, NON_IID = 1.0, 0.2
EMNIST = "emnist/digits"
OURS, PERFECT = "FedCRef", "Perfect Associations"
NMI, KAPPA, ACC, TOP1 = ("nmi",), ("kappa",), ("acc",), ("accuracy",)
BOTH, THREE = ("nmi", "kappa"), ("nmi", "acc", "ari")
FOUR = ("acc", "nmi", "ami", "ari")
FOUND = ("communities", "wrong_associations", "initial_isolated", "isolated")
REFINED = ("initial_acc", "acc", "improvement")


@pytest.mark.parametrize(
    ("table", "setting", "names", "printed"),
    [
        ("ccfc-table1", ("fashion_mnist", None, "FCM"), NMI, [0.6026]),
        ("ccfc-table3", ("mnist", "Raw pixels", 7000), TOP1, [0.7016]),
        ("ccfc-table4", ("mnist", "CCFC standalone", 1), KAPPA, [0.4255]),
        # 0.9605 + 0.9643 + 0.9611 + 0.9617 + 0.9609 + 0.9625 + 0.9624 + 0.9611
        # + 0.9616 + 0.9630 = 9.6191
        ("ccfc-table4", ("mnist", "CCFC", "mean"), KAPPA, [0.96191]),
        ("ccfc-figure6", ("mnist", "CCFC", 0.5, 0.0), BOTH, [0.6718, 0.6534]),
        ("fedmcc-table1", ("mnist", IID, "FedMCC"), THREE, [0.796, 0.873, 0.762]),
        (
            "fedmcc-table1",
            ("stl10", IID, "NCC (central)"),
            THREE,
            [0.758, 0.867, 0.737],
        ),
        ("fedmcc-table2", ("mnist", NON_IID, "FedMCC"), THREE, [0.594, 0.580, 0.444]),
        ("fedmcc-table3", ("cifar100", NON_IID, "FedSimCLR"), TOP1, [0.387]),
        ("fedmcc-table4", ("cifar100", IID, "FedU"), TOP1, [0.565]),
        ("fedmcc-table4", ("cifar10", NON_IID, "FedMCC (tuned)"), TOP1, [0.852]),
        ("fedmcc-table5", ("cifar10", 0.01, IID, "FedCA (Res50)"), TOP1, [0.507]),
        ("fedmcc-table5", ("cifar10", 0.1, NON_IID, "FedU (Res50)"), TOP1, [0.801]),
        ("fedmcc-table5", ("cifar10", 0.01, NON_IID, "FedU (Res50)"), TOP1, [0.712]),
        ("fedmcc-table6", ("tiny-imagenet", "MCC"), THREE, [0.3509, 0.152, 0.075]),
        ("fedmcc-table6", ("cifar20", "IIC"), ACC, [0.257]),
        ("fedmcc-table8", ("cifar100", NON_IID, 2), THREE, [0.329, 0.176, 0.034]),
        ("fedmcc-table9", ("cifar10", NON_IID, 0.996), THREE, [0.375, 0.452, 0.257]),
        # Figures have what the tables have: at 100 rounds, and where no client fails.
        ("fedmcc-figure6", ("mnist", NON_IID, "Fed + CC", 100), ACC, [0.545]),
        ("sda-fdc-figure4", ("mnist", "SDA-FDC", 0.5, 0.0), BOTH, [0.6721, 0.6007]),
        ("sda-fdc-table2", ("fashion_mnist", None, "DCN_central"), NMI, [0.6391]),
        ("sda-fdc-table3", ("cifar10", 0.25, "SDA-FDC (disjoint)"), KAPPA, [0.1458]),
        ("sda-fdc-table3", ("pendigits", None, "KM_central"), KAPPA, [0.6523]),
        ("fdsc-table2", ("mnist", 5, "LRSC"), FOUR, [0.774, 0.786, 0.791, 0.682]),
        ("fdsc-table2", ("coil100", 100, "FDSC2"), FOUR, [0.794, 0.915, 0.772, 0.649]),
        ("fdsc-table3", ("mnist", 30, "FDSC2"), FOUR, [0.906, 0.865, 0.869, 0.828]),
        ("fdsc-table4", ("mnist", 750, "FDSC1"), FOUR, [0.878, 0.836, 0.833, 0.792]),
        ("fedcref-table3", (EMNIST, "UIFCA"), ACC, [0.439]),
        (
            *("fedcref-table4", (EMNIST, "FedCRef w/ DEC")),
            *(("initial_acc", *ACC, *FOUND), [0.781, 0.894, 10.8, 0.011, 87.5, 19.1]),
        ),
        ("fedcref-table5", ("kmnist49", 0.3), FOUND, [27.4, 0.074, 197.8, 53.4]),
        ("fedcref-table6", (EMNIST, 0.3, OURS), REFINED, [0.701, 0.879, 25.392]),
        ("fedcref-table6", ("fashion_mnist", 0.0, PERFECT), ACC, [0.864]),
        (
            *("fedcref-table7", (EMNIST, 75.0, 0.3)),
            *((*ACC, *FOUND), [0.644, 12.2, 0.124, 85.2, 19.8]),
        ),
        ("fedcref-table8", (EMNIST, 0.3), FOUND, [10.0, 0.0, 89.571, 8.429]),
        ("fedcref-table10", (EMNIST, 40), FOUND, [11.5, 0.0112, 141.4, 30.9]),
        ("fedcref-table12", (EMNIST, 40), ("iteration", "minutes"), [16.7, 87.6]),
    ],
)
def test_tables_are_as_printed(table, setting, names, printed):
    expected = dict(zip(names, printed, strict=True))
    assert PAPER[table][setting] == pytest.approx(expected)


def test_no_figure_is_missing_and_dashes_are_none():
    expected = {
        # Two central methods, and six or three others at five p.
        **dict.fromkeys(("ccfc-table1", "ccfc-table2"), 4 * (2 + 5 * 6)),
        **{"ccfc-table3": 4 * 7, "ccfc-table4": 6 * 11},
        **dict.fromkeys(("sda-fdc-table2", "sda-fdc-table3"), 5 * (2 + 5 * 3)),
        "sda-fdc-figure4": 2 * 5 * 2,
        # Four methods on five data sets, and NCC on four, by three scores.
        **dict.fromkeys(("fedmcc-table1", "fedmcc-table2"), 3 * (4 * 5 + 4)),
        **{"fedmcc-table3": 8 * 4, "fedmcc-table4": 6 * 4, "fedmcc-table5": 9 * 4 - 2},
        # 18 methods on six data sets; nine dashes of IIC and two in CIFAR-20, three of
        # PICA, nine of SCAN, six of MiCE, three of IDFD and of PCL.
        "fedmcc-table6": 18 * 18 - (11 + 3 + 9 + 6 + 3 + 3),
        **{"fedmcc-table7": 2 * 6 * 3, "fedmcc-table8": 4 * 4 * 3},
        **{"fedmcc-table9": 2 * 4 * 3, "fedmcc-figure6": 6},
        **{
            "fdsc-table2": 8 * 5 * 4,
            "fdsc-table3": 5 * 2 * 4,
            "fdsc-table4": 5 * 2 * 4,
        },
        **{"fedcref-table5": 4 * 3 * 4, "fedcref-table6": 4 * 3 * (3 + 1)},
        **{"fedcref-table7": 5 * 5, "fedcref-table12": 3 * 2},
        **{f"fedcref-table{number}": 3 * 4 for number in (8, 9, 10, 11)},
    }
    found = {name: sum(map(len, PAPER[name].values())) for name in expected}
    assert found == expected


# --- CCFC and SDA-FDC


def test_a_script_of_ccfc_shows_the_figures_and_has_the_settings_of_a_file(tmp_path):
    """A latent size of 64 and lambda 1, where all other images have 256 and 0.001."""
    found = ccfc_paper.scores_of("stl10", "CCFC")
    assert [found[p]["nmi"] for p in LEVELS] == [0.2952, 0.1727, 0.2125, 0.1610, 0.0711]
    assert ccfc_paper.scores_of("digits", "CCFC") == {}
    path = tmp_path / "fashion_mnist.npz"
    path.touch()
    dataset = Dataset("x", np.zeros((20, 28, 28, 1), np.uint8), np.arange(20) % 10)
    task = Task.of(CCFC(preset="paper"), dataset=str(path))
    method = task.method.resolve(task.problem(dataset, 10, 10))
    assert method.settings["latent_size"] == (64,)
    assert method.settings["model_weight"] == (1.0,)
    assert method.paper == ccfc_paper.scores_of("fashion_mnist", "CCFC") != {}


def test_a_script_of_sda_fdc_shows_the_figures_of_its_method(tmp_path):
    def reported(name, dataset):
        task = task_of("sda_fdc", {"methods": (name,), "dataset": str(dataset)})
        rows = Dataset("rows", np.zeros((20, 16), np.float32), np.arange(20) % 10)
        return task.method.resolve(task.problem(rows, 10, 10)).paper

    file = tmp_path / "pendigits.csv"
    file.touch()
    assert reported("sda-fdc-disjoint", file)[0.5] == {"nmi": 0.6852, "kappa": 0.7277}
    # A central method has the same for every p.
    of_dcn = {"nmi": 0.1718, "kappa": 0.1909}
    assert reported("dcn", "stl10") == dict.fromkeys(LEVELS, of_dcn)
    # SDA-FC-FCM is in the CCFC paper alone.
    assert reported("sda-fc-fcm", "cifar10")[1.0] == {"nmi": 0.0858, "kappa": 0.1494}
    unknown = ("sda-fc-fcm", file), ("dcn-disjoint", "mnist"), ("sda-fdc", "digits")
    assert all(reported(*each) == {} for each in unknown)
