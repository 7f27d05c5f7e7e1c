"""What reproduce.py makes of the FDSC and FedCRef papers: rows, flags, the runs that
tables share."""

from functools import cache

import numpy as np
import pytest
import reproduce
from papers import fdsc_studies, fedcref_studies

from fcjax.data import Dataset
from fcjax.grid import plan

FDSC, FEDCREF = list(fdsc_studies.STUDIES), list(fedcref_studies.STUDIES)
EMNIST = "emnist-digits"
DEC, FROM_DEC, UIFCA = "Centralized baseline w/ DEC", "FedCRef w/ DEC", "UIFCA"
PERFECT = "Perfect Associations"


def jobs(table, preset="paper", datasets=(), **more):
    """Of each data set and row, where all data is there."""
    args = reproduce.Args(table=table, preset=preset, datasets=datasets, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "check_prepared", lambda *_: None)
        found = reproduce.jobs(reproduce.STUDIES[table], args)
    return {(job.dataset, job.row.label): job for job in found}


@cache
def planned(table, preset):
    """The groups of each row, of as many images as it is made for."""
    size = 60_000 if preset == "paper" else 1_800
    images = np.zeros((size, 8, 8, 1), np.uint8)
    dataset = Dataset("images", images, np.arange(size) % 10)
    return [
        (job, plan.groups(job.flags, dataset, 0, job.describe))
        for job in jobs(table, preset, seed=(0,)).values()
        if job.dataset in (EMNIST, "mnist") or preset == "smoke"
    ]


@pytest.mark.parametrize("preset", ["smoke", "paper"])
@pytest.mark.parametrize("table", FDSC + FEDCREF)
def test_every_row_is_a_method_of_its_script(table, preset):
    called = {label: name for name, label in fdsc_studies.CALLED.items()}
    called |= {DEC: "dec", UIFCA: "uifca"}
    study, outs = reproduce.STUDIES[table], set()
    for job, groups in planned(table, preset):
        label, _, processed = job.row.label.partition(" with ")
        for group in groups:
            assert group.method.name == called.get(label, "fedcref")
            settings = group.method.settings
            assert settings.get("post_processing", False) == bool(processed)
            assert {*study.by} <= {"dataset", "method", "iteration", *group.points[0]}
            group.build({name: values[0] for name, values in group.traced.items()})
        outs.add(job.flags.out)
    assert len(outs) == len(study.rows)


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_tables_share_runs_which_span_the_same_flags(preset):
    swept = {}
    for table in FDSC + FEDCREF:
        if not reproduce.STUDIES[table].maps:  # which keep their runs elsewhere
            for job, (group, *_) in planned(table, preset):
                swept.setdefault(job.flags.out.name, []).append(tuple(group.points[0]))
    assert all(len(set(names)) == 1 for names in swept.values())
    of_fdsc, of_fedcref, end = (
        ("digits", "digits", "") if preset == "smoke" else ("mnist", EMNIST, "-train")
    )
    expected = {f"{of_fdsc}-{x}{end}": 2 for x in ("lrsc", "dlrsc", "dscn")}
    expected |= {f"{of_fdsc}-{x}{end}": 4 for x in ("fdsc1", "fdsc2")}
    expected |= {
        f"{of_fedcref}-centralized-baseline-w-dec{end}": 2,  # Table 3 and Figure 7
        f"{of_fedcref}-fedcref-w-dec{end}": 3,  # Tables 3 and 4, Figure 8
        f"{of_fedcref}-perfect-associations{end}": 3,  # Tables 6, 9 and 11
        f"{of_fedcref}-fedcref{end}": 10,  # Table 7 has this run of the defaults
        f"{of_fedcref}-fedcref-by-theta{end}": 1,
    }
    assert expected.items() <= {name: len(x) for name, x in swept.items()}.items()


# --- FDSC


ORL, COIL20, COIL100 = "orl=ORL_32x32.mat", "coil20=COIL20.mat", "coil100=COIL100.mat"


@pytest.mark.parametrize(
    ("table", "data", "split", "clients", "classes", "sizes"),
    [
        ("table2", "mnist", "train", (20,), (5, 10), (500,)),
        ("table2", ORL, "all", (5,), (20, 40), ()),
        ("table2", COIL20, "all", (5,), (10, 20), ()),
        ("table2", COIL100, "all", (5,), (50, 100), ()),
        ("table3", "mnist", "train", (10, 20, 30, 40, 50), (10,), (500,)),
        ("table4", "mnist", "train", (20,), (10,), (100, 250, 500, 750, 1000)),
        ("figure3", "mnist", "train", (20,), (10,), (500,)),
        ("figure4", "mnist", "test", (20,), (10,), (500,)),
        ("figure4", COIL20, "all", (7,), (20,), (200,)),
    ],
)
def test_tables_have_the_partitions_of_section_4(
    table, data, split, clients, classes, sizes
):
    for job in jobs(f"fdsc-{table}", datasets=(data,)).values():
        flags = job.flags
        assert (flags.split, flags.clients) == (split, clients)
        assert (flags.classes_per_client, flags.client_size) == (classes, sizes)
        assert flags.seed == ((0,) if "figure" in table else (0, 1, 2, 3, 4))


def test_a_client_takes_as_many_steps_in_smoke_runs_of_all_methods():
    found = {job.row.label: each for job, each in planned("fdsc-table2", "smoke")}
    federated, alone = (found[x][0].method.settings for x in ("FDSC2", "DSCN"))
    share = federated["num_participants"] / 5
    assert federated["num_rounds"] * share == alone["num_rounds"] == 12
    assert federated["local_steps"] == alone["local_steps"]


# --- FedCRef


@pytest.mark.parametrize("table", FEDCREF)
def test_the_paper_preset_has_the_settings_of_table_1(table):
    said = reproduce.note(reproduce.STUDIES[table], reproduce.Args(table=table))
    assert ("the first match of a cluster" in said) == (table != "fedcref-figure7")
    by_clients = table.endswith(("table10", "table11", "table12", "figure10"))
    for (_, label), job in jobs(table).items():
        flags = job.flags
        assert (flags.class_range, flags.samples_per_class) == ((2, 5), 500)
        assert (flags.split, flags.preset) == ("train", "paper")
        assert (flags.seed, flags.evaluate_every) == ((0, 1, 2, 3, 4), 1)
        assert flags.clients == ((20, 30, 40) if by_clients else (25,))
        if flags.methods == ("fedcref",):
            start = "dec" if label == FROM_DEC else "dirty"
            assert (flags.start, bool(flags.dirtiness)) == (start, start == "dirty")
            assert (flags.associations == "perfect") == (label == PERFECT)


def test_data_sets_have_their_own_settings():
    table, file = "fedcref-table6", "kmnist49=kmnist49.npz"
    found = jobs(table, datasets=("emnist/digits", "kmnist", file, "fashion_mnist"))
    told = ("dirtiness", "class_range", "split", "threshold", "local_epochs")
    levels = (0.0, 0.3, 0.5)
    assert {
        name: tuple(getattr(job.flags, flag) for flag in told)
        for (name, _), job in found.items()
    } == {
        EMNIST: (levels, (2, 5), "train", (), ()),
        "kmnist": (levels, (2, 5), "train", (), ()),
        "kmnist49": (levels, (2, 15), "all", (), ()),  # a file has no splits
        "fashion_mnist": (levels, (2, 5), "train", (0.15,), (30,)),
    }
    args = reproduce.Args(table=table, preset="paper")
    said = reproduce.note(reproduce.STUDIES[table], args)
    assert "left out, as no data is called so: kmnist49" in said


def test_table_7_runs_the_five_settings_of_the_paper():
    ran = [
        (alpha, theta)
        for job in jobs("fedcref-table7").values()
        for alpha in job.flags.percentile or (75.0,)
        for theta in job.flags.threshold or (0.2,)
    ]
    settings = [key[1:] for key in reproduce.STUDIES["fedcref-table7"].paper]
    assert sorted(ran) == sorted(settings)
