"""FedSimSiam and FedSimCLR: the loss of a batch and its gradient, by one step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedsimclr import fedsimclr
from fcjax.algorithms.fedsimsiam import fedsimsiam
from fcjax.algorithms.two_stage import feature_kmeans
from tests.algorithms import plain
from tests.algorithms.federations import federate
from tests.algorithms.plain import cosine, matrix, noisy

# A batch of 8 of which 6 count: what the others hold must not matter.
LOCAL = Local(optax.sgd(1.0), noisy, num_epochs=1, batch_size=8)
HEADS = (matrix(5), matrix(3), matrix(3))
KMEANS = feature_kmeans(num_clusters=2)


def simsiam_loss(w, views):
    """Half of D(p_a, z_b) and of D(p_b, z_a), projections being constants."""
    z_a, z_b = (x @ w["encoder"] @ w["projector"] for x in views)
    p_a, p_b = (z @ w["predictor"] for z in (z_a, z_b))
    z_a, z_b = map(jax.lax.stop_gradient, (z_a, z_b))
    return -(cosine(p_a, z_b) + cosine(p_b, z_a)).mean() / 2


def simclr_loss(w, views):
    z = (x @ w["encoder"] @ w["projector"] for x in views)
    return plain.nt_xent(*z, 0.3, jnp)


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        (fedsimsiam(*HEADS, KMEANS, LOCAL), simsiam_loss),
        (fedsimclr(*HEADS[:2], KMEANS, LOCAL, instance_temperature=0.3), simclr_loss),
    ],
    ids=["simsiam", "simclr"],
)
def test_a_step_descends_the_loss_of_two_views(method, loss):
    pool = np.random.default_rng(0).normal(size=(14, 4)).astype(np.float32)
    federation = federate(pool, (np.arange(6), np.arange(6, 14)), absent=(1,))
    state = method.init(jax.random.key(0), federation)
    key = jax.random.key(1)
    new, metrics = jax.jit(method.stages[0].round)(key, state, federation)

    ((slots, step_key),) = plain.steps(key, np.arange(8) < 6)
    views = plain.views(step_key, pool[slots])
    before, after = (
        {k: v["params"]["kernel"] for k, v in s.online.items()} for s in (state, new)
    )
    value, gradient = jax.jit(jax.value_and_grad(loss))(before, views)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    for name, w in before.items():
        np.testing.assert_allclose(
            after[name], w - gradient[name], rtol=1e-4, atol=1e-5
        )
    traffic = {k: list(v) for k, v in metrics.items() if k[:3] in ("up_", "dow")}
    assert traffic == {
        f"{way}_{name}": [1, 4 * w.size]
        for way in ("up", "down")
        for name, w in before.items()
    }
