"""What reproduce.py makes of the FDSC paper: rows, flags, runs that tables share, a
table on little data."""

import csv

import numpy as np
import pytest
import reproduce
from papers import fdsc_studies

from fcjax.data import Dataset
from fcjax.grid import plan

NAMES = [*fdsc_studies.STUDIES]
FILES = {"orl": "ORL_32x32.mat", "coil20": "COIL20.mat", "coil100": "COIL100.mat"}
IMAGES = Dataset("images", np.zeros((2000, 8, 8, 1), np.uint8), np.arange(2000) % 100)

DIGITS = IMAGES._replace(labels=np.arange(2000) % 10)


def jobs(table, monkeypatch, out, **more):
    monkeypatch.setattr(reproduce, "check_prepared", lambda *_: None)
    args = reproduce.Args(table=table, out=out, **more)
    found = reproduce.jobs(reproduce.STUDIES[table], args)
    return {(job.dataset, job.row.label): job for job in found}


def described(job):
    (clients,), q = job.flags.clients[:1], max(job.flags.classes_per_client)
    return job.describe(job.flags, IMAGES, clients, q)


@pytest.mark.parametrize("table", NAMES)
@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_every_row_is_a_method_of_the_script(table, preset, tmp_path, monkeypatch):
    found = jobs(table, monkeypatch, tmp_path, preset=preset)
    called = {label: name for name, label in fdsc_studies.CALLED.items()}
    for (_, label), job in found.items():
        name = called[label.partition(" ")[0]]
        method = described(job)
        assert method.name == name
        assert method.settings["post_processing"] == ("with" in label)
        if preset == "paper" and name == "fdsc2":
            # Section 4.2: T, tau, lambda_1 to lambda_3.
            expected = {
                "num_rounds": (100,),
                "local_steps": (7,),
                "penalty_weight": (1.0,),
                "expression_weight": (15.0,),
                "locality_weight": (1e6,),
                "num_participants": (
                    job.flags.clients[0] // 4 + (job.flags.clients[0] == 10) * 0,
                ),
            }
            assert expected.items() <= method.settings.items()
    assert len({job.flags.out for job in found.values()}) == len(found)


def test_table_2_has_the_partitions_of_section_4_5(tmp_path, monkeypatch):
    for file in FILES.values():
        (tmp_path / file).touch()
    given = tuple(f"{name}={tmp_path / file}" for name, file in FILES.items())
    found = jobs(
        "fdsc-table2",
        monkeypatch,
        tmp_path,
        preset="paper",
        datasets=("mnist", *given),
        methods=("FDSC2",),
    )
    dealt = {
        name: (job.flags.clients, job.flags.classes_per_client, job.flags.client_size)
        for (name, _), job in found.items()
    }
    assert dealt == {
        "mnist": ((20,), (5, 10), (500,)),
        "orl": ((5,), (20, 40), ()),
        "coil20": ((5,), (10, 20), ()),
        "coil100": ((5,), (50, 100), ()),
    }
    assert found["mnist", "FDSC2"].flags.split == "train"
    settings = {name: described(job).settings for (name, _), job in found.items()}
    told = ("num_rounds", "num_participants", "penalty_weight", "expression_weight")
    assert {name: tuple(x[k][0] for k in told) for name, x in settings.items()} == {
        "mnist": (100, 5, 1.0, 15.0),
        "orl": (200, 2, 2.0, 0.2),
        "coil20": (100, 2, 1.0, 75.0),
        "coil100": (100, 2, 1.0, 15.0),
    }


def test_tables_3_and_4_have_the_levels_of_section_4_6(tmp_path, monkeypatch):
    for table, clients, sizes in (
        ("fdsc-table3", (10, 20, 30, 40, 50), (500,)),
        ("fdsc-table4", (20,), (100, 250, 500, 750, 1000)),
    ):
        found = jobs(table, monkeypatch, tmp_path, preset="paper")
        assert [label for _, label in found] == ["FDSC1", "FDSC2"]
        for job in found.values():
            assert job.flags.clients == clients
            assert job.flags.client_size == sizes
            assert job.flags.classes_per_client == (10,)
            # The runs of 20 clients and 500 examples are those of Table 2.
            assert job.flags.out == tmp_path / f"mnist-{job.row.label.lower()}-train"
        assert "q is not in print for it, 10 is taken" in reproduce.note(
            reproduce.STUDIES[table], reproduce.Args(table=table)
        )


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_runs_that_share_a_folder_span_the_same_flags(preset, tmp_path, monkeypatch):
    tables = [name for name in NAMES if "figure" not in name]
    swept = {}
    for table in tables:
        for job in jobs(table, monkeypatch, tmp_path, preset=preset).values():
            (point, *_) = plan.groups(job.flags, DIGITS, 0, job.describe)[0].points
            swept.setdefault(job.flags.out, []).append(tuple(point))
    assert max(map(len, swept.values())) == 4  # FDSC1 and FDSC2 are in all tables
    assert all(len(set(names)) == 1 for names in swept.values())


def test_a_client_takes_as_many_steps_in_smoke_runs_of_all_methods(
    tmp_path, monkeypatch
):
    found = jobs("fdsc-table2", monkeypatch, tmp_path)
    (federated, alone) = (
        described(found["digits for mnist", name]).settings
        for name in ("FDSC2", "DSCN")
    )
    share = federated["num_participants"][0] / 5
    assert federated["num_rounds"][0] * share == alone["num_rounds"][0] == 12
    assert federated["local_steps"] == alone["local_steps"]


def test_figures_have_the_partitions_of_sections_4_3_and_4_4(tmp_path, monkeypatch):
    more = {"preset": "paper", "datasets": ("mnist",)}
    (third,) = jobs("fdsc-figure3", monkeypatch, tmp_path, **more).values()
    more["datasets"] = ("mnist", f"coil20={FILES['coil20']}")
    fourth = [*jobs("fdsc-figure4", monkeypatch, tmp_path, **more).values()]
    dealt = [
        (x.split, x.clients, x.classes_per_client, x.client_size, x.seed)
        for x in (job.flags for job in (third, *fourth))
    ]
    assert dealt == [
        ("train", (20,), (10,), (500,), (0,)),
        ("test", (20,), (10,), (500,), (0,)),
        (dealt[2][0], (7,), (20,), (200,), (0,)),
    ]


def test_processing_is_shown_beside_none(tmp_path, monkeypatch):
    found = jobs("fdsc-post-processing", monkeypatch, tmp_path)
    labels = [label for _, label in found]
    assert labels[:4] == [
        "LRSC",
        "LRSC with post-processing",
        "DLRSC",
        "DLRSC with post-processing",
    ]
    assert len(labels) == 10
    # What has none is run once, for Table 2 too.
    table = jobs("fdsc-table2", monkeypatch, tmp_path)
    for setting, job in table.items():
        assert found[setting].flags == job.flags
    assert len(table) == 5


def test_a_table_end_to_end(tmp_path):
    study = reproduce.STUDIES["fdsc-post-processing"]
    smoke = study.presets["smoke"]
    smoke = smoke._replace(grid={"clients": (2,), "classes_per_client": (3,)})
    study = study._replace(presets={"smoke": smoke})
    args = reproduce.Args(
        table="fdsc-post-processing",
        methods=("LRSC", "LRSC with post-processing"),
        limit=60,
        out=tmp_path,
    )
    reproduce.reproduce(study, args)
    with (tmp_path / "fdsc-post-processing" / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(float(x["classes_per_client"]), x["method"]) for x in lines] == [
        (3, "LRSC"),
        (3, "LRSC with post-processing"),
    ]
    folders = ("digits-lrsc", "digits-lrsc-with-post-processing")
    for line, folder in zip(lines, folders, strict=True):
        with (tmp_path / folder / "results.csv").open(newline="") as file:
            (run,) = csv.DictReader(file)
        for name in ("acc", "nmi", "ami", "ari"):
            assert float(line[name]) == pytest.approx(float(run[name]), abs=1e-6)
        assert (run["clients"], run["clusters"]) == ("2", "3")
