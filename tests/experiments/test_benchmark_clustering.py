import importlib.util

import benchmark_clustering
import numpy as np
import pytest
from benchmark_clustering import Args, fcm, k_fed, km
from sklearn.datasets import load_digits


@pytest.fixture(scope="module")
def x():
    rows = load_digits().data.astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("method", "tolerance"), [(km, 1e-5), (fcm, 1e-5), (k_fed, 0.05)]
)
def test_both_sides_do_the_same_work(x, method, tolerance):
    ours, theirs = method(x, Args(iterations=5))
    np.testing.assert_allclose(ours(), theirs(), rtol=tolerance)


def test_a_run_prints_a_line_a_method(capsys):
    benchmark_clustering.main(Args(iterations=2, repeats=1))
    out = capsys.readouterr().out
    *lines, last = out.splitlines()
    names = [line.split(":")[0] for line in lines]
    assert names == ["digits", "km", "fcm", "k-fed"]
    assert last.startswith("peak memory ")
    assert out.count(", ratio ") == 3
    benchmark_clustering.main(Args(methods=("km",), side="theirs", repeats=1))
    assert ", ratio " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"repeats": 0}, "--repeats must be at least 1, got 0"),
        ({"methods": ("fcm",)}, "needs scikit-fuzzy: pip install -e"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, flags, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message) as error:
        benchmark_clustering.main(Args(**flags))
    assert "\n" not in str(error.value)
