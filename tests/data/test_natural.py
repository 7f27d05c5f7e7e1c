"""Whose an example is: as files say it, how it is dealt, and how it is padded."""

import itertools
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fcjax import data
from fcjax.data.dataset import client_numbers
from fcjax.data.sources import load
from fcjax.ragged import GROUPS, clients_by_class
from fcjax.results.store import example_names

IMAGES = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3) * 10
LABELS, WRITERS = np.array([3, 5, 3, 9]), np.array(["eva", "bo", "", "eva"])
CLIENTS = [1, 0, -1, 1]
"""By name, Bo is the first; the third example is nobody's."""
FEATURES = [f"f{i}" for i in range(6)]


def table(**columns):
    """A client in the midst of the features, and the class at the end."""
    features = pd.DataFrame(IMAGES.reshape(4, 6), columns=FEATURES)
    features.insert(2, "writer", WRITERS)
    return features.assign(**columns)


def write_npz(folder):
    path = folder / "some.npz"
    np.savez(path, images=IMAGES, labels=LABELS, client=WRITERS)
    return path, {}


def write_numbers(folder):
    path = folder / "some.npz"
    np.savez(
        path, images=IMAGES, labels=LABELS, client=np.array([[40], [7], [-3], [40]])
    )
    return path, {}


def write_csv(folder):
    table(digit=LABELS).to_csv(folder / "some.csv", index=False)
    return folder / "some.csv", {"client_column": "writer", "image_shape": (2, 3)}


def write_parquet(folder):
    pytest.importorskip("pyarrow")
    made = table(digit=LABELS)[[*FEATURES, "digit", "writer"]]  # the class comes first
    made["writer"] = made["writer"].replace("", None)
    made.to_parquet(folder / "some.parquet")
    return folder / "some.parquet", {"client_column": "writer", "image_shape": (2, 3)}


def saved(folder):
    """Splits of three and one; a further column, which is left alone."""
    datasets = pytest.importorskip("datasets")
    names = [str(i) for i in range(10)]
    kinds = datasets.Features(
        size=datasets.Value("int64"),
        writer=datasets.Value("string"),
        picture=datasets.Image(),
        digit=datasets.ClassLabel(names=names),
    )
    columns = {
        "size": [1, 2, 3, 4],
        "writer": WRITERS.tolist(),
        "picture": list(map(Image.fromarray, IMAGES)),
        "digit": LABELS.tolist(),
    }
    whole = datasets.Dataset.from_dict(columns, features=kinds)
    parts = {"train": whole.select(range(3)), "test": whole.select([3])}
    datasets.DatasetDict(parts).save_to_disk(folder / "saved")
    return whole


def write_saved(folder):
    saved(folder)
    return f"hf:{folder / 'saved'}", {"client_column": "writer"}


def write_pictures(folder):
    """As Hugging Face writes Parquet."""
    path = folder / "pictures.parquet"
    saved(folder).remove_columns("size").to_parquet(path)
    return path, {"client_column": "writer"}


@pytest.mark.parametrize(
    "write",
    [write_npz, write_numbers, write_csv, write_parquet, write_saved, write_pictures],
)
def test_every_format_says_whose_an_example_is(tmp_path, write):
    path, options = write(tmp_path)
    found = load(path, **options)
    np.testing.assert_array_equal(found.examples[..., 0], IMAGES)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.clients.tolist() == CLIENTS


def test_without_a_column_of_clients_it_is_one_as_others(tmp_path):
    made = table(digit=LABELS).assign(writer=[4, 2, 2, 4])
    made.to_csv(tmp_path / "some.csv", index=False)
    found = load(tmp_path / "some.csv")
    assert found.examples.shape == (4, 7)
    assert found.clients is None
    own = load(tmp_path / "some.csv", client_column="writer", labels=False)
    assert own.examples.shape == (4, 7)
    assert own.clients.tolist() == [1, 0, 0, 1]


def test_folders_of_clients_have_folders_of_classes(tmp_path):
    for place in ("w10/cat", "w2/dog", "w2/cat"):
        (tmp_path / place).mkdir(parents=True)
        for name in ("2.png", "10.png")[: 1 + place.startswith("w10")]:
            Image.fromarray(IMAGES[0]).save(tmp_path / place / name)
    (tmp_path / "w2" / "notes.txt").write_text("no image")
    found = load(tmp_path)
    # In natural order: w2 with cat and dog, then w10's two cats.
    assert found.labels.tolist() == [0, 1, 0, 0]
    # Names are sorted as text, as those of classes are.
    assert found.clients.tolist() == [1, 1, 0, 0]
    told = "1 file skipped: not an image, or in a folder that is not read (notes.txt)"
    assert told in found.notes
    assert load(tmp_path, labels=False).clients.tolist() == [1, 1, 0, 0]


def pictures(folder, *places):
    """Writes an image of its own grey, 0, 1, 2, ..., at each of these places."""
    for grey, place in enumerate(places):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), grey, np.uint8)).save(folder / place)


def test_folders_of_splits_are_no_clients(tmp_path):
    places = ("Test/cat/1.png", "Test/cat/2.png", "train/cat/1.png", "train/dog/1.png")
    pictures(tmp_path, *places, "val/dog/1.png")
    found = load(tmp_path)
    assert found.clients is None
    assert found.examples[:, 0, 0, 0].tolist() == [2, 3, 4, 0, 1]  # train, val, test
    assert found.labels.tolist() == [0, 1, 1, 0, 0]
    assert "folders train, val, Test read as splits, all used" in found.notes
    assert data.load(str(tmp_path), split="test").labels.tolist() == [0, 0]
    assert data.load(str(tmp_path), split="train").labels.tolist() == [0, 1]
    names = example_names(load(tmp_path, split="train"))
    assert names == ["train/cat/1.png", "train/dog/1.png"]
    forced = load(tmp_path, client_folders=True)
    assert forced.clients.tolist() == [0, 0, 1, 1, 2]  # Test, train, val


UNLIKE = ("train/cat/1.png", "test/1.png", "test/2.png")


@pytest.mark.parametrize(
    ("places", "options", "message"),
    [
        (
            ("1.png", "2.png"),
            {"client_folders": True},
            "has no subfolders with images, but `client",
        ),
        (
            ("cat/1.png", "dog/1.png"),
            {"split": "test"},
            "no folders train and tes",
        ),
    ],
)
def test_folders_that_are_not_understood(tmp_path, places, options, message):
    pictures(tmp_path, *places)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path), **options)


def test_images_with_a_dot_are_ignored_with_a_line(tmp_path):
    pictures(tmp_path, "cat/1.png", "cat/._1.png", "..up/2.png", "dog/3.png")
    found = load(tmp_path)
    assert len(found.examples) == 2
    assert any(note.startswith("2 images ignored, because") for note in found.notes)


def test_one_split_of_a_folder_or_of_a_saved_data_set(tmp_path):
    pictures(tmp_path / "folder", *UNLIKE)
    assert data.load(str(tmp_path / "folder"), split="test").labels is None
    path, options = write_saved(tmp_path)
    found = data.load(path, split="train", **options)
    assert found.labels.tolist() == [3, 5, 3]
    saved(tmp_path / "other").save_to_disk(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"has no split test; its splits are all"):
        data.load(f"hf:{tmp_path / 'whole'}", split="test")


def write_arrays(folder, **arrays):
    np.savez(folder / "bad.npz", x=IMAGES.reshape(4, 6), **arrays)
    return folder / "bad.npz"


def write_text(folder, text):
    (folder / "bad.csv").write_text(text)
    return folder / "bad.csv"


def write_no_picture(folder):
    saved(folder).remove_columns("picture").save_to_disk(folder / "none")
    return f"hf:{folder / 'none'}"


OTHER = "has no column 'writer' (`client_column`); its columns are a, b, 4"


@pytest.mark.parametrize(
    ("write", "column", "message"),
    [
        (partial(write_arrays, client=np.array([0.5, 1, 2, 3])), None, "client 0.5;"),
        (
            partial(write_arrays, client=np.full(4, -1)),
            None,
            "no example with a client",
        ),
        (
            partial(write_arrays, client=np.arange(3)),
            None,
            "clients of shape (3,); one",
        ),
        (
            partial(write_arrays, client=np.zeros((4, 2))),
            None,
            "of shape (4, 2) and typ",
        ),
        (
            write_arrays,
            "writer",
            "`client_column` is only for tables, such as .csv, .parquet or .xlsx,",
        ),
        (partial(write_text, text="a,b,4\n1,2,3\n2,3,4\n"), "writer", OTHER),
        (partial(write_text, text="writer,b\n1,2\n2,3\n"), "writer", "has 2 columns; "),
        (
            partial(write_text, text="a,writer,b\n1,x,2\nno,y,3\n"),
            "writer",
            "has text in 1 feature column: a ('no' in example 2)",
        ),
        (lambda folder: f"hf:{folder}", None, "not a folder written by save_to_disk"),
        (lambda folder: f"hf:{folder}/not", None, "does not exist"),
        (
            write_no_picture,
            None,
            "must have one column of type Image and at most one of type ClassLabel",
        ),
        (
            lambda folder: write_saved(folder)[0],
            "who",
            "has no column 'who' (`client_column`); its",
        ),
    ],
)
def test_what_is_not_understood_is_refused_in_a_line(tmp_path, write, column, message):
    with pytest.raises(ValueError, match=r"^dataset .*") as told:
        load(write(tmp_path), client_column=column)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["some.parquet", "hf:saved"])
def test_who_lacks_the_extra_is_told_its_name(tmp_path, monkeypatch, name):
    for module in ("pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name.removeprefix("hf:")).write_text("x")
    with pytest.raises(ValueError, match="pip install datasets pyarrow"):
        load(name)


def test_a_part_of_the_examples_keeps_their_clients():
    clients = np.array([4, 4, 1, -1])
    made = data.Dataset("x", np.arange(4.0)[:, None], None, clients=clients)
    found = data.stratified_subset(made, 2)
    np.testing.assert_array_equal(
        found.clients, clients[found.examples[:, 0].astype(int)]
    )


# --- who is dealt


def test_clients_hold_what_is_theirs_the_largest_first():
    clients = np.array([5, 2, 2, -1, 9, 5, -1, 2])
    partition = data.natural(clients)
    held = [rows.tolist() for rows in partition.clients]
    assert held == [[1, 2, 7], [0, 5], [4]]
    assert partition.left_out.tolist() == [3, 6]


@pytest.mark.parametrize("count", [57, 63, 64, 100, 111])
def test_many_clients_come_in_groups_of_alike_ones(count):
    rng = np.random.default_rng(count)
    sizes = np.sort(rng.integers(1, 50, count))[::-1]
    clients = rng.permutation(np.repeat(rng.permutation(count), sizes))
    found = np.array(list(map(len, data.natural(clients).clients)))
    per_group = -(-count // GROUPS)
    groups = np.split(found, range(per_group, count, per_group))
    assert [len(own) for own in groups[:-1]] == [per_group] * (GROUPS - 1)
    # In each place of a group one of eight neighbours in the order of size.
    for row in range(len(groups[-1])):
        assert [own[row] for own in groups] == sizes[8 * row : 8 * row + 8].tolist()


@pytest.mark.parametrize(
    ("most", "least", "expected", "told"),
    [
        (
            None,
            1,
            [0, 0, 0, 1, 1, 2, -1],
            "3 of 3 clients, 1 to 3 examples per client; ",
        ),
        (
            None,
            2,
            [0, 0, 0, 1, 1, -1, -1],
            "2 of 3 clients, 2 to 3 examples per client; ",
        ),
        (None, 3, [0, 0, 0, -1, -1, -1, -1], "1 of 3 clients, 3 examples per client; "),
        (5, 2, [0, 0, 0, 1, 1, -1, -1], "2 of 3 clients, 2 to 3 examples per client; "),
    ],
)
def test_small_clients_are_left_out_and_it_is_said(most, least, expected, told):
    clients = np.array([0, 0, 0, 1, 1, 2, -1])
    kept, line = data.select_clients(clients, most=most, least_size=least)
    assert kept.tolist() == expected
    assert line.startswith(f"natural partition: {told}")
    count = expected.count(-1)
    noun = "example" if count == 1 else "examples"
    assert line.endswith(f"; {count} {noun} unassigned")


def test_a_few_clients_are_drawn_with_all_that_is_theirs():
    clients = np.repeat(np.arange(40), 3)
    for seed in range(3):
        kept, line = data.select_clients(clients, most=10, seed=seed)
        names, counts = np.unique(kept[kept >= 0], return_counts=True)
        assert (len(names), set(counts)) == (10, {3})
        assert "10 of 40 clients, 3 examples per client; 90 examples unassigned" in line


# --- how they are padded


@pytest.mark.parametrize(("seed", "count"), [(0, 120), (1, 127), (2, 150), (3, 96)])
def test_classes_are_as_few_as_will_do_and_the_best_of_those(seed, count):
    """Of all ways to cut the places of a group."""
    rng = np.random.default_rng(seed)
    sizes = np.floor(9 * rng.pareto(1.0, count) + 5).astype(int).clip(max=150)
    clients = np.repeat(np.arange(count), sizes)
    sizes = np.array(list(map(len, data.natural(clients).clients)))
    per_group = -(-count // GROUPS)
    tall = [sizes[i::per_group].max() for i in range(per_group)]

    def cost(cuts):
        ends = [*cuts, per_group]
        return 8 * sum((b - a) * tall[a] for a, b in itertools.pairwise([0, *ends]))

    for number in range(1, 9):
        every = itertools.combinations(range(1, per_group), number - 1)
        least = min(map(cost, every))
        if 1 - sizes.sum() / least < 0.25:
            break
    found = data.size_classes(sizes)
    assert len(found.counts) == number
    assert 8 * np.dot(found.counts, found.padded_sizes) == least
    for own, slots in zip(
        clients_by_class(found.counts, count), found.padded_sizes, strict=True
    ):
        assert sizes[own].max() == slots


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([40] * 64, 1, None),  # one will do
        ([40, 40, 5, 5], 1, None),  # too few for groups
        ([40] + [35] * 7 + [31] * 56, 1, None),  # less than a quarter of 64 x 40
        ([2] * 64, 10, None),  # no class can be shorter
        (np.tile([90] + [10] * 7, 8), 1, ((1, 7), (90, 10))),
        (np.tile([90] + [3] * 7, 8), 10, ((1, 7), (90, 10))),
    ],
)
def test_classes_by_hand(sizes, least, expected):
    assert data.size_classes(np.array(sizes), least=least) == expected


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (["10", "2", "", "-2"], [1, 0, -1, -1]),
        (["10.0", "2.0", "-1.0", ""], [1, 0, -1, -1]),  # as pandas writes with gaps
        (["b", "-1", "a", "b"], [1, -1, 0, 1]),
        # Longer than an int64; the first two are one float.
        (["90071992547409921234", "90071992547409921235", "7"], [1, 2, 0]),
    ],
)
def test_whose_an_example_is_by_what_a_column_says(clients, expected):
    assert client_numbers(np.array(clients))[0].tolist() == expected
