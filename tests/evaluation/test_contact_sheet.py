import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import contact_sheet


def numbered(count, *, size=14, channels=1, dtype=np.uint8):
    """Images that are all of one value: their number, from 0 up."""
    images = np.arange(count, dtype=dtype)[:, None, None, None]
    return np.broadcast_to(images, (count, size, size, channels))


def tiles(figure, rows, columns):
    """The sheet as tiles [rows, columns, height, width, 3]."""
    sheet = np.asarray(figure.axes[0].images[0].get_array())
    height, width = sheet.shape[0] // rows, sheet.shape[1] // columns
    assert sheet.shape == (rows * height, columns * width, 3)
    return sheet.reshape(rows, height, columns, width, 3).swapaxes(1, 2)


def test_every_row_shows_its_cluster(tmp_path):
    path = tmp_path / "figures" / "sheet.png"
    images = numbered(60)
    clusters = np.array([2] * 30 + [0] * 20 + [5] * 3 + [-1] * 7)
    figure = contact_sheet(images, clusters, path, per_cluster=4)
    assert min(imread(path).shape[:2]) > 300
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["cluster 0 (20)", "cluster 2 (30)", "cluster 5 (3)"]
    sheet = tiles(figure, 3, 4)
    # A border of a fourteenth, then all pixels of a tile are those of one image.
    np.testing.assert_array_equal(sheet[:, :, 14:], 1)
    np.testing.assert_array_equal(sheet[:, :, :, 14:], 1)
    shown = np.round(255 * sheet[:, :, :14, :14])
    np.testing.assert_array_equal(shown, shown[:, :, :1, :1, :1] + 0 * shown)
    shown = shown[:, :, 0, 0, 0]
    for row, members in enumerate((range(30, 50), range(30), range(50, 53))):
        found = [int(image) for image in shown[row] if image != 255]
        assert len(set(found)) == len(found) == min(4, len(members))
        assert set(found) <= set(members)
    # A small cluster leaves the rest of its row blank.
    assert shown[2, 3] == 255


def test_the_draw_follows_the_seed(tmp_path):
    clusters = np.zeros(200, int)
    sheets = [
        tiles(contact_sheet(numbered(200), clusters, tmp_path / "a.png", seed=s), 1, 16)
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(sheets[0], sheets[1])
    assert (sheets[0] != sheets[2]).any()


def test_colours_in_the_unit_interval(tmp_path):
    images = np.zeros((2, 5, 7, 3), np.float32)
    images[0, ..., 0], images[1, ..., 2] = 1, 0.5
    figure = contact_sheet(images, np.arange(2), tmp_path / "sheet.png")
    sheet = tiles(figure, 2, 1)
    np.testing.assert_array_equal(sheet[0, 0, 0, 0], [1, 0, 0])
    np.testing.assert_array_equal(sheet[1, 0, 4, 6], [0, 0, 0.5])


def test_names_stay_on_the_sheet(tmp_path):
    clusters = np.array([0] * 3 + [123456] * 200)
    figure = contact_sheet(numbered(203), clusters, tmp_path / "sheet.png")
    figure.draw_without_rendering()
    for label in figure.axes[0].get_yticklabels():
        box = label.get_window_extent()
        assert box.x0 >= 0
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height


def test_bad_input(tmp_path):
    path, images = tmp_path / "sheet.png", numbered(3)
    clusters = np.zeros(3, int)
    with pytest.raises(ValueError, match=r"^3 images but 2 assignments$"):
        contact_sheet(images, clusters[:2], path)
    with pytest.raises(ValueError, match=r"^images have 1 or 3 channels, not 2$"):
        contact_sheet(numbered(3, channels=2), clusters, path)
    with pytest.raises(ValueError, match=r"^per_cluster must be at least 1, got 0$"):
        contact_sheet(images, clusters, path, per_cluster=0)
    with pytest.raises(ValueError, match=r"^no image has a cluster$"):
        contact_sheet(images, clusters - 1, path)
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=r"^images outside \[0, 1\]$"):
            contact_sheet(np.full((3, 4, 4, 1), bad), clusters, path)
    assert not path.exists()
