"""A wrong shape gets one line that names the argument, and broadcasts to nothing."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Key

from fcjax import cluster, losses
from fcjax.federated.server import weighted_mean
from fcjax.shapes import axes_of, check, checked

Z, KEY = jnp.ones((8, 4)), jax.random.key(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: losses.nt_xent(Z, Z[:7], temperature=0.5),
            "nt_xent: z_b needs shape [B, D] with B = 8, D = 4, got [7, 4]",
        ),
        (
            lambda: losses.nt_xent(Z[None], Z[None], temperature=0.5),
            "nt_xent: z_a needs shape [B, D], got [1, 8, 4]; map a function over "
            "further axes with jax.vmap",
        ),
        (
            lambda: losses.model_contrastive(Z, Z, mask=jnp.ones((8, 1), bool)),
            "model_contrastive: mask needs shape [B] with B = 8, got [8, 1]",
        ),
        (
            lambda: losses.cluster_entropy(Z, mask=jnp.ones(1, bool)),
            "cluster_entropy: mask needs shape [B] with B = 8, got [1]",
        ),
        (
            lambda: cluster.kmeans(KEY, Z[:, 0], 2),
            "kmeans: x needs shape [N, D], got [8]",
        ),
        (
            lambda: weighted_mean({"w": jnp.eye(5)}, jnp.ones(4)),
            "weighted_mean: stacked['w'] needs one row per weight, but its shape is "
            "[5, 5] and that of the weights is [4]",
        ),
    ],
)
def test_a_wrong_shape_is_named(call, message):
    with pytest.raises(ValueError, match=r".") as error:
        call()
    assert str(error.value) == message


def test_all_public_losses_and_clusterings_check():
    for module in (losses, cluster):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                source = inspect.getsource(function)
                assert source.startswith("@checked\ndef "), name


def test_axes_may_repeat_be_numbers_or_be_many():
    check("a", np.ones((3, 3)), ["N", "N"], {})
    with pytest.raises(ValueError, match=r"needs shape \[N, N\], got \[3, 4\]"):
        check("a", np.ones((3, 4)), ["N", "N"], {})
    sizes = {"F": 7}
    check("a", np.ones((2, 5, 6, 1)), ["B", "*S", "1"], sizes)
    assert sizes == {"F": 7, "B": 2, "*S": (5, 6)}
    with pytest.raises(
        ValueError, match=r"with B = 2, \*S = \(5, 6\), got \[2, 5, 1\]"
    ):
        check("a", np.ones((2, 5, 1)), ["B", "*S", "1"], sizes)
    with pytest.raises(ValueError, match=r"got \[2\]"):
        check("a", np.ones(2), ["B", "*S", "1"], {})
    with pytest.raises(ValueError, match=r"got \[2, 3\]"):
        check("a", np.ones((2, 3)), ["B", "1"], {})


def test_arguments_that_are_no_arrays_are_left_alone():
    @checked
    def add(x: Float[Array, "N"], *, mask: Bool[Array, "N"] | None = None, by: int = 1):
        """Adds."""
        return x + by if mask is None else jnp.where(mask, x + by, x)

    assert axes_of(int) is axes_of(Float[Array, "N"] | Float[Array, "N D"]) is None
    np.testing.assert_array_equal(add(jnp.zeros(2)), [1, 1])
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(lambda x: add(x, mask=jnp.array([True, False]))))(
            jnp.zeros((1, 2))
        ),
        [[1, 0]],
    )
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        add()
    assert add.__doc__ == "Adds."


def test_random_keys_of_the_old_kind_are_accepted():
    """They have an axis. jaxtyping refuses them, but in tests alone."""
    assert axes_of(Key[Array, ""]) is None
