"""What every score, table and figure says of input that it cannot use."""

import jax
import numpy as np
import pytest

from experiments.papers.maps import Panel, draw_maps
from fcjax import metrics as e
from fcjax.metrics.probes import linear_probe, semi_supervised
from fcjax.results import figures as f
from fcjax.results.tables import summarize

KEY = jax.random.key(0)
Z, Y, FEW = np.eye(3), np.arange(3), np.zeros((3, 2))
WIDE, MANY = np.eye(20), np.arange(20)
MAP, MASK, CUBE = np.zeros((2, 3), int), np.ones((2, 3), bool), np.zeros((2, 3, 2))
ABSENT = MASK & [[True], [False]]
ROW = {"p": 0, "method": "a", "label": 0, "share": 1.0, "nmi": 1.0}
HISTORY = [{"stage": "train", "round": 0, "p": 0, "loss": 1.0}]
SAME_LENGTH = "^labels and assignments must have the same length, got 3 and 2$"
NAMED = (e.accuracy, e.kappa, e.nmi, e.ari, e.ami, e.match, e.scores)
internal, harabasz = e.internal_scores, e.client_calinski_harabasz


def level(path, p):
    return f.against([{**ROW, "p": p}], path, level="p", by=())


def knn(truth=Y, ks=(1,)):
    return e.knn_accuracy(Z, Y, Z, truth, num_neighbors=ks)


def linear(train=Z, labels=Y, test=Z, truth=Y, **options):
    return linear_probe(KEY, train, labels, test, truth, **options)


def few(truth=Y, share=0.5, **options):
    return semi_supervised(KEY, Z, Y, Z, truth, label_fraction=share, **options)


CASES = [
    # Scores of one clustering
    *[(lambda _, s=s: s(Y, Y[:2]), SAME_LENGTH) for s in NAMED],
    *[
        (
            lambda _, s=s: s(Y[:0], Y[:0]),
            "^labels must contain at least 1 example, got 0$",
        )
        for s in NAMED
    ],
    # By client
    (
        lambda _: e.per_client(MAP, MAP[:, :2], MASK),
        r"^assignments must have the shape \(2, 3\)",
    ),
    (
        lambda _: e.imbalance_ratio(MAP[:1], MASK),
        r"^labels must have the shape \(2, 3\) of mask",
    ),
    (lambda _: e.per_client(MAP, MAP, ABSENT), r"but clients \[1\] have none$"),
    (
        lambda _: e.imbalance_ratio(MAP[:0], MASK[:0]),
        "^mask must contain at least 1 client",
    ),
    # Clusters in use
    (
        lambda _: e.collapse(Y[:0], num_clusters=2),
        "^assignments must contain at least 1 example",
    ),
    (
        lambda _: e.collapse(Y, num_clusters=2),
        r"^assignments must lie in 0\.\.1, got values from 0",
    ),
    (
        lambda _: e.collapse(Y - 1, num_clusters=2),
        r"^assignments must lie in 0\.\.1, got values from -",
    ),
    # Classifiers of it
    (lambda _: knn(ks=[0]), r"^`num_neighbors` must lie in 1\.\.3, .*, got 0$"),
    (lambda _: knn(ks=[4]), r"^`num_neighbors` must lie in 1\.\.3, .*, got 4$"),
    (lambda _: knn(ks=[]), "^`num_neighbors` must contain at least 1 number"),
    (
        lambda _: knn(truth=Y[:2]),
        "^test_labels must have one label per example, got 2 ",
    ),
    (
        lambda _: linear(labels=Y[:2]),
        "^train_labels must have one label per example, got 2 labels for 3 examples$",
    ),
    (
        lambda _: linear(truth=Y[:2]),
        "^test_labels must have one label per example, got 2 ",
    ),
    (lambda _: linear(Z[:0], Y[:0]), "^train_z must contain at least 1 example"),
    (
        lambda _: linear(test=Z[:0], truth=Y[:0]),
        "^test_z must contain at least 1 example",
    ),
    (
        lambda _: linear(test=FEW),
        "^train_z and test_z .* number of features, got 3 and 2$",
    ),
    (lambda _: linear(test=Z * np.nan), "^test_z must be finite, got NaN"),
    (lambda _: linear(Z + np.inf), "^train_z must be finite, got NaN"),
    (lambda _: linear(num_epochs=0), "^num_epochs must be at least 1, got 0$"),
    (lambda _: linear(batch_size=0), "^batch_size must be at least 1, got 0$"),
    (lambda _: linear(learning_rate=0.0), "^learning_rate must be positive"),
    (lambda _: linear(learning_rate=np.nan), "^learning_rate must be positive"),
    (lambda _: linear(learning_rate=np.inf), "^learning_rate must be positive"),
    (
        lambda _: few(truth=Y[:2]),
        "^test_labels must have one label per example, got 2 ",
    ),
    (lambda _: few(num_epochs=0), "^num_epochs must be at least 1, got 0$"),
    (lambda _: few(num_draws=0), "^`num_draws` must be at least 1, got 0$"),
    (lambda _: few(share=0.0), r"^label_fraction must lie in \(0, 1\], got 0.0$"),
    (lambda _: few(share=1.1), r"^label_fraction must lie in \(0, 1\], got 1.1$"),
    (lambda _: few(share=np.nan), r"^label_fraction must lie in \(0, 1\], got nan$"),
    # Tables
    (
        lambda _: summarize([{"p": 0}], by=["q"], values=[]),
        "^no column 'q'; there .* p$",
    ),
    # Lines and bars
    (lambda path: f.against([], path, level="p"), "^no results to draw$"),
    (lambda path: f.against([ROW], path, level="p"), "^no column 'dataset'"),
    (lambda path: f.against([ROW], path, level="a", by=()), "^no column 'a'"),
    (lambda path: level(path, None), "^p must be a number, got nan$"),
    (lambda path: level(path, "half"), "^p must be a number, got 'half'$"),
    (lambda path: f.learning_curves([], path), "^no history to draw$"),
    (lambda path: f.learning_curves(HISTORY, path, by=("q",)), "^no column 'q'"),
    # Maps
    (
        lambda path: f.confusion(Y, Y[:2], path),
        "^labels and assignments must have the same length, got 3 and 2$",
    ),
    (lambda path: draw_maps([Panel("", WIDE, MANY, MANY)], path), "at most 15 clients"),
]


@pytest.mark.parametrize(("call", "said"), CASES, ids=[said for _, said in CASES])
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, call, said):
    with pytest.raises(ValueError, match=said) as error:
        call(tmp_path / "figures" / "figure.png")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
