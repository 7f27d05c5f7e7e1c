import numpy as np

from fcjax.results.figures import contact_sheet, image_rows
from tests.metrics.drawn import picture, ticks


def grey(*values):
    """Images that are all of one value."""
    images = np.array(values, np.uint8)[:, None, None, None]
    return np.broadcast_to(images, (len(values), 14, 14, 1))


def tiles(figure, rows, columns):
    """The sheet as tiles [rows, columns, height, width, 3]."""
    sheet = np.asarray(figure.axes[0].images[0].get_array())
    height, width = sheet.shape[0] // rows, sheet.shape[1] // columns
    assert sheet.shape == (rows * height, columns * width, 3)
    return sheet.reshape(rows, height, columns, width, 3).swapaxes(1, 2)


def test_every_row_shows_its_cluster(tmp_path):
    path = tmp_path / "figures" / "sheet.png"
    clusters = np.array([2] * 30 + [0] * 20 + [5] * 3 + [-1] * 7)
    figure = contact_sheet(grey(*range(60)), clusters, path, per_cluster=4)
    assert min(picture(path)) > 300
    found = ticks(figure.axes[0].yaxis)
    sizes = {0: 20, 2: 30, 5: 3}
    assert found == [f"cluster {k}: {size} examples" for k, size in sizes.items()]
    sheet = tiles(figure, 3, 4)
    # All pixels of a tile are those of one image.
    shown = np.round(255 * sheet[:, :, :14, :14])
    assert not np.ptp(shown, axis=(2, 3, 4)).any()
    shown = shown[:, :, 0, 0, 0]
    for row, members in enumerate((range(30, 50), range(30), range(50, 53))):
        # A small cluster leaves the rest of its row blank.
        found = {*shown[row].tolist()} - {255}
        assert len(found) == min(4, len(members))
        assert found <= set(members)


def test_colours_in_the_unit_interval_and_a_draw_by_the_seed(tmp_path):
    images = np.zeros((2, 5, 7, 3), np.float32)
    images[0, ..., 0], images[1, ..., 2] = 1, 0.5
    figure = contact_sheet(images, np.arange(2), tmp_path / "sheet.png")
    sheet = tiles(figure, 2, 1)
    np.testing.assert_array_equal(sheet[0, 0, 0, 0], [1, 0, 0])
    np.testing.assert_array_equal(sheet[1, 0, 4, 6], [0, 0, 0.5])
    many, clusters = grey(*range(200)), np.zeros(200, int)
    first, same, other = (
        tiles(contact_sheet(many, clusters, tmp_path / "a.png", seed=s), 1, 16)
        for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_rows_in_order_with_captions_above_their_columns(tmp_path):
    figure = image_rows(
        [grey(0, 51, 102), grey(204)],
        ["first", "second"],
        tmp_path / "rows.png",
        captions=["2.13", "0.50", "1.00"],
    )
    (axes,) = figure.axes
    assert ticks(axes.yaxis) == ["first", "second"]
    assert ticks(axes.xaxis) == ["2.13", "0.50", "1.00"]
    sheet = np.asarray(axes.images[0].get_array())
    # Tiles of 14 pixels and a border of one.
    assert sheet.shape == (30, 45, 3)
    found = sheet[7::15, 7::15, 0]
    np.testing.assert_allclose(found, [[0, 0.2, 0.4], [0.8, 1, 1]], atol=1e-6)
