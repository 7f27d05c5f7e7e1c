"""The tables of the FedCRef paper as data: as printed, and as its text has them."""

import pytest
import reproduce
from papers import fedcref as paper

TABLES = {
    number: reproduce.STUDIES[f"fedcref-table{number}"].paper for number in range(3, 13)
}
EMNIST = "emnist/digits"
OURS, PERFECT = "FedCRef", "Perfect Associations"


@pytest.mark.parametrize(
    ("table", "setting", "printed"),
    [
        (3, ("FedCRef w/ DEC",), {"acc": 0.894, "categories": 10.8}),
        (3, ("Centralized baseline w/ DEC",), {"acc": 0.793, "categories": 9.0}),
        (3, ("UIFCA",), {"acc": 0.439}),
        (
            4,
            ("FedCRef w/ DEC",),
            {
                "initial_acc": 0.781,
                "acc": 0.894,
                "communities": 10.8,
                "wrong_associations": 0.011,
                "initial_isolated": 87.5,
                "isolated": 19.1,
            },
        ),
        (
            5,
            (0.5,),
            {
                "communities": 10.2,
                "wrong_associations": 0.069,
                "initial_isolated": 89.4,
                "isolated": 48.0,
            },
        ),
        (6, (0.3, OURS), {"initial_acc": 0.701, "acc": 0.879, "improvement": 25.392}),
        (6, (0.5, PERFECT), {"acc": 0.914}),
        (
            7,
            (75.0, 0.3),
            {
                "acc": 0.644,
                "communities": 12.2,
                "wrong_associations": 0.124,
                "initial_isolated": 85.2,
                "isolated": 19.8,
            },
        ),
        (
            8,
            (0.3,),
            {
                "communities": 10.0,
                "wrong_associations": 0.0,
                "initial_isolated": 89.571,
                "isolated": 8.429,
            },
        ),
        (9, (0.5, OURS), {"initial_acc": 0.7, "acc": 0.976, "improvement": 39.23}),
        (9, (0.0, PERFECT), {"acc": 0.953}),
        (
            10,
            (40,),
            {
                "communities": 11.5,
                "wrong_associations": 0.0112,
                "initial_isolated": 141.4,
                "isolated": 30.9,
            },
        ),
        (11, (30, OURS), {"initial_acc": 0.7, "acc": 0.916, "improvement": 30.67}),
        (11, (20, PERFECT), {"acc": 0.921}),
        (12, (40,), {"iteration": 16.7, "minutes": 87.6}),
    ],
)
def test_tables_are_as_printed(table, setting, printed):
    assert TABLES[table][EMNIST, *setting] == pytest.approx(printed)


def test_other_data_sets_are_as_printed():
    assert TABLES[5]["kmnist49", 0.3] == {
        "communities": 27.4,
        "wrong_associations": 0.074,
        "initial_isolated": 197.8,
        "isolated": 53.4,
    }
    assert TABLES[5]["fashion_mnist", 0.3]["communities"] == 8.33
    assert TABLES[6]["kmnist", 0.5, OURS]["improvement"] == 51.786
    assert TABLES[6]["fashion_mnist", 0.0, PERFECT] == {"acc": 0.864}


def test_intervals_are_kept():
    assert paper.OVERALL["UIFCA"]["acc"] == (0.439, 0.021)
    assert paper.FROM_DEC[3] == (0.011, 0.016)
    assert paper.BY_THRESHOLD[90.0, 0.2][0] == (0.7, None)
    assert paper.ACC_BY_OVERLAP[0.5][3] == (0.97, 0.003)
    assert paper.FOUND_BY_CLIENTS[20][1] == (0.00222, 0.00339)
    assert paper.CONVERGED_BY_CLIENTS[30] == ((13.7, 1.7), (71.2, 9.9))


def test_tables_are_whole():
    datasets = (EMNIST, "kmnist", "kmnist49", "fashion_mnist")
    levels = {n: {setting[1:] for setting in table} for n, table in TABLES.items()}
    for number in (5, 6):
        assert {setting[0] for setting in TABLES[number]} == set(datasets)
    assert len(TABLES[5]) == 4 * 3
    assert len(TABLES[6]) == 4 * 3 * 2
    assert levels[7] == {(75, 0.2), (75, 0.1), (75, 0.3), (85, 0.2), (90, 0.2)}
    assert levels[8] == {(0.0,), (0.3,), (0.5,)}
    assert levels[10] == levels[12] == {(20,), (30,), (40,)}
    assert len(TABLES[9]) == len(TABLES[11]) == 3 * 2


@pytest.mark.parametrize("table", [6, 9, 11])
def test_improvement_is_that_of_acc_over_the_start(table):
    """As far as the start, printed as 0.7 for 0.701, tells."""
    for (*_, method), line in TABLES[table].items():
        if method == OURS:
            before = line["initial_acc"]
            gain = 100 * (line["acc"] - before) / before
            assert line["improvement"] == pytest.approx(gain, abs=0.22)


def test_the_interval_of_the_improvement_is_that_of_acc_but_for_two():
    others = []
    for lines in (
        *paper.ACC_BY_DIRTINESS.values(),
        paper.ACC_BY_OVERLAP,
        paper.ACC_BY_CLIENTS,
    ):
        for (before, _), acc, (_, half_width), _ in lines.values():
            if half_width != pytest.approx(100 * acc[1] / before, abs=0.4):
                others.append((acc, half_width))
    # Table 9 at overlaps of 0 and 0.5.
    assert others == [((0.903, 0.033), 3.16), ((0.976, 0.004), 1.12)]


def test_settings_that_two_tables_have():
    """Tables 4 and 3, and 7 with 5 and 6, are of the same runs; 9 is of others."""
    assert TABLES[4][EMNIST, "FedCRef w/ DEC"]["acc"] == 0.894
    of_defaults = TABLES[7][EMNIST, 75.0, 0.2]
    assert of_defaults == TABLES[5][EMNIST, 0.3] | {"acc": 0.879}
    assert TABLES[6][EMNIST, 0.3, OURS]["acc"] == 0.879
    assert TABLES[9][EMNIST, 0.0, OURS]["acc"] == 0.903


def test_what_the_text_says_of_the_tables():
    # Section 6.2: ACC falls with dirtiness, everywhere.
    for dataset in {setting[0] for setting in TABLES[6]}:
        for method in (OURS, PERFECT):
            found = [TABLES[6][dataset, x, method]["acc"] for x in (0.0, 0.3, 0.5)]
            assert found == sorted(found, reverse=True)
    # Section 6.3: at 90 nothing is associated, at theta 0.1 nothing wrongly.
    nothing = TABLES[7][EMNIST, 90.0, 0.2]
    assert nothing["isolated"] == nothing["initial_isolated"]
    assert TABLES[7][EMNIST, 75.0, 0.1]["wrong_associations"] == 0
    # Section 6.4: ACC grows with overlap, and isolated clusters become fewer.
    accs = [TABLES[9][EMNIST, x, OURS]["acc"] for x in (0.0, 0.3, 0.5)]
    isolated = [TABLES[8][EMNIST, x]["isolated"] for x in (0.5, 0.3, 0.0)]
    assert accs == sorted(accs)
    assert isolated == sorted(isolated)
    # Section 6.5: best at 30 clients; with perfect associations best at 40.
    by_clients = {
        method: {x: TABLES[11][EMNIST, x, method]["acc"] for x in (20, 30, 40)}
        for method in (OURS, PERFECT)
    }
    assert by_clients[OURS][30] == max(by_clients[OURS].values())
    assert by_clients[PERFECT][40] == max(by_clients[PERFECT].values())
