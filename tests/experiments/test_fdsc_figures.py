"""The figures of the FDSC paper, of what clients hold when training ends."""

import numpy as np
import pytest

from experiments.papers.fdsc import figures as fdsc_figures
from experiments.papers.maps import draw_maps
from fcjax.methods import FDSC
from fcjax.sweep.plan import Task
from tests.experiments.blobs import write_blobs

CLASSES = np.array([3, 5, 8])
SCORES = ("acc", "nmi", "ami", "ari")


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    """Flags, and the folder of both figures, which share checkpoints."""
    folder = tmp_path_factory.mktemp("figures")
    args = Task.of(
        FDSC,
        dataset=str(write_blobs(folder, (16, 16, 16))),
        **{"clients": (2,), "classes_per_client": (3,), "num_rounds": (4,)},
        **{"fit_steps": (4,), "plot": False},
    )
    return args, folder


def means_by_class(coefficients, labels, mask):
    stacked = np.array(coefficients, np.float32)
    codes = np.zeros((*stacked.shape[:2], 2), np.float32)
    held = fdsc_figures.ClientResults(codes, stacked, np.array(labels), np.array(mask))
    return fdsc_figures.mean_coefficients(held, CLASSES)


def test_means_by_pair_of_classes():
    """Two examples of class 3, one of 5 and a slot that is padding; then two pairs of
    class 5 on a first client and six on a second, which count alike."""
    found = means_by_class(
        [[[9, -2, 3, 50], [4, 9, -5, 50], [-6, 8, 9, 50], [50, 50, 50, 50]]],
        [[3, 3, 5, 3]],
        [[True, True, True, False]],
    )
    nan = np.nan
    expected = [[(2 + 4) / 2, (3 + 5) / 2, nan], [(6 + 8) / 2, nan, nan], [nan] * 3]
    np.testing.assert_allclose(found, expected)
    coefficients = [np.full((3, 3), 2.0), np.full((3, 3), -6.0)]
    found = means_by_class(coefficients, [[5, 5, 8], [5, 5, 5]], [[True] * 3] * 2)
    of_both = (2 * 2 + 6 * 6) / 8
    np.testing.assert_allclose(found, [[nan] * 3, [nan, of_both, 2], [nan, 2, nan]])


def test_figure_4_is_of_dscn_and_both_fdsc(drawing):
    rows = fdsc_figures.figure4(*drawing)
    assert [row["method"] for row in rows] == ["DSCN", "FDSC1", "FDSC2"]
    for row in rows:
        assert 0 < row["rest"] < row["diagonal"] <= 1
    assert (drawing[1] / "figure4-vectors.png").stat().st_size > 10_000


def test_figure_3_is_of_clients_above_each_other(drawing, monkeypatch):
    drawn = []

    def keep(panels, *where, **options):
        drawn.extend(panels)
        return draw_maps(panels, *where, **options)

    monkeypatch.setattr(fdsc_figures, "draw_maps", keep)
    rows = fdsc_figures.figure3(*drawing)
    titles = [panel.title.partition("\n")[0] for panel in drawn]
    assert titles == [f"{x}, client {i}" for x in ("FDSC2", "DSCN") for i in (0, 1)]
    assert (drawing[1] / "figure3.png").stat().st_size > 10_000
    printed = {row["method"]: [row[f"paper_{name}"] for name in SCORES] for row in rows}
    assert printed == {  # Table 1
        "FDSC2": [0.634, 0.592, 0.576, 0.454],
        "DSCN": [0.391, 0.433, 0.407, 0.225],
    }
    # The scores are of the points that are drawn.
    scores = fdsc_figures.scores_of_map
    for row, panels in zip(rows, (drawn[:2], drawn[2:]), strict=True):
        each = [scores(x.embedding, x.labels, seed=0) for x in panels]
        for name in SCORES:
            mean = sum(x[name] for x in each) / 2
            assert row[name] == pytest.approx(mean)
