"""FedU: BYOL's loss, the divergence of an encoder, and whose predictor goes on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import models
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedu import byol_contrast, divergence, fedu
from fcjax.algorithms.parts import Networks, initialize
from fcjax.algorithms.two_stage import feature_kmeans
from tests.algorithms.federations import federate
from tests.algorithms.plain import cosine, matrix, noisy

NETWORKS = {
    "encoder": matrix(4, centre=True),
    "projector": matrix(3),
    "predictor": matrix(3),
}


def test_byol_draws_predictions_to_targets_and_no_gradient_to_these():
    rng = np.random.default_rng(0)
    views = tuple(jnp.asarray(rng.normal(size=(6, 5)), jnp.float32) for _ in range(2))
    mask = np.array([True, True, False, True, True, True])
    online, other = (
        initialize(jax.random.key(i), NETWORKS, views[0][:1]) for i in range(2)
    )
    params = {name: part["params"] for name, part in online.items()}
    target = {name: other[name]["params"] for name in ("encoder", "projector")}
    contrast = byol_contrast(Networks(NETWORKS))

    @jax.jit
    def found(params, target):
        def loss(params, target):
            parts = {name: {**online[name], "params": params[name]} for name in params}
            return contrast(parts, target, views, jnp.asarray(mask))

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, target)

    def plain(w, t, xp=jnp):
        x_a, x_b = (xp.asarray(x)[mask] for x in views)

        def z(w, x):
            h = x @ w["encoder"]
            return (h - h.mean(axis=0, keepdims=True)) @ w["projector"]

        p_a, p_b = (z(w, x) @ w["predictor"] for x in (x_a, x_b))
        each = 2 - 2 * cosine(p_a, z(t, x_b)) + 2 - 2 * cosine(p_b, z(t, x_a))
        return each.mean()

    (value, new), (of_online, of_target) = found(params, target)
    w, t = ({k: v["kernel"] for k, v in x.items()} for x in (params, target))
    in_numpy = [jax.tree.map(np.asarray, x) for x in (w, t)]
    assert float(value) == pytest.approx(plain(*in_numpy, np), rel=1e-5)
    gradient = jax.jit(jax.grad(plain))(w, t)
    for name, expected in gradient.items():
        np.testing.assert_allclose(
            of_online[name]["kernel"], expected, rtol=1e-3, atol=1e-5
        )
    assert not any(map(np.any, jax.tree.leaves(of_target)))
    # Both views pass in the online encoder, none of the target's into its statistics.
    assert float(new["encoder"]["batch_stats"]["calls"]) == 2


BODIES = {"basic": ("Conv_0", "Conv_1"), "bottleneck": ("Conv_0", "Conv_1", "Conv_2")}


def at(*shape, value):
    return {"kernel": jnp.full(shape, value), "bias": jnp.full(shape[-1:], 9.0)}


def moved(layers):
    """Returns the divergence from zeros."""
    ended = {"params": layers}
    return float(divergence(jax.tree.map(jnp.zeros_like, ended), ended))


def test_divergence_is_the_mean_norm_over_convolutions_that_are_no_shortcut():
    layers = {
        "stem": at(1, 1, 2, 8, value=1.0),  # of norm 4
        "block": {
            "first": at(3, 3, 1, 1, value=2.0),  # of norm 6
            "shortcut": at(1, 1, 1, 4, value=50.0),
        },
        "dense": at(4, 4, value=50.0),
    }
    assert moved(layers) == pytest.approx(5)


def test_divergence_is_over_all_kernels_where_no_convolution_is():
    layers = {"one": at(2, 2, value=1.0), "two": at(1, 9, value=-2.0)}  # norms 2, 6
    assert moved({"layers": layers}) == pytest.approx(4)


@pytest.mark.parametrize(("block", "count"), [("basic", 5), ("bottleneck", 7)])
def test_shortcuts_of_a_resnet_are_left_out(block, count):
    """A stem and two blocks: convolutions move by 3, shortcuts by far more."""
    layers = models.resnet.ResNet((1, 1), block=block, width=2)
    x = jnp.zeros((1, 8, 8, 3))
    shapes = jax.eval_shape(models.encoder(layers).init, jax.random.key(0), x)
    seen = []

    def move(path, leaf):
        *_, outer, conv, name = (entry.key for entry in path)
        if name != "kernel":
            return jnp.zeros(leaf.shape)
        is_body = outer == "layers" or conv in BODIES[block]
        seen.append(is_body)
        return jnp.zeros(leaf.shape).at[0, 0, 0, 0].set(3.0 if is_body else 100.0)

    ended = jax.tree_util.tree_map_with_path(move, shapes)
    assert sum(seen) == count
    assert len(seen) > count  # there are shortcuts
    began = jax.tree.map(jnp.zeros_like, ended)
    assert float(divergence(began, ended)) == pytest.approx(3)


@pytest.fixture(scope="module")
def rounds():
    """(threshold) -> what two rounds leave, the second with steps of size zero. Client
    2 joins then."""
    pool = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    federation = federate(pool, (np.arange(4), np.arange(4, 12), np.arange(12, 16)))
    present = jnp.array([[True, True, False], [True, True, True]])
    federation = federation._replace(present=present)
    local = Local(
        optax.sgd(0.5),
        noisy,
        num_epochs=1,
        batch_size=8,
        schedule=lambda number: jnp.where(number == 0, 1.0, 0.0),
    )

    def method(threshold):
        clusters = feature_kmeans(num_clusters=2)
        return fedu(*NETWORKS.values(), clusters, local, threshold=threshold)

    @jax.jit
    def round(threshold, key, state):
        return method(threshold).stages[0].round(key, state, federation)

    def run(threshold):
        states = [method(threshold).init(jax.random.key(1), federation)]
        for number in range(2):
            state, metrics = round(threshold, jax.random.key(number), states[-1])
            states.append(state)
        return states, metrics

    return run


@pytest.mark.parametrize("threshold", [0.0, jnp.inf])
def test_a_client_goes_on_with_its_own_predictor_from_the_threshold_on(
    rounds, threshold
):
    (_, first, second), _ = rounds(jnp.float32(threshold))
    server = np.asarray(first.online["predictor"]["params"]["kernel"])
    own = np.asarray(first.memory.predictor["params"]["kernel"])
    assert np.abs(own[:2] - server).max() > 1e-2
    began = np.asarray(second.memory.predictor["params"]["kernel"])
    expected = np.stack([server] * 3)
    if threshold == 0:
        expected[:2] = own[:2]  # client 2 has none yet
    np.testing.assert_allclose(began, expected, atol=1e-6)
    np.testing.assert_allclose(second.memory.divergence, 0, atol=1e-6)
    # Encoder and projector are the server's whatever the threshold.
    for name in ("encoder", "projector"):
        ours, new = (x.online[name]["params"]["kernel"] for x in (first, second))
        np.testing.assert_allclose(new, ours, atol=1e-6)


def test_the_divergence_between_both_predictors_is_the_threshold(rounds):
    """Clients part where one has gone farther than mu and the other has not."""
    (_, first, _), _ = rounds(jnp.inf)
    gone = np.asarray(first.memory.divergence)
    assert gone[2] < 0  # has not trained
    near, far = np.argsort(gone[:2])
    (_, first, second), _ = rounds(jnp.float32((gone[near] + gone[far]) / 2))
    began = np.asarray(second.memory.predictor["params"]["kernel"])
    own = np.asarray(first.memory.predictor["params"]["kernel"])
    server = np.asarray(first.online["predictor"]["params"]["kernel"])
    np.testing.assert_allclose(began[near], server, atol=1e-6)
    np.testing.assert_allclose(began[far], own[far], atol=1e-6)
    # From exactly mu on it is kept.
    (_, _, second), _ = rounds(jnp.float32(gone[near]))
    began = np.asarray(second.memory.predictor["params"]["kernel"])
    np.testing.assert_allclose(began[near], own[near], atol=1e-6)


def test_all_three_online_parts_cross_and_no_target(rounds):
    _, metrics = rounds(jnp.inf)
    sizes = {"encoder": 4 * 4 + 4 + 1, "projector": 4 * 3, "predictor": 3 * 3}
    traffic = {k: list(v) for k, v in metrics.items() if k[:3] in ("up_", "dow")}
    assert traffic == {
        f"{way}_{name}": [3, 4 * size]
        for way in ("up", "down")
        for name, size in sizes.items()
    }
