"""What holds for every loss: masks, gradients, traced scalars and lower precision.

Here a loss is compared with itself; what it is, the file of its name says.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import losses

COUNT = 6
# Of nine places the six that count.
MASK = np.array([1, 0, 1, 1, 1, 0, 1, 0, 1], bool)
LABELS = jnp.array([0, 0, 0, 1, 1, 2])  # of four clusters

SHAPES = {
    "rows": (COUNT, 4),
    "shares": (COUNT, 3),  # probabilities
    "logits": (COUNT,),
    "labels": (COUNT,),
    "squares": (COUNT, COUNT),
    "centroids": (3, 4),
}


class Loss:
    """A function of arrays of some kinds and perhaps of a mask and a scalar.

    No gradient flows through the arguments that are fixed.
    """

    def __init__(
        self, of, kinds, *, scalar=None, fixed=(), mask=True, nobody=0.0, **options
    ):
        self.of, self.scalar, self.fixed, self.options = of, scalar, fixed, options
        self.has_mask, self.of_nobody = mask, nobody
        self.kinds = kinds.split()
        self.floats = [i for i, kind in enumerate(self.kinds) if kind != "labels"]

    def __call__(self, *arguments):
        """Of arrays, a scalar and a mask: rows that count are summed up, where a column
        has a weight of its own."""
        *arrays, scalar, mask = arguments
        options = {"mask": mask} if self.has_mask else {}
        if self.scalar is not None:
            options[self.scalar] = scalar
        value = self.of(*arrays, **options, **self.options)
        if value.ndim == 2:
            value = value @ jnp.arange(1.0, value.shape[1] + 1)
        return value if value.ndim == 0 else value.sum(where=mask)


LOSSES = {
    "assignment_kl": Loss(losses.assignment_kl, "shares shares"),
    "cluster_agreement": Loss(
        losses.cluster_agreement,
        "rows rows centroids",
        scalar="temperature",
        fixed=(1, 2),
    ),
    **{
        f"cluster_contrastive, include_self={include_self}": Loss(
            losses.cluster_contrastive,
            "rows rows labels",
            fixed=(1,),
            num_clusters=4,
            include_self=include_self,
        )
        for include_self in (True, False)
    },
    "cluster_entropy": Loss(losses.cluster_entropy, "shares"),
    "cluster_nt_xent": Loss(
        losses.cluster_nt_xent,
        "shares shares",
        scalar="temperature",
        nobody=np.log(5),  # three clusters that are all alike
    ),
    **{
        f"coefficient_penalty, {norm}": Loss(
            losses.coefficient_penalty, "squares", norm=norm
        )
        for norm in ("frobenius", "l1", "nuclear")
    },
    "decorrelation": Loss(losses.decorrelation, "rows"),
    "deep_kmeans": Loss(
        losses.deep_kmeans, "rows rows rows rows", scalar="cluster_weight", fixed=(3,)
    ),
    "discriminator_loss": Loss(losses.discriminator_loss, "logits logits"),
    "generator_loss": Loss(losses.generator_loss, "logits"),
    **{
        f"locality_alignment, {scalar}": Loss(
            losses.locality_alignment, "squares squares", scalar=scalar
        )
        for scalar in ("alpha", "beta")
    },
    "model_contrastive": Loss(losses.model_contrastive, "rows rows", fixed=(1,)),
    "negative_cosine": Loss(
        losses.negative_cosine, "rows rows", fixed=(1,), mask=False
    ),
    "nt_xent": Loss(losses.nt_xent, "rows rows", scalar="temperature"),
    "reconstruction_error": Loss(losses.reconstruction_error, "rows rows", mask=False),
    "self_expression": Loss(losses.self_expression, "rows squares"),
    "student_t": Loss(losses.student_t, "rows centroids", scalar="dof"),
    "target_distribution": Loss(losses.target_distribution, "shares", fixed=(0,)),
}


@pytest.fixture(scope="module", params=LOSSES)
def loss(request):
    return LOSSES[request.param]


@pytest.fixture(scope="module")
def step(loss):
    """Value and gradients; of all examples where the mask is None."""
    return jax.jit(jax.value_and_grad(loss, argnums=loss.floats))


def draw(loss, seed):
    arrays = []
    for i, kind in enumerate(loss.kinds):
        key = jax.random.fold_in(jax.random.key(seed), i)
        array = jax.random.normal(key, SHAPES[kind])
        if kind == "shares":
            array = jax.nn.softmax(2 * array)
        elif kind == "labels":
            array = jax.random.permutation(key, LABELS)
        arrays.append(array)
    return arrays


def places(kind, mask):
    """Where the examples that count are in an array of more."""
    if kind == "centroids":
        return ...
    return np.ix_(mask, mask) if kind == "squares" else mask


def padded(loss, arrays, mask, spoiler):
    """The arrays with anything at masked places, and on the diagonal of a square."""
    for kind, array in zip(loss.kinds, map(np.asarray, arrays), strict=True):
        shape = [len(mask) if n == COUNT else n for n in array.shape]
        wide = np.full(shape, 1 if kind == "labels" else spoiler, array.dtype)
        wide[places(kind, mask)] = array
        if kind == "squares":
            np.fill_diagonal(wide, spoiler)
        yield jnp.asarray(wide)


def test_masked_examples_may_hold_anything_client_by_client(loss, step):
    """Value and gradients are those of the other examples alone, under jit and vmap,
    by a scalar of its own for each client; the last one has no example at all."""
    masks = np.stack([np.roll(MASK, i) for i in range(5)])
    spoilers = [np.nan, np.inf, -np.inf, 1e30, np.nan]
    scalars = jnp.array([0.1, 0.5, 1.0, 20.0, 0.5])
    clients = [draw(loss, seed) for seed in range(5)]
    given = [
        [*padded(loss, *client)]
        for client in zip(clients, masks, spoilers, strict=True)
    ]
    masks[-1] = False
    stacked = [jnp.stack(arrays) for arrays in zip(*given, strict=True)]
    values, gradients = jax.jit(jax.vmap(step))(*stacked, scalars, masks)
    for client, arrays in enumerate(clients[:-1]):
        value, references = step(*arrays, scalars[client], None)
        np.testing.assert_allclose(values[client], value, rtol=1e-5, atol=1e-6)
        for i, gradient, reference in zip(
            loss.floats, gradients, references, strict=True
        ):
            own = np.array(gradient[client])
            counted = places(loss.kinds[i], masks[client])
            np.testing.assert_allclose(own[counted], reference, rtol=1e-4, atol=1e-5)
            own[counted] = 0
            if loss.has_mask:
                np.testing.assert_array_equal(own, 0)
    np.testing.assert_allclose(values[-1], loss.of_nobody, rtol=1e-6)
    for gradient in gradients if loss.has_mask else ():
        np.testing.assert_array_equal(gradient[-1], 0)


def test_gradients_are_differences_but_of_what_is_fixed(loss, step):
    arrays, noise = draw(loss, 0), draw(loss, 1)
    _, gradients = step(*arrays, 0.5, None)
    there, back, slope = [*arrays], [*arrays], 0.0
    for i, gradient in zip(loss.floats, gradients, strict=True):
        if i in loss.fixed:
            np.testing.assert_array_equal(gradient, 0)
        else:
            # In proportion, so that shares stay positive.
            direction = arrays[i] * noise[i]
            there[i] += 1e-3 * direction
            back[i] -= 1e-3 * direction
            slope += (gradient * direction).sum()
    rise = step(*there, 0.5, None)[0] - step(*back, 0.5, None)[0]
    np.testing.assert_allclose(slope, rise / 2e-3, rtol=1e-2, atol=1e-2)


def test_lower_precision_is_computed_in_float32(loss, step):
    """In float16 squares of 300 would overflow."""
    short = draw(loss, 0)
    for i in loss.floats:
        scale = 1 if loss.kinds[i] in ("shares", "logits") else 300
        short[i] = (scale * short[i]).astype(jnp.float16)
    wide = [x.astype(jnp.float32) if x.dtype == jnp.float16 else x for x in short]
    value, gradients = step(*short, 0.5, None)
    expected, references = step(*wide, 0.5, None)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(
            gradient, reference.astype(jnp.float16), rtol=2e-3, atol=1e-6
        )
