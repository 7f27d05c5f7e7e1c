"""The figures of the FDSC paper, of what clients hold when training ends."""

from dataclasses import replace

import fdsc
import fdsc_figures
import numpy as np
import pytest

from fcjax.evaluation.figures import Panel, maps

CLASSES = np.array([3, 5, 8])


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    """Of 48 rows in three classes, far apart."""
    folder = tmp_path_factory.mktemp("coefficients")
    labels = np.repeat([0, 1, 2], 16)
    noise = np.random.default_rng(0).normal(size=(48, 5))
    np.savez(folder / "vectors.npz", x=noise + 9 * np.eye(5)[labels], y=labels)
    return fdsc.Args(
        dataset=str(folder / "vectors.npz"),
        clients=(2,),
        classes_per_client=(3,),
        num_rounds=(4,),
        fit_steps=(4,),
        plot=False,
    )


def held(coefficients_of_clients, labels, mask):
    stacked = np.array(coefficients_of_clients, np.float32)
    codes = np.zeros((*stacked.shape[:2], 2), np.float32)
    return fdsc_figures.Held(codes, stacked, np.array(labels), np.array(mask))


def test_means_by_pair_of_classes():
    """One client with two examples of class 3, one of 5 and a slot that is padding."""
    found = fdsc_figures.by_classes(
        held(
            [[[9, -2, 3, 50], [4, 9, -5, 50], [-6, 8, 9, 50], [50, 50, 50, 50]]],
            [[3, 3, 5, 3]],
            [[True, True, True, False]],
        ),
        CLASSES,
    )
    nan = np.nan
    expected = [[(2 + 4) / 2, (3 + 5) / 2, nan], [(6 + 8) / 2, nan, nan], [nan] * 3]
    np.testing.assert_allclose(found, expected)


def test_pairs_of_all_clients_count_alike():
    """Two pairs of class 5 on the first client, six of the second; none between."""
    first, second = np.full((3, 3), 2.0), np.full((3, 3), -6.0)
    found = fdsc_figures.by_classes(
        held([first, second], [[5, 5, 8], [5, 5, 5]], [[True] * 3, [True] * 3]),
        CLASSES,
    )
    assert found[1, 1] == pytest.approx((2 * 2 + 6 * 6) / 8)
    assert found[1, 2] == found[2, 1] == 2
    assert np.isnan(found[0]).all()
    assert np.isnan(found[2, 2])


def test_scores_of_a_map_that_has_the_classes_apart():
    labels = np.repeat([4, 7, 9], 10)
    noise = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    points = noise + np.array([[0, 0], [50, 0], [0, 50]], np.float32)[labels // 3 - 1]
    found = fdsc_figures.scores_of_map(points, labels, seed=0)
    assert [found[name] for name in ("acc", "nmi", "ami", "ari")] == [1, 1, 1, 1]
    found = fdsc_figures.scores_of_map(points, np.arange(30) % 2, seed=0)
    assert found["ari"] < 0.1


def test_figure_4_is_of_dscn_and_both_fdsc(args, tmp_path):
    rows = fdsc_figures.figure4(args, tmp_path)
    assert [row["method"] for row in rows] == ["DSCN", "FDSC1", "FDSC2"]
    for row in rows:
        assert 0 < row["rest"] < row["diagonal"] <= 1
        assert row["ratio"] == pytest.approx(row["diagonal"] / row["rest"])
    assert (tmp_path / "figure4-vectors.png").stat().st_size > 10_000


def test_figure_3_is_of_clients_above_each_other(args, tmp_path, monkeypatch):
    drawn, draw = [], fdsc_figures.maps

    def keep(panels, *where, **options):
        drawn.extend(panels)
        return draw(panels, *where, **options)

    monkeypatch.setattr(fdsc_figures, "maps", keep)
    rows = fdsc_figures.figure3(args, tmp_path)
    titles = [panel.title.partition("\n")[0] for panel in drawn]
    assert titles == [
        "FDSC2, client 0",
        "FDSC2, client 1",
        "DSCN, client 0",
        "DSCN, client 1",
    ]
    assert (tmp_path / "figure3.png").stat().st_size > 10_000
    assert [row["method"] for row in rows] == ["FDSC2", "DSCN"]
    assert [row["acc"].paper for row in rows] == [0.634, 0.391]
    assert [row["ari"].paper for row in rows] == [0.454, 0.225]
    # The scores are of the points that are drawn.
    for row, panels in zip(rows, (drawn[:2], drawn[2:]), strict=True):
        each = [
            fdsc_figures.scores_of_map(x.embedding, x.labels, seed=0) for x in panels
        ]
        for name in ("acc", "nmi", "ami", "ari"):
            mean = sum(x[name] for x in each) / 2
            assert row[name].mean == pytest.approx(mean)


def test_maps_in_rows_as_they_are(tmp_path):
    points = np.random.default_rng(0).normal(size=(5, 9, 2)).astype(np.float32)
    labels = np.arange(9) % 3
    panels = [Panel(str(i), each, labels) for i, each in enumerate(points)]
    figure = maps(panels, tmp_path / "maps.png", columns=3, mapped=True)
    assert [axes.get_title() for axes in figure.axes] == ["0", "1", "2", "3", "4"]
    tops = [round(axes.get_position().y1, 3) for axes in figure.axes]
    assert tops[0] == tops[1] == tops[2] > tops[3] == tops[4]
    order = np.random.default_rng(0).permutation(9)
    for axes, each in zip(figure.axes, points, strict=True):
        (cloud,) = axes.collections
        np.testing.assert_array_equal(cloud.get_offsets(), each[order])
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        maps(panels, tmp_path / "bad.png", columns=0)
    with pytest.raises(ValueError, match="wide: a map has 2 columns, not 4"):
        maps([Panel("wide", np.eye(4), labels[:4])], tmp_path / "bad.png", mapped=True)


def test_a_figure_is_of_one_run(args, tmp_path):
    several = replace(args, seed=(0, 1))
    for figure in (fdsc_figures.figure3, fdsc_figures.figure4):
        with pytest.raises(ValueError, match=r"--seed takes one value for a figure"):
            figure(several, tmp_path)
    assert list(tmp_path.iterdir()) == []
