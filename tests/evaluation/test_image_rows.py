import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import image_rows


def grey(*values):
    return np.broadcast_to(
        np.array(values, np.uint8)[:, None, None, None], (len(values), 14, 14, 1)
    )


def test_rows_in_order_with_names_and_captions(tmp_path):
    path = tmp_path / "figures" / "rows.png"
    figure = image_rows(
        [grey(0, 51, 102), grey(204)], ["first", "second"], path, captions=["a", "b"]
    )
    assert path.exists()
    assert min(imread(path).shape[:2]) > 200
    (axes,) = figure.axes
    assert [x.get_text() for x in axes.get_yticklabels()] == ["first", "second"]
    assert [x.get_text() for x in axes.get_xticklabels()] == ["a", "b"]
    sheet = np.asarray(axes.images[0].get_array())
    # Tiles of 14 pixels and a border of one.
    assert sheet.shape == (30, 45, 3)
    found = sheet[7::15, 7::15, 0]
    np.testing.assert_allclose(found, [[0, 0.2, 0.4], [0.8, 1, 1]], atol=1e-6)


def test_captions_stand_above_their_columns_on_the_sheet(tmp_path):
    figure = image_rows(
        [grey(0, 51, 102)], ["a row"], tmp_path / "rows.png", captions=["2.13"] * 3
    )
    figure.draw_without_rendering()
    (axes,) = figure.axes
    sheet = axes.get_window_extent()
    for column, label in enumerate(axes.get_xticklabels()):
        box = label.get_window_extent()
        assert sheet.y1 <= box.y0 < box.y1 <= figure.bbox.height
        left, right = sheet.x0 + sheet.width / 3 * np.array([column, column + 1])
        assert left < box.x0 < box.x1 < right


def test_bad_input(tmp_path):
    path = tmp_path / "rows.png"
    for nothing in ([], [grey()]):
        with pytest.raises(ValueError, match=r"^no images to draw$"):
            image_rows(nothing, [""] * len(nothing), path)
    with pytest.raises(ValueError, match=r"^1 rows but 2 names$"):
        image_rows([grey(1)], ["a", "b"], path)
    with pytest.raises(ValueError, match=r"^images have 1 or 3 channels, not 2$"):
        image_rows([np.zeros((1, 4, 4, 2))], ["a"], path)
    assert not path.exists()
