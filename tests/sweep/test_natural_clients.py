"""The data's own clients, from the flags to the scores."""

import json

import numpy as np
import pytest

from fcjax.cli.arguments import read
from fcjax.methods import SCRIPTS
from fcjax.results import store
from fcjax.sweep import experiment, train

WRITERS, NOBODYS = 3000, 40


@pytest.fixture(scope="module")
def leaf(tmp_path_factory):
    """Writers of 5 to 400 images of 2x2, by a power law, with an ink of their own; each
    of the five classes has one dark pixel, or none."""
    rng = np.random.default_rng(0)
    sizes = np.floor(1 / (1 / 5 - rng.random(WRITERS) * (1 / 5 - 1 / 401))).astype(int)
    writers = np.repeat(np.arange(WRITERS), sizes)
    writers = rng.permutation(np.append(writers, np.full(NOBODYS, -1)))
    labels = rng.integers(5, size=len(writers))
    ink = rng.uniform(150, 250, WRITERS)[writers]
    images = 40 + np.where(np.arange(4) == labels[:, None], ink[:, None], 0)
    images = (images + rng.uniform(-10, 10, images.shape)).astype(np.uint8)
    path = tmp_path_factory.mktemp("leaf") / "leaf.npz"
    np.savez(path, images=images.reshape(-1, 2, 2), labels=labels, client=writers)
    return path, np.bincount(writers[writers >= 0])


@pytest.fixture
def few(tmp_path):
    """Bo has three of eight examples, Al and Cy two each, and one is nobody's."""
    rows = [f"{i},{who},{i % 3},{i % 2}" for i, who in enumerate("BABCB CA")]
    (tmp_path / "few.csv").write_text("\n".join(["a,who,b,class", *rows]))
    return f"--dataset={tmp_path / 'few.csv'}"


def prepare(*flags):
    (task,) = read(SCRIPTS["baselines"], ["--methods=k-fed", *flags]).tasks
    return experiment.prepare(task)


BY_COLUMN = "--client-column=who"
LINE = "natural partition: {}"


@pytest.mark.parametrize(
    ("flags", "held", "told"),
    [
        ([], [[0, 2, 4], [1, 7], [3, 6]], "3 of 3 clients, 2 to 3 examples per client"),
        (["--min-client-size=3"], [[0, 2, 4]], "1 of 3 clients, 3 examples per"),
        (
            ["--no-labels", "--clusters=2"],
            [[0, 2, 4], [1, 7], [3, 6]],
            "3 of 3 clients, 2",
        ),
        (["--client-size=2"], [[0, 2, 4], [1, 7], [3, 6]], "3 of 3 clients, 2 to 3 "),
    ],
)
def test_clients_are_those_of_the_data(few, flags, held, told):
    prepared = prepare(few, BY_COLUMN, *flags)
    (batch,) = prepared.batches
    (partition,) = batch.partitions
    found = [rows.tolist() for rows in partition.clients]
    if "--client-size=2" in flags:
        assert list(map(len, found)) == [2, 2, 2]
        assert set(found[0]) < set(held[0])
    else:
        assert found == held
    rest = set(range(8)) - {row for rows in found for row in rows}
    assert set(partition.left_out) == rest
    assert batch.num_clients == len(held)
    assert [(p["natural"], p["clients"]) for p in batch.points] == [(1, len(held))]
    (line,) = [x for x in prepared.dataset.notes if x.startswith("natural partition: ")]
    assert line.startswith(LINE.format(told))
    # No feature is whose it is; without labels the class is one.
    assert prepared.dataset.examples.shape[1] == 2 + ("--no-labels" in flags)
    assert prepared.folder.config["partition"] == "natural"
    assert prepared.folder.config["client_column"] == "who"


def test_what_stands_for_a_rule_that_is_not_given_deals_nothing(few):
    """FedMCC's script deals by p = 0, and its central methods whatever there is."""

    def dealt(*flags):
        tasks = read(SCRIPTS["fedmcc"], [few, BY_COLUMN, *flags]).tasks
        (batch,) = experiment.prepare_all(tasks)[0].batches
        return batch.num_clients

    assert dealt() == 3
    assert dealt("--p=0", "--clients=2") == 2
    assert dealt("--methods=cc") == 1


def test_most_clients_are_drawn_alike_for_every_seed(few):
    def held(*flags):
        batches = prepare(few, BY_COLUMN, "--max-clients=2", *flags).batches
        return [
            [rows.tolist() for rows in partition.clients]
            for batch in batches
            for partition in batch.partitions
        ]

    first, second = held("--seed", "0", "1")
    assert len(first) == 2
    assert first == second
    assert held("--seed=7") == [first]


def test_another_rule_deals_anew_and_says_so(few):
    prepared = prepare(few, BY_COLUMN, "--p=0", "--clients=2")
    assert [len(x) for x in prepared.batches[0].partitions[0].clients] == [4, 4]
    assert (
        "the natural partition is not used, because `p` is given"
        in prepared.dataset.notes
    )
    assert prepared.folder.config["partition"] == "p"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            [BY_COLUMN, "--clients=10"],
            "`clients` is the number of clients of a partition, but",
        ),
        (
            [BY_COLUMN, "--min-client-size=4"],
            "least_size must be at most 3",
        ),
        (
            [BY_COLUMN, "--p=0", "--max-clients=2"],
            "`max_clients` selects among .*, but .* is partitioned by `p`",
        ),
        (
            ["--dataset=digits", "--min-client-size=2"],
            "`min_client_size` selects among .*, but digits has no natural clients",
        ),
        ([BY_COLUMN, "--p=0", "--alpha=1", "--overlap=0"], "are two partition rules"),
        (
            ["--client-column=whose"],
            r"has no column 'whose' \(`client_column`\); its columns are a",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(few, flags, message):
    with pytest.raises(ValueError, match=message):
        prepare(few, *flags)


def test_of_writers_less_than_a_quarter_is_padding_and_scores_are_the_same(
    leaf, tmp_path, capsys
):
    """With size classes and, as other methods have them, all padded to the largest."""
    path, sizes = leaf
    for out in ("classes", "rectangle"):
        prepared = prepare(f"--dataset={path}", f"--out={tmp_path / out}", "--no-plot")
        (batch,) = prepared.batches
        own = batch.classes
        assert own is not None
        if out == "rectangle":
            batch = batch._replace(classes=None)
            prepared = prepared._replace(batches=(batch,))
        train.execute(prepared)
    printed = capsys.readouterr().out
    count = len(own.padded_sizes)
    assert f"natural partition: {WRITERS} of {WRITERS} clients, 5 to" in printed
    assert f"; {NOBODYS} examples unassigned\n" in printed
    slots = 8 * np.dot(own.counts, own.padded_sizes)
    assert (
        f"padding {1 - sizes.sum() / slots:.1%} of the clients' arrays in {count} size"
        in printed
    )
    assert (
        f"padding {1 - sizes.mean() / sizes.max():.1%} of the clients' arrays\n"
        in printed
    )
    assert 1 - sizes.sum() / slots < 0.25 < 0.9 < 1 - sizes.mean() / sizes.max()
    found, other = (
        store.read(tmp_path / out / "k-fed") for out in ("classes", "rectangle")
    )
    names = ("nmi", "acc", "kappa", "ari", "client_acc", "samples", "left_out")
    for name in names:
        assert found.rows[0][name] == pytest.approx(other.rows[0][name], abs=1e-4)
    assert found.rows[0]["left_out"] == NOBODYS
    mine, others = (folder.assignments() for folder in (found, other))
    assert (mine["client"] == others["client"]).all()
    assert (mine["client"] == -1).sum() == NOBODYS
    assert np.bincount(mine["client"][mine["client"] >= 0]).tolist() == [
        len(rows) for rows in batch.partitions[0].clients
    ]
    assert (mine["cluster"] >= 0).all()
    config = json.loads((tmp_path / "classes" / "k-fed" / "config.json").read_text())
    assert (config["partition"], config["min_client_size"]) == ("natural", 1)
