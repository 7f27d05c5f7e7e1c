"""What partitions and data sets by name refuse, each with its one line. Files are in
test_damaged_files.py, TFDS folders in test_sources.py."""

import re
from functools import partial

import numpy as np
import pytest

from fcjax import data
from fcjax.data.dataset import validate
from fcjax.data.partition import examples_per_class
from tests.data.test_partition import ONE, PRESENT, TEN, TWO

ODD, SIX = np.array([0, 0, 0, 0, 0, 1]), np.array([5, 5, 8, 5, 5, 8])
NAN, INF = float("nan"), float("inf")
POOL = np.zeros((6, 1), np.float32)
IMAGES = np.zeros((3, 2, 2, 1), np.float32)
CLIENTS = np.array([0, 0, 0, 1, -1])
by_p = partial(data.heterogeneous, ODD, seed=0)
by_alpha = partial(data.dirichlet, ODD, seed=0)
blocks = partial(data.class_blocks, ODD, seed=0)
drawn = partial(data.drawn_classes, SIX, seed=0)
absent = partial(data.failures, 4, seed=0)
thin = partial(data.subsample_clients, TWO, ODD, seed=0)
few = partial(data.select_clients, CLIENTS)
load = partial(data.load, data_dir="/nowhere")
LESS = [ONE, TWO._replace(clients=TWO.clients[:1])]
EMPTY = [ONE, TWO._replace(clients=(np.arange(6), np.arange(0)))]
MIXED = [PRESENT[0], PRESENT[1, :1]]


def ranges(clients=2, overlap=0.0, held=(2, 5), size=3):
    options = {"class_range": held, "samples_per_class": size, "seed": 0}
    return data.class_ranges(TEN, clients, overlap, **options)


def grid(partitions=(ONE, TWO), present=PRESENT, pool=POOL, slots=None):
    return data.federate(pool, partitions, present, num_clusters=2, padded_size=slots)


def left_out(slots):
    return data.federate_left_out(POOL, [ONE], num_clusters=2, padded_size=slots)


def subset(limit):
    return data.stratified_subset(data.Dataset("x", np.zeros((30, 1)), None), limit)


def validated(value=0.0, examples=3, labels=3):
    images = IMAGES[:examples] + np.array([0, value, 0])[:examples, None, None, None]
    return validate(data.Dataset("x", images, np.arange(labels)))


# Of each message the beginning; what is accepted is spelt out once.
PARTITIONS = [
    (lambda: by_p(2, 1.2), "p must lie in [0, 1], got 1.2"),
    (lambda: by_p(2, NAN), "p must lie in [0, 1], got nan"),
    (
        lambda: by_p(0, 0.5),
        "num_clients must lie in 1..6, the number of examples, got 0",
    ),
    (lambda: by_p(7, 0.5), "num_clients must lie in 1..6,"),
    (lambda: by_p(5, 1.0), "num_clients 5 leaves client 3 "),
    # One row a client rounds to head 0 and tail 0.
    (lambda: by_p(6, 0.5), "num_clients 6 leaves client 0 "),
    (lambda: by_alpha(2, 0.0), "alpha must be positive and finite, got 0"),
    (lambda: by_alpha(2, INF), "alpha must be positive and finite, got inf"),
    (lambda: by_alpha(7, 1.0), "num_clients must lie in 1..6,"),
    (
        lambda: blocks(3, 0.33),
        "class_share must lie in [1/num_clients, 1], which is [0.333, 1] for num",
    ),
    (lambda: blocks(2, 1.001), "class_share must lie in [1/num_clients, 1],"),
    (lambda: blocks(2, NAN), "class_share must lie in [1/num_clients, 1],"),
    (lambda: blocks(0, 1.0), "num_clients must lie in 1..6,"),
    # Clients 3 and 4 hold class 1, of which there is one row.
    (
        lambda: blocks(5, 0.2),
        "num_clients 5 leaves client 4 with no examples at class_s",
    ),
    (lambda: drawn(2, 0), "classes_per_client must lie in 1..2, the number of class"),
    (lambda: drawn(2, 3), "classes_per_client must lie in 1..2,"),
    (lambda: drawn(7, 1), "num_clients must lie in 1..6,"),
    (
        lambda: drawn(3, 2),
        "classes_per_client 2 with num_clients 3 assigns class 8 to 3 clients, but the "
        "class has 2 examples; give a smaller value of either",
    ),
    (lambda: ranges(overlap=1.0), "overlap must lie in [0, 1), got 1.0"),
    (lambda: ranges(overlap=-0.1), "overlap must lie in [0, 1), got -0.1"),
    (lambda: examples_per_class(3, 2, NAN), "overlap must lie in [0, 1), got nan"),
    (
        lambda: ranges(held=(0, 2)),
        "class_range must be two numbers in 1..10, the number of",
    ),
    (lambda: ranges(held=(3, 2)), "class_range must be two numbers in 1..10,"),
    (lambda: ranges(held=(2, 11)), "class_range must be two numbers in 1..10,"),
    (lambda: ranges(size=0), "samples_per_class must be at least 1, got 0"),
    (lambda: ranges(clients=0), "num_clients must lie in 1..100,"),
    (
        lambda: ranges(clients=11, held=(10, 10)),
        "class_range 10 10 with num_clients 11 assigns class 0 to 11 clients, but the "
        "class has 10 examples; give a smaller value of either",
    ),
    (lambda: few(most=0), "most must be at least 1, got 0"),
    (lambda: few(least_size=0), "least_size must be at least 1, got 0"),
    (lambda: few(least_size=4), "least_size must be at most 3, the size of the larg"),
    (lambda: thin(0), "size must be at least 1, got 0"),
    (lambda: absent(1.5), "rate must lie in [0, 1], got 1.5"),
    (lambda: absent(-0.5), "rate must lie in [0, 1], got -0.5"),
    (
        lambda: absent(0.9),
        "failure_rate 0.9 makes all 4 clients fail; give a smaller rate, so that",
    ),
    # A grid that does not fit together.
    (
        lambda: grid(LESS),
        "all partitions of a grid must have the same num_clients, got [",
    ),
    (
        lambda: grid([]),
        "all partitions of a grid must have the same num_clients, got []",
    ),
    (lambda: grid(EMPTY), "client 1 of a partition has no example; every"),
    (lambda: grid(present=PRESENT[:1]), "`present` has 1 runs of 2 clients, but the"),
    (
        lambda: grid(present=MIXED),
        "all runs of a grid must have the same number of rounds in",
    ),
    (
        lambda: grid(pool=POOL[:5]),
        "a partition has the index 5, but the pool has only 5 examples",
    ),
    (
        lambda: grid(slots=4),
        "padded_size must be at least 5, the size of the largest client, got 4",
    ),
    (
        lambda: left_out(slots=1),
        "padded_size must be at least 2, the size of the largest client, got 1",
    ),
]
DATA_SETS = [
    (lambda: validated(NAN), "dataset x has NaN or infinite values"),
    (lambda: validated(-INF), "dataset x has NaN or infinite values"),
    (lambda: validated(examples=0, labels=0), "dataset x has no examples"),
    (
        lambda: validated(labels=2),
        "dataset x has 3 examples but labels of shape (2,)",
    ),
    (lambda: subset(0), "num_examples must lie in 1..30, the size of x, got 0"),
    (lambda: subset(31), "num_examples must lie in 1..30, the size of x, got 31"),
    (lambda: load("digits", resize=0), "resize must be at least 1, got 0"),
    (lambda: data.load("digits", resize=0), "resize must be at least 1, got 0"),
    (lambda: data.load("x.npz", resize=-3), "resize must be at least 1, got -3"),
    (
        lambda: data.load_extra(data.Source("digits", extra_split="a")),
        "extra_split is for TFDS data sets, but",
    ),
    (lambda: load("digits", image_shape=(8, 8)), "image_shape is only for files, but"),
    (
        lambda: load("digits", client_folders=True),
        "client_folders is only for files, but",
    ),
    (
        lambda: data.load(__file__, client_folders=True),
        f"dataset {__file__} is not a folder; `client_folders` is only for folders",
    ),
    (lambda: load("digits", split="test"), "split must be all for digits (no splits"),
    (lambda: load("x.npz", split="test"), "split must be all for files, got 'test'"),
    (lambda: load("digits", split=""), "split must be all, train or test, got ''"),
    (lambda: load("mnist", split="train[:5]"), "split must be all, train or test,"),
]


@pytest.mark.parametrize(("call", "message"), [*PARTITIONS, *DATA_SETS])
def test_one_line_names_the_parameter_and_what_is_accepted(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnst", "mnst is unknown; .*similar names: mnist"),
        ("digit", "digit is unknown; .*similar names: digits"),
        ("emnist/digts", "emnist/digts is unknown; .*similar names: emnist/digits"),
        (
            "zzzzqqq",
            "zzzzqqq is unknown; give digits, the name of a TFDS data set, or a path$",
        ),
        ("", "'' is unknown"),
        ("some/odd/path", "some/odd/path is unknown"),
        ("huggingface:mnist", "huggingface:mnist is unknown"),
        (
            "mnist:9.9.9",
            r"mnist:9\.9\.9 cannot be opened in /nowhere: .* only: 3\.0\.1",
        ),
        ("imdb_reviews", "imdb_reviews must have a feature 'image' of .* text, label"),
    ],
)
def test_names_that_cannot_be_loaded(name, message):
    with pytest.raises(ValueError, match=f"^dataset {message}") as caught:
        load(name)
    assert "\n" not in str(caught.value)
