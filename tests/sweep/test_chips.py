"""Published peak rates, by the precision of a product."""

import pytest

from fcjax.sweep import costs


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [
        ("h100", "highest", 66.9),  # float32, without tensor cores
        ("h100", "high", 494.7),  # TF32
        ("h100", "default", 494.7),
        ("h100", "bfloat16", 989.4),
        ("a100", "highest", 19.5),
        ("a100", "default", 156),
        ("a100", "bfloat16", 312),
        ("v5e", "highest", 197 / 6),  # six passes in bfloat16
        ("v5e", "high", 197 / 3),
        ("v5e", "default", 197),
        ("v5e", "bfloat16", 197),
    ],
)
def test_a_product_runs_at_the_rate_of_its_precision(name, precision, teraflops):
    chip = (costs.GPUS | costs.TPUS)[name]
    seconds = chip.least_seconds({precision: 10**15})
    assert seconds == pytest.approx(1000 / teraflops)
    # Products of several precisions run one after another.
    both = {precision: 10**15, "bfloat16": 10**15}
    rest = 1e15 / chip.rates["bfloat16"]
    if precision != "bfloat16":
        assert chip.least_seconds(both) == pytest.approx(seconds + rest)
