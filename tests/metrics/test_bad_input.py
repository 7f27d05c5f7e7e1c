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
    *[(lambda _, s=s: s(Y, Y[:2]), "^3 labels but 2 assignments$") for s in NAMED],
    *[(lambda _, s=s: s(Y[:0], Y[:0]), "^no examples to score$") for s in NAMED],
    # By client
    (lambda _: e.per_client(MAP, MAP[:, :2], MASK), "differ"),
    (lambda _: e.imbalance_ratio(MAP[:1], MASK), "differ"),
    (lambda _: e.per_client(MAP, MAP, ABSENT), r"^clients without examples: \[1\]$"),
    (lambda _: e.imbalance_ratio(MAP[:0], MASK[:0]), "^no clients to score$"),
    # Clusters in use
    (lambda _: e.collapse(Y[:0], num_clusters=2), "^no assignments"),
    (lambda _: e.collapse(Y, num_clusters=2), r"^assignments outside 0 \.\. 1$"),
    (lambda _: e.collapse(Y - 1, num_clusters=2), r"^assignments outside 0 \.\. 1$"),
    # Classifiers of it
    (lambda _: knn(ks=[0]), r"^num_neighbors takes 1 .. 3, got 0$"),
    (lambda _: knn(ks=[4]), r"^num_neighbors takes 1 .. 3, got 4$"),
    (lambda _: knn(ks=[]), "^no number of neighbours"),
    (lambda _: knn(truth=Y[:2]), "^3 test examples but 2 labels$"),
    (lambda _: linear(labels=Y[:2]), "^3 training examples but 2 labels$"),
    (lambda _: linear(truth=Y[:2]), "^3 test examples but 2 labels$"),
    (lambda _: linear(Z[:0], Y[:0]), "^no training examples$"),
    (lambda _: linear(test=Z[:0], truth=Y[:0]), "^no test examples$"),
    (lambda _: linear(test=FEW), "^3 training features but 2 test features$"),
    (lambda _: linear(test=Z * np.nan), "^the test embedding holds NaN"),
    (lambda _: linear(Z + np.inf), "^the training embedding holds NaN"),
    (lambda _: linear(num_epochs=0), "^num_epochs takes 1 or more, got 0$"),
    (lambda _: linear(batch_size=0), "^batch_size takes 1 or more, got 0$"),
    (lambda _: linear(learning_rate=0.0), "^learning_rate must be positive"),
    (lambda _: linear(learning_rate=np.nan), "^learning_rate must be positive"),
    (lambda _: linear(learning_rate=np.inf), "^learning_rate must be positive"),
    (lambda _: few(truth=Y[:2]), "^3 test examples but 2 labels$"),
    (lambda _: few(num_epochs=0), "^num_epochs takes 1 or more, got 0$"),
    (lambda _: few(num_draws=0), "^num_draws takes 1 or more, got 0$"),
    (lambda _: few(share=0.0), r"^label_fraction takes \(0, 1\], got 0.0$"),
    (lambda _: few(share=1.1), r"^label_fraction takes \(0, 1\], got 1.1$"),
    (lambda _: few(share=np.nan), r"^label_fraction takes \(0, 1\], got nan$"),
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
    (lambda path: f.confusion(Y, Y[:2], path), "^3 labels but 2 assignments$"),
    (lambda path: draw_maps([Panel("", WIDE, MANY, MANY)], path), "at most 15 clients"),
]


@pytest.mark.parametrize(("call", "said"), CASES, ids=[said for _, said in CASES])
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, call, said):
    with pytest.raises(ValueError, match=said) as error:
        call(tmp_path / "figures" / "figure.png")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
