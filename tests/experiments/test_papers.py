"""The tables of the CCFC, FDSC and FedCRef papers as data: as printed, and as their
texts speak of them."""

from itertools import product
from types import SimpleNamespace

import ccfc
import numpy as np
import pytest
import reproduce
from papers import ccfc as ccfc_paper

PAPER = {name: study.paper for name, study in reproduce.STUDIES.items()}
SETS = ("mnist", "fashion_mnist", "cifar10", "stl10")
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
EMNIST = "emnist/digits"
OURS, PERFECT = "FedCRef", "Perfect Associations"
NMI, KAPPA, ACC, ACCURACY = ("nmi",), ("kappa",), ("acc",), ("accuracy",)
BOTH, FOUR = ("nmi", "kappa"), ("acc", "nmi", "ami", "ari")
FOUND = ("communities", "wrong_associations", "initial_isolated", "isolated")
REFINED = ("initial_acc", "acc", "improvement")


@pytest.mark.parametrize(
    ("table", "setting", "names", "printed"),
    [
        ("ccfc-table1", ("mnist", None, "KM"), NMI, [0.5304]),
        ("ccfc-table1", ("mnist", 0.25, "PPFC-GAN"), NMI, [0.6392]),
        ("ccfc-table1", ("fashion_mnist", None, "FCM"), NMI, [0.6026]),
        ("ccfc-table1", ("cifar10", 0.5, "k-FED"), NMI, [0.0885]),
        ("ccfc-table1", ("stl10", 1.0, "FFCM"), NMI, [0.1565]),
        ("ccfc-table2", ("mnist", None, "FCM"), KAPPA, [0.5024]),
        ("ccfc-table2", ("fashion_mnist", 0.75, "k-FED"), KAPPA, [0.4240]),
        ("ccfc-table2", ("stl10", None, "KM"), KAPPA, [0.1550]),
        ("ccfc-table2", ("stl10", 0.75, "SDA-FC-FCM"), KAPPA, [0.1603]),
        ("ccfc-table3", ("mnist", "Raw pixels", 7000), ACCURACY, [0.7016]),
        ("ccfc-table3", ("mnist", "CCFC", 3), ACCURACY, [0.9825]),
        ("ccfc-table4", ("mnist", "CCFC standalone", 1), KAPPA, [0.4255]),
        ("ccfc-table4", ("mnist", "CCFC", 10), KAPPA, [0.9630]),
        # 0.9605 + 0.9643 + 0.9611 + 0.9617 + 0.9609 + 0.9625 + 0.9624 + 0.9611
        # + 0.9616 + 0.9630 = 9.6191
        ("ccfc-table4", ("mnist", "CCFC", "mean"), KAPPA, [0.96191]),
        ("ccfc-figure6", ("mnist", "CCFC", 0.5, 0.0), BOTH, [0.6718, 0.6534]),
        ("ccfc-figure7", ("mnist", "CCFC", 0.0, 0.001), BOTH, [0.9236, 0.9619]),
        ("fdsc-table2", ("mnist", 5, "LRSC"), FOUR, [0.774, 0.786, 0.791, 0.682]),
        ("fdsc-table2", ("orl", 20, "DSCN"), FOUR, [0.525, 0.692, 0.366, 0.287]),
        ("fdsc-table2", ("coil20", 10, "FDSC2"), FOUR, [0.713, 0.752, 0.741, 0.553]),
        ("fdsc-table2", ("coil100", 100, "FDSC2"), FOUR, [0.794, 0.915, 0.772, 0.649]),
        ("fdsc-table3", ("mnist", 10, "FDSC1"), FOUR, [0.869, 0.815, 0.812, 0.793]),
        ("fdsc-table3", ("mnist", 30, "FDSC2"), FOUR, [0.906, 0.865, 0.869, 0.828]),
        ("fdsc-table4", ("mnist", 100, "FDSC2"), FOUR, [0.832, 0.815, 0.816, 0.752]),
        ("fdsc-table4", ("mnist", 750, "FDSC1"), FOUR, [0.878, 0.836, 0.833, 0.792]),
        ("fedcref-table3", (EMNIST, "UIFCA"), ACC, [0.439]),
        (
            *("fedcref-table3", (EMNIST, "Centralized baseline w/ DEC")),
            *(("acc", "categories"), [0.793, 9.0]),
        ),
        (
            *("fedcref-table4", (EMNIST, "FedCRef w/ DEC")),
            *(("initial_acc", *ACC, *FOUND), [0.781, 0.894, 10.8, 0.011, 87.5, 19.1]),
        ),
        ("fedcref-table5", (EMNIST, 0.5), FOUND, [10.2, 0.069, 89.4, 48.0]),
        ("fedcref-table5", ("kmnist49", 0.3), FOUND, [27.4, 0.074, 197.8, 53.4]),
        ("fedcref-table6", (EMNIST, 0.3, OURS), REFINED, [0.701, 0.879, 25.392]),
        ("fedcref-table6", (EMNIST, 0.5, PERFECT), ACC, [0.914]),
        ("fedcref-table6", ("fashion_mnist", 0.0, PERFECT), ACC, [0.864]),
        (
            *("fedcref-table7", (EMNIST, 75.0, 0.3)),
            *((*ACC, *FOUND), [0.644, 12.2, 0.124, 85.2, 19.8]),
        ),
        ("fedcref-table8", (EMNIST, 0.3), FOUND, [10.0, 0.0, 89.571, 8.429]),
        ("fedcref-table9", (EMNIST, 0.5, OURS), REFINED, [0.7, 0.976, 39.23]),
        ("fedcref-table10", (EMNIST, 40), FOUND, [11.5, 0.0112, 141.4, 30.9]),
        ("fedcref-table11", (EMNIST, 30, OURS), REFINED, [0.7, 0.916, 30.67]),
        ("fedcref-table12", (EMNIST, 40), ("iteration", "minutes"), [16.7, 87.6]),
    ],
)
def test_tables_are_as_printed(table, setting, names, printed):
    expected = dict(zip(names, printed, strict=True))
    assert PAPER[table][setting] == pytest.approx(expected)


QS = {"mnist": (5, 10), "orl": (20, 40), "coil20": (10, 20), "coil100": (50, 100)}
SUBSPACE = ("LRSC", "DLRSC", "DSCN", "FDSC1", "FDSC2")
SHARES, COUNTS = (0.0, 0.3, 0.5), (20, 30, 40)
DIRTY = (EMNIST, "kmnist", "kmnist49", "fashion_mnist")


@pytest.mark.parametrize(
    ("table", "count"),
    [
        # Two central methods, and six others at five p.
        *(("ccfc-table1", 4 * (2 + 5 * 6)), ("ccfc-table2", 4 * (2 + 5 * 6))),
        *(("ccfc-table3", 4 * 7), ("ccfc-table4", 6 * 11)),
        *(("fdsc-table2", 8 * 5), ("fdsc-table3", 5 * 2), ("fdsc-table4", 5 * 2)),
        *(("fedcref-table5", 4 * 3), ("fedcref-table6", 4 * 3 * 2)),
        *(("fedcref-table7", 5), ("fedcref-table8", 3), ("fedcref-table9", 3 * 2)),
        *(("fedcref-table10", 3), ("fedcref-table11", 3 * 2), ("fedcref-table12", 3)),
    ],
)
def test_no_cell_is_missing(table, count):
    assert len(PAPER[table]) == count


def test_levels_are_those_of_the_columns():
    levels = {name: {key[1] for key in table} for name, table in PAPER.items()}
    assert levels["ccfc-table1"] == levels["ccfc-table2"] == {None, *LEVELS}
    assert levels["fdsc-table3"] == {10, 20, 30, 40, 50}
    assert levels["fdsc-table4"] == {100, 250, 500, 750, 1000}
    assert levels["fedcref-table5"] == levels["fedcref-table6"] == {*SHARES}
    assert levels["fedcref-table10"] == levels["fedcref-table12"] == {*COUNTS}


# --- CCFC


@pytest.mark.parametrize(
    ("table", "score", "wins", "over_gan", "over_k_fed"),
    [
        # The last line of each table counts how often a federated method is best.
        ("ccfc-table1", "nmi", (0, 2, 1, 0, 6, 11), 0.2654, 0.4155),
        ("ccfc-table2", "kappa", (0, 1, 0, 2, 7, 10), 0.3485, 0.4593),
    ],
)
def test_tables_of_ccfc_agree_with_its_text(table, score, wins, over_gan, over_k_fed):
    methods = ccfc_paper.FEDERATED
    rows = [
        [PAPER[table][dataset, p, method][score] for method in methods]
        for dataset, p in product(SETS, LEVELS)
    ]
    counted = np.bincount(np.argmax(rows, axis=1), minlength=len(methods))
    np.testing.assert_array_equal(counted, wins)
    mnist = dict(zip(methods, rows[0], strict=True))
    assert mnist["CCFC"] - mnist["PPFC-GAN"] == pytest.approx(over_gan, abs=1e-9)
    assert mnist["CCFC"] - mnist["k-FED"] == pytest.approx(over_k_fed, abs=1e-9)


def test_a_script_shows_the_figures_of_the_tables():
    found = ccfc_paper.scores_of("stl10", "CCFC")
    assert [found[p]["nmi"] for p in LEVELS] == [0.2952, 0.1727, 0.2125, 0.1610, 0.0711]
    assert found[0.25]["kappa"] == 0.1422
    assert ccfc_paper.scores_of("digits", "CCFC") == {}
    of_fcm = ccfc_paper.scores_of("mnist", "FCM")
    assert of_fcm == {p: {"nmi": 0.5187, "kappa": 0.5024} for p in LEVELS}


def test_a_file_that_is_called_as_a_data_set_has_its_settings(tmp_path):
    """A latent size of 64 and lambda 1, where all other images have 256 and 0.001."""
    path = tmp_path / "fashion_mnist.npz"
    path.touch()
    dataset = SimpleNamespace(examples=np.zeros((20, 28, 28, 1), np.uint8))
    args = ccfc.Args(dataset=str(path), preset="paper")
    method = ccfc.describe(args, dataset, num_clients=10, num_clusters=10)
    assert method.settings["latent_size"] == (64,)
    assert method.settings["model_weight"] == (1.0,)
    assert method.paper == ccfc_paper.scores_of("fashion_mnist", "CCFC") != {}


# --- FDSC

SECOND, THIRD, FOURTH = OF_FDSC = [PAPER[f"fdsc-table{number}"] for number in (2, 3, 4)]


@pytest.mark.parametrize("table", OF_FDSC)
def test_the_graph_of_neighbours_helps_in_every_cell(table):
    """Section 4.5: FDSC2 is better than FDSC1."""
    for dataset, level in {setting[:2] for setting in table}:
        without, best = (table[dataset, level, name] for name in SUBSPACE[3:])
        assert all(best[name] > without[name] for name in FOUR)


def test_fdsc_is_best_but_for_two_cells():
    """Section 4.5 says that it is everywhere; ACC is."""
    others = {
        (dataset, q, name, method)
        for (dataset, q, method), scores in SECOND.items()
        for name in FOUR
        if scores[name] > SECOND[dataset, q, "FDSC2"][name]
    }
    assert others == {("coil20", 10, "nmi", "DSCN"), ("mnist", 10, "ari", "DSCN")}
    # FDSC1 too is below DSCN there.
    assert SECOND["coil20", 10, "FDSC1"]["nmi"] < SECOND["coil20", 10, "DSCN"]["nmi"]


def test_ten_rows_have_ami_above_nmi():
    """Which cannot be where both have one mean of entropies: AMI is NMI less chance,
    of which there is at least none."""
    rows = {
        f"{number}, {level} {method}"
        for number, table in enumerate(OF_FDSC, 2)
        for (_, level, method), scores in table.items()
        if scores["ami"] > scores["nmi"]
    }
    assert rows == {
        *("2, 5 LRSC", "2, 5 DLRSC"),
        *("3, 30 FDSC2", "3, 40 FDSC1", "3, 40 FDSC2", "3, 50 FDSC2"),
        *("4, 100 FDSC1", "4, 100 FDSC2", "4, 750 FDSC2", "4, 1000 FDSC1"),
    }


def test_accuracy_grows_as_the_text_of_fdsc_says():
    # Section 4.5: with the classes of a client, but on MNIST.
    for (dataset, (few, many)), method in product(QS.items(), SUBSPACE[3:]):
        first, second = (SECOND[dataset, q, method]["acc"] for q in (few, many))
        assert (second > first) == (dataset != "mnist")
    # Section 4.6: with clients and batches.
    for table, method in product((THIRD, FOURTH), SUBSPACE[3:]):
        levels = sorted({level for _, level, _ in table})
        accs = [table["mnist", level, method]["acc"] for level in levels]
        assert accs == sorted(set(accs))
    # 20 clients with batches of 500: the tables differ.
    of_all = (SECOND, 5), (THIRD, 20), (FOURTH, 500)
    found = [table["mnist", level, "FDSC2"]["acc"] for table, level in of_all]
    assert found == [0.838, 0.884, 0.874]


# --- FedCRef

BY_DIRTINESS, BY_TEST, BY_OVERLAP, BY_CLIENTS = (
    PAPER[f"fedcref-table{number}"] for number in (6, 7, 9, 11)
)


@pytest.mark.parametrize("table", [BY_DIRTINESS, BY_OVERLAP, BY_CLIENTS])
def test_improvement_is_that_of_acc_over_the_start(table):
    """As far as the start, printed as 0.7 for 0.701, tells."""
    for (*_, method), line in table.items():
        if method == OURS:
            gain = 100 * (line["acc"] / line["initial_acc"] - 1)
            assert line["improvement"] == pytest.approx(gain, abs=0.22)


def test_settings_that_two_tables_have():
    """Tables 4 and 3, and 7 with 5 and 6, are of the same runs; 9 is of others."""
    ours = PAPER["fedcref-table3"][EMNIST, "FedCRef w/ DEC"]
    assert ours == {"acc": 0.894, "categories": 10.8}
    of_defaults = BY_TEST[EMNIST, 75.0, 0.2]
    assert of_defaults == PAPER["fedcref-table5"][EMNIST, 0.3] | {"acc": 0.879}
    assert BY_DIRTINESS[EMNIST, 0.3, OURS]["acc"] == 0.879
    assert BY_OVERLAP[EMNIST, 0.0, OURS]["acc"] == 0.903


def test_tables_of_fedcref_agree_with_its_text():
    def accs(table, levels, method, dataset=EMNIST):
        return [table[dataset, level, method]["acc"] for level in levels]

    # Section 6.2: ACC falls with dirtiness, everywhere.
    for dataset, method in product(DIRTY, (OURS, PERFECT)):
        found = accs(BY_DIRTINESS, SHARES, method, dataset)
        assert found == sorted(found, reverse=True)
    # Section 6.3: at 90 nothing is associated, at theta 0.1 nothing wrongly.
    others = {(EMNIST, alpha, 0.2) for alpha in (75, 85, 90)}
    assert set(BY_TEST) == others | {(EMNIST, 75, theta) for theta in (0.1, 0.3)}
    nothing = BY_TEST[EMNIST, 90.0, 0.2]
    assert nothing["isolated"] == nothing["initial_isolated"]
    assert BY_TEST[EMNIST, 75.0, 0.1]["wrong_associations"] == 0
    # Section 6.4: ACC grows with overlap, and isolated clusters become fewer.
    grown = accs(BY_OVERLAP, SHARES, OURS)
    isolated = [PAPER["fedcref-table8"][EMNIST, x]["isolated"] for x in SHARES]
    assert (grown, isolated) == (sorted(grown), sorted(isolated, reverse=True))
    # Section 6.5: best at 30 clients; with perfect associations best at 40.
    for method, best in ((OURS, 1), (PERFECT, 2)):
        assert np.argmax(accs(BY_CLIENTS, COUNTS, method)) == best
