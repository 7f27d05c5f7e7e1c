"""Tables with traps: every value is compared with the truth, or refused in one line."""

import datetime
import decimal
import sys

import numpy as np
import pandas as pd
import pytest

from fcjax import data

# The truth of most tables: two features, a class and a client of four examples.
LENGTH, WIDTH = [1.5, 2.0, 30.0, 4.25], [7.0, -8.0, 9.0, 6.0]
KIND, SITE = ["cat", "dog", "cat", "cow"], ["b", "a", "", "b"]
CLASSES, CLIENTS = [0, 2, 0, 1], [1, 0, -1, 1]
ROWS = ["1.5,7,b,cat", "2,-8,a,dog", "30,9,,cat", "4.25,6,b,cow"]
TABLE = "\n".join(["length,width,site,kind", *ROWS]) + "\n"
SITES = {"client_column": "site"}
NOTE = "class: the last column, kind"
PLAIN = pd.read_csv(pd.io.common.StringIO(TABLE), keep_default_na=False)


def checked(found, features, classes, clients, note):
    """Compares a data set with the truth; features are compared before scaling."""
    assert found.scaling is not None
    values = found.examples * found.scaling.span + found.scaling.low
    np.testing.assert_allclose(values, np.transpose(features), rtol=1e-6)
    if classes is None:
        assert found.labels is None
    else:
        assert found.labels.tolist() == classes
    assert (None if found.clients is None else found.clients.tolist()) == clients
    assert any(note in line for line in found.notes), found.notes


@pytest.mark.parametrize("typed", [False, True])
def test_the_same_table_as_a_data_frame(typed):
    frame = PLAIN.convert_dtypes() if typed else PLAIN
    found = data.from_frame(frame.replace("", None), label_column="kind", **SITES)
    checked(found, [LENGTH, WIDTH], CLASSES, CLIENTS, "each column scaled")


A, B = [1, 2, 3], [4.5, 5, 6]
TWO = "1,4.5,0\n2,5,1\n3,6,0\n"
GAPS = "a,b,kind\n1,4.5,x\nNA,5,y\n3,,x\n3,6,y\n"
HOT = [[1, 0, 1], [0, 1, 0]]
SAID = "first row read as header"
COUNTS = "because it numbers the rows"


@pytest.mark.parametrize(
    ("text", "settings", "features", "classes", "note"),
    [
        # The header.
        (TWO, {}, [A, B], [0, 1, 0], "each column scaled"),
        ("0,1,2,3\n9,1,4.5,0\n8,2,5,1", {}, [[9, 8], A[:2], B[:2]], None, SAID),
        (",2001,2002,sum\n0,1,4.5,0\n1,2,5,1\n2,3,6,0\n", {}, [A, B], None, COUNTS),
        ("a,7,kind\n" + TWO, {}, [A, B], None, SAID),
        ("7,8,site\n" + TWO, {"label_column": "site"}, [A, B], None, SAID),
        ("2001,2002,k\n" + TWO, {}, [A, B], None, SAID),
        ("y,1,0\nn,2,1\nn,3,0", {"one_hot": True}, [[0, 1, 1], [1, 0, 0], A], None, ""),
        ("?,4.5,0\n2,5,1\n3,6,0\n", {"missing": "median"}, [[2.5, 2, 3], B], None, ""),
        ("x,1,p\ny,2,q\nx,3,p\n", {"one_hot": True}, [*HOT, A], None, "1: x, y"),
        # The class.
        ("0,1,4.5\n1,2,5\n0,3,6\n", {"label_column": "1"}, [A, B], None, "scaled"),
        ("a,k,b\n1,u,4.5\n2,v,5\n3,u,6\n", {"label_column": "k"}, [A, B], None, SAID),
        ("x,y,label\n" + TWO, {}, [A, B], None, "class: column label"),
        ("a,b,k\n" + TWO, {"labels": False, "label_column": "k"}, [A, B], "no", SAID),
        ("a,a,k\n" + TWO, {}, [A, B], None, SAID),
        # Missing values and decimal commas.
        ("a,k\n1,0\n9,\n3,1", {"missing": "drop"}, [[1, 3]], [0, 1], "1 of 3 exam"),
        ("1;4,5;0\n2;5;1\n3;6;0\n", {}, [A, B], None, "decimal commas read in 2"),
    ],
)  # fmt: skip
def test_tables_with_traps(text, settings, features, classes, note, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(text)
    classes = {"no": None, None: [0, 1, 0][: len(features[0])]}.get(
        classes if isinstance(classes, str | None) else "", classes
    )
    found = data.load(path, **settings)
    checked(found, features, classes, None, note)


def test_utf_16_with_the_large_byte_first(tmp_path):
    content = ("\ufeff" + TABLE).encode("utf-16-be")
    (tmp_path / "x.csv").write_bytes(content)
    found = data.load(tmp_path / "x.csv", **SITES)
    checked(found, [LENGTH, WIDTH], CLASSES, CLIENTS, NOTE)


def test_dropped_examples_keep_their_index(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,who\n1,,p\n2,5,q\n3,6,\n4,7,p\n")
    settings = {"missing": "drop", "labels": False, "client_column": "who"}
    found = data.load(tmp_path / "x.csv", **settings)
    assert found.names.tolist() == ["1", "2", "3"]
    assert found.clients.tolist() == [1, -1, 0]
    assert data.load(tmp_path / "x.csv", limit=2, **settings).names.tolist()[0] != "0"


MANY = "a,b,k\n" + "".join(f"t{i},{i / 7},0\n" for i in range(101))
TEXTS = ",".join(f"c{i}" for i in range(12))


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (GAPS, {}, "refuse (the default), drop (leave these examples out) or median"),
        (f"{TEXTS}\n{TEXTS.upper()}\n", {}, "c9 ('C9' in example 1), ...; features"),
        ("a,k\n0x10,0\n2,1\n", {}, "a ('0x10' in example 1)"),
        (MANY, {"one_hot": True}, "another text in every example of column a"),
        (MANY + "t0,9,1\n", {"one_hot": True}, "101 different texts in column a; `one"),
        ("a;b;k\n12.5;1;0\n3,1;2;1\n", {}, "a ('3,1' in example 2)"),
        ("a;b;k\n80,2;1;0\n3,1;2;1\nbad;2;1\n", {}, "a ('bad' in example 3)"),
        ("a;b;k\n80,2;1.5;0\n3,1;2;1\n", {}, "a ('80,2' in example 1)"),
        ("a,b,k\nu,1,0\n,2,1\n", {"one_hot": True, "missing": "median"}, "no median"),
        ("a,b,k\n,1,0\n,2,1\n", {"missing": "median"}, "no value in column a"),
        ("a,b,k\n,1,0\n,2,1\n", {"missing": "drop"}, "missing values in all examples"),
        ("1,2,0\n3,4,1\n", {"drop_columns": ["c"]}, "(`drop_columns`); its col"),
        ("a,b\n1,2\n", {"label_column": "b", "client_column": "b"}, "named twice"),
        ("a;b\n1;2\n3,4\n", {}, "1 cell in line 3, but 2 in other lines"),
        ("a,k\n1,0\n2,1\n", {"missing": "mean"}, "missing must be refuse, drop or med"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(text, settings, message, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=r"^(dataset .*x\.csv has|missing) ") as caught:
        data.load(tmp_path / "x.csv", **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_last_column_of_many_values_is_no_class(tmp_path):
    text = "".join(f"{i % 3},{i / 8},{100 + i}\n" for i in range(20))
    path = tmp_path / "wine.data"
    path.write_text(text)
    with pytest.raises(ValueError, match="20 different values in 20 examples of its l"):
        data.load(path)
    assert data.load(path, labels=False).examples.shape == (20, 3)
    assert data.load(path, label_column="3").labels.tolist() == list(range(100, 120))


@pytest.mark.parametrize("name", ["label_column", "drop_columns", "one_hot", "missing"])
def test_other_data_has_no_settings_of_tables(name, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2)))
    value = {"drop_columns": ("a",), "one_hot": True, "missing": "drop"}.get(name, "a")
    for path in (tmp_path / "x.npz", "digits"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            data.load(path, **{name: value})


def test_a_missing_reader_of_excel_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "x.xlsx").write_text("x")
    with pytest.raises(ValueError, match="run: pip install openpyxl"):
        data.load(tmp_path / "x.xlsx")


# --- Typed columns and DataFrames


@pytest.mark.parametrize(
    ("cells", "features"),
    [
        ([True, False, True], [[1, 0, 1]]),
        (["1", " 2.5", "1e3"], [[1, 2.5, 1000]]),
        ([decimal.Decimal("0.5"), 1, 2.0], [[0.5, 1, 2]]),
        (pd.array([1, 2, 4], "Int8"), [[1, 2, 4]]),
        (pd.Categorical([5, 7, 5]), [[5, 7, 5]]),
        ([[1, 2], [3, 4], [5, 7]], [[1, 3, 5], [2, 4, 7]]),
        ([np.array([1, 2]), np.array([3, 4]), (5, 7)], [[1, 3, 5], [2, 4, 7]]),
    ],
)
@pytest.mark.parametrize("in_file", [False, True])
def test_columns_of_a_data_frame(cells, features, in_file, tmp_path):
    frame = pd.DataFrame({"v": cells, "label": ["u", "w", "u"]})
    if in_file:
        pytest.importorskip("pyarrow")
        if any(isinstance(cell, np.ndarray | decimal.Decimal) for cell in cells):
            frame["v"] = [np.atleast_1d(np.asarray(x, float)) for x in cells]
        frame.to_parquet(tmp_path / "x.parquet")
        found = data.load(tmp_path / "x.parquet")
    else:
        found = data.from_frame(frame)
    checked(found, features, [0, 1, 0], None, "class: column label")


@pytest.mark.parametrize(
    ("frame", "settings", "message"),
    [
        ({"v": [1, None, 3]}, {}, "1 missing value in 1 of 3 examples, the first in"),
        ({"v": [1, pd.NA, "?"]}, {}, "2 missing values in 2 of 3 examples"),
        ({"v": [1 + 2j, 2, 3]}, {}, "text in 1 feature column: v ('(1+2j)'"),
        ({"v": [datetime.date(2024, 1, 2)] * 3}, {}, "v ('2024-01-02' in example 1)"),
        ({"v": pd.to_datetime(["2024-01-02"] * 3)}, {}, "v ('2024-01-02"),
        ({"v": [[1, 2], [3], [4, 5]]}, {}, "shape (1,) and (2,) in column v"),
        ({"v": [["a"], ["b"], ["c"]]}, {}, "lists in column v that are not numbers"),
        ({"v": [np.ones((2, 2))] * 3}, {}, "arrays of shape (2, 2) in column v"),
        ({"v": [1, 2, 3]}, {"split": "test"}, "split is not a setting of a DataFrame"),
        ({"v": [1, 2, 3]}, {"label_column": "w"}, "no column 'w' (`label_column`)"),
    ],
)
def test_data_frames_that_are_refused(frame, settings, message):
    with pytest.raises(ValueError, match=r".") as caught:
        data.from_frame(pd.DataFrame(frame), **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_column_of_a_data_frame_is_a_feature():
    frame = pd.DataFrame({"a": [1, 2, 4], "b": [0, 1, 0]}, index=["u", "v", "w"])
    found = data.from_frame(frame)
    checked(found, [[1, 2, 4], [0, 1, 0]], None, None, "each column scaled")
    kept = data.from_frame(frame, limit=2)
    assert len(kept.examples) == len(kept.names) == 2


@pytest.mark.parametrize("dropped", ["b", ["b"], ("b",)])
def test_columns_to_drop_are_one_name_or_several(dropped):
    frame = pd.DataFrame({"a": [1, 2, 4], "b": [0, 1, 0]})
    found = data.from_frame(frame, drop_columns=dropped)
    checked(found, [[1, 2, 4]], None, None, "each column scaled")
