import benchmark_memory
import jax
import numpy as np
import pytest
from benchmark_memory import Args

from fcjax.algorithms.parts import swap


def test_parts_take_less_memory_than_the_whole(capsys):
    benchmark_memory.main(Args(batch=(64,), microbatch=8, repeats=1))
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    title, names, whole, parts, timed, peak = told
    assert title[:4] == ["conv,", "parts", "of", "8,"]
    assert names[:5] == ["batch", "kind", "arguments", "results", "temporary"]
    assert whole[:2] == ["64", "whole"]
    assert parts[:3] == ["64", "in", "parts"]
    # Both take the same variables and views, and give the same results.
    assert whole[2:4] == parts[3:5]
    assert float(parts[5]) < float(whole[4])
    assert timed[:2] == ["64", "whole"]
    assert peak[:2] == ["peak", "memory"]


def test_what_must_grow_by_hand():
    """Two views of 28 x 28; four projections of 128 and their gradients; 24 x 24 twice:
    floats of four bytes."""
    assert benchmark_memory.must_grow("conv", 12) == {
        "views": 4 * 2 * 12 * 784,
        "outputs": 4 * 8 * 12 * 128,
        "similarities": 4 * 2 * 576,
    }


def test_one_part_is_the_whole(key):
    """Both kinds do the same work."""
    views = [jax.random.uniform(k, (4, 28, 28, 1)) for k in jax.random.split(key)]
    online = jax.jit(benchmark_memory.initialize_of("conv"))(key, views[0][:1])
    target = swap(online)["params"]
    results = [
        benchmark_memory.compile_step("conv", 4, size)(online, target, tuple(views))
        for size in (None, 4)
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)
    gradient, _ = results[0]
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 1e-3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batch": (8, 0)}, r"--batch must be at least 1, got \(8, 0\)"),
        ({"batch": ()}, r"--batch must be at least 1, got \(\)"),
        ({"microbatch": 0}, "--microbatch must be at least 1, got 0"),
        ({"repeats": -1}, "--repeats must be at least 0, got -1"),
    ],
)
def test_bad_input_is_one_line(flags, message):
    with pytest.raises(ValueError, match=message) as error:
        benchmark_memory.main(Args(**flags))
    assert "\n" not in str(error.value)
