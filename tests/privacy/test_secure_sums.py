"""Secure sums: integers by hand, masks that cancel, uploads that look random."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fcjax.privacy import secure_sums
from fcjax.privacy.secure_sums import (
    decode,
    encode,
    largest_error,
    mask_uploads,
    secure_sum,
    unmask,
)

# --- Fixed point


@pytest.mark.parametrize(
    ("value", "integer"),
    [
        (0.0, 0),
        (1.0, 2),  # 1 / 4 of 7 is 1.75
        (-1.0, 2**32 - 2),
        (4.0, 7),
        (-4.0, 2**32 - 7),
        (100.0, 7),
        (-np.inf, 2**32 - 7),
        (np.nan, 0),
    ],
)
def test_values_become_integers_of_four_bits(value, integer):
    encoded = encode(jnp.array([value]), clip=4.0, bits=4)
    assert encoded.dtype == jnp.uint32
    assert encoded.tolist() == [integer]


@pytest.mark.parametrize(
    ("total", "value"), [(0, 0), (7, 4), (2**32 - 7, -4), (20, 80 / 7)]
)
def test_integers_become_sums(total, value):
    found = decode(jnp.array([total], jnp.uint32), num_clients=3, clip=4.0, bits=4)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, [value], rtol=1e-6)


def test_the_largest_sum_does_not_overflow():
    """256 x (2^23 - 1) is below 2^31."""
    x = jnp.ones((256, 1))
    for sign in (1, -1):
        total = encode(sign * x, clip=1.0, bits=24).sum(axis=0, dtype=jnp.uint32)
        found = decode(total, num_clients=256, clip=1.0, bits=24)
        np.testing.assert_allclose(found, [sign * 256], rtol=1e-6)


# --- Error


@pytest.mark.parametrize("bits", [2, 8, 12, 16, 22, 24])
@pytest.mark.parametrize("clip", [1.0, 0.3, 700.0])
def test_the_error_is_within_the_bound(key, bits, clip):
    x = np.random.default_rng(bits).uniform(-clip, clip, (50, 400)).astype(np.float32)
    found = secure_sum(key, x, clip=clip, bits=bits)
    error = np.abs(np.asarray(found, np.float64) - x.astype(np.float64).sum(axis=0))
    assert error.max() <= largest_error(50, clip=clip, bits=bits)


@pytest.mark.parametrize("bits", [2, 8, 12])
def test_the_bound_is_nearly_reached(key, bits):
    """Every term is rounded by nearly half a step, all in the same direction."""
    step = 5 / (2 ** (bits - 1) - 1)
    x = jnp.full((40, 1), 0.499 * step)
    found = secure_sum(key, x, clip=5.0, bits=bits)
    assert found.tolist() == [0]
    assert x.sum() > 0.99 * largest_error(40, clip=5.0, bits=bits)


# --- Masks

ENCODED = np.array(
    [[0, 2**32 - 1, 5], [7, 7, 7], [2**31, 1, 2], [9, 0, 2**32 - 3]], np.uint32
)


@pytest.mark.parametrize("present", list(product([False, True], repeat=4)))
def test_the_sum_is_the_plain_one_for_every_set_of_absent_clients(key, present):
    uploads = mask_uploads(key, jnp.asarray(ENCODED))
    total = uploads.sum(axis=0, where=np.array(present)[:, None], dtype=jnp.uint32)
    expected = ENCODED[np.array(present)].sum(axis=0, dtype=np.uint64) % 2**32
    found = unmask(total, key, jnp.array(present))
    np.testing.assert_array_equal(found, expected.astype(np.uint32))
    if 0 < sum(present) < 4:
        assert (total != found).all()  # The masks of absent clients are in the total.


def test_masks_have_the_signs_of_the_pairs(key):
    """The first client of a pair adds the mask and the second one subtracts it."""
    zeros = jnp.zeros((2, 3), jnp.uint32)
    first, second = np.asarray(mask_uploads(key, zeros))
    seed = jax.random.fold_in(jax.random.fold_in(key, 0), 1)
    mask = np.asarray(jax.random.bits(seed, (3,), jnp.uint32))
    np.testing.assert_array_equal(first, mask)
    np.testing.assert_array_equal(second, -mask)


def test_a_new_key_gives_new_masks(key):
    other = jax.random.key(1)
    masks = [mask_uploads(x, jnp.zeros((3, 50), jnp.uint32)) for x in (key, other)]
    assert (masks[0] != masks[1]).all()


SIZE = 2**15
VALUES = [0.0, 1.0, -1.0, 0.25]


@cache
def uploads_of(value):
    x = jnp.full((4, SIZE), value)
    return np.asarray(mask_uploads(jax.random.key(3), encode(x, clip=1.0, bits=16)))


def counts_of(integers, shift):
    """Counts of the 16 values of four bits."""
    return np.bincount((integers >> np.uint32(shift)) & np.uint32(15), minlength=16)


def assert_is_uniform(integers):
    for shift in range(0, 32, 4):
        assert stats.chisquare(counts_of(integers, shift)).pvalue > 1e-3


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("client", [0, 1, 3])
def test_a_masked_upload_is_uniform(client, value):
    assert_is_uniform(uploads_of(value)[client])


def test_a_masked_upload_is_independent_of_the_value():
    """The values are two constants; each has the same bins of uploads."""
    signs = np.random.default_rng(0).integers(0, 2, SIZE) * 2 - 1
    x = jnp.zeros((2, SIZE)).at[0].set(signs)
    upload = mask_uploads(jax.random.key(3), encode(x, clip=1.0, bits=16))[0]
    upload = np.asarray(upload)
    for shift in range(0, 32, 4):
        table = [counts_of(upload[signs == sign], shift) for sign in (-1, 1)]
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("value", VALUES)
def test_the_sum_of_all_uploads_but_one_is_uniform(value):
    uploads = uploads_of(value)
    for client in range(4):
        rest = np.delete(uploads, client, axis=0)
        assert_is_uniform(rest.sum(axis=0, dtype=np.uint32))


def test_after_a_drop_out_the_uploads_that_are_there_stay_masked():
    """Without the masks of the absent client, two clients still share a mask."""
    key, present = jax.random.key(3), jnp.array([True, True, False])
    encoded = encode(jnp.full((3, SIZE), 0.5), clip=1.0, bits=16)
    removed = secure_sums.client_mask(key, 0, ~present, SIZE)
    assert_is_uniform(np.asarray(mask_uploads(key, encoded)[0] - removed))


# --- Secure sum

TREE = {
    "w": jnp.array([[[1.0, -2.0]], [[3.0, 0.5]], [[jnp.nan, jnp.inf]], [[-4.0, 0.25]]]),
    "number": jnp.array([3, 4, 5, 6]),
    "empty": jnp.zeros((4, 0)),
}
PRESENT = jnp.array([True, True, False, True])


def assert_is_sum(found):
    """1 + 3 - 4, and so on; the third client is absent."""
    np.testing.assert_allclose(found["w"], [[0.0, -1.25]], atol=1e-4)
    np.testing.assert_allclose(found["number"], 13, atol=1e-4)
    assert found["number"].shape == ()
    assert found["empty"].shape == (0,)


def test_a_tree_is_summed_with_and_without_compilation(key):
    def total(key, tree, present):
        return secure_sum(key, tree, present=present, clip=8.0, bits=20)

    plain, compiled = (fn(key, TREE, PRESENT) for fn in (total, jax.jit(total)))
    assert_is_sum(plain)
    jax.tree.map(np.testing.assert_array_equal, plain, compiled)


def test_every_array_has_its_own_scale(key):
    clip = {"w": 4.0, "number": 2.0**19 - 1, "empty": 1.0}
    found = secure_sum(key, TREE, present=PRESENT, clip=clip, bits=20)
    assert_is_sum(found)
    assert found["number"] == 13  # The step is 1, so integers are exact.


def test_runs_of_a_batch_have_their_own_keys_clients_and_scales():
    keys = jax.random.split(jax.random.key(0), 3)
    x = jnp.array(np.random.default_rng(0).uniform(-1, 1, (3, 5, 4)), jnp.float32)
    x = x.at[1, 2].set(jnp.nan)
    present = jnp.ones((3, 5), bool).at[1, 2].set(False).at[2, :2].set(False)
    clips = jnp.array([1.0, 2.0, 3.0])

    def total(key, x, present, clip):
        return secure_sum(key, x, present=present, clip=clip, bits=16)

    batch = jax.jit(jax.vmap(total))(keys, x, present, clips)
    expected = np.where(present[:, :, None], x, 0).sum(axis=1)
    np.testing.assert_allclose(batch, expected, atol=5 * 3 / 2**15)
    for i in range(3):
        np.testing.assert_array_equal(
            batch[i], total(keys[i], x[i], present[i], clips[i])
        )


def test_the_sum_has_the_bits_of_a_sum_without_masks(key):
    x = jax.random.normal(key, (6, 30))
    present = jnp.arange(6) % 3 > 0
    encoded = encode(x, clip=3.0, bits=18)
    total = encoded.sum(axis=0, where=present[:, None], dtype=jnp.uint32)
    expected = decode(total, num_clients=6, clip=3.0, bits=18)
    found = secure_sum(key, x, present=present, clip=3.0, bits=18)
    np.testing.assert_array_equal(found, expected)


def test_hundreds_of_clients(key):
    x = jnp.tile(jnp.array([[1.0, -1.0], [0.5, 0.0]]), (150, 1))
    present = jnp.arange(300) != 7
    found = jax.jit(
        lambda key, x: secure_sum(key, x, present=present, clip=1.0, bits=20)
    )(key, x)
    np.testing.assert_allclose(found, [224.5, -150], atol=300 / 2**20)


def test_no_client_and_one_client(key):
    x = jnp.array([[1.0], [2.0]])
    nobody = secure_sum(key, x, present=jnp.zeros(2, bool), clip=2.0, bits=8)
    assert nobody.tolist() == [0]
    one = secure_sum(key, x[1:], clip=2.0, bits=8)
    assert one.tolist() == [2]


# --- Errors


X = jnp.ones((4, 2))


def sum_of(x=X, key=None, **settings):
    key = jax.random.key(0) if key is None else key
    return secure_sum(key, x, **{"clip": 1.0, "bits": 8} | settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sum_of(bits=1), "bits must be between 2 and 24, got 1"),
        (lambda: sum_of(bits=25), "bits must be between 2 and 24, got 25"),
        (lambda: encode(X, clip=1.0, bits=0), "bits must be between 2 and 24, got 0"),
        (lambda: sum_of(clip=0.0), "clip must be finite and above 0, got 0.0"),
        (lambda: sum_of(clip=np.inf), "clip must be finite and above 0, got inf"),
        (lambda: sum_of(clip=np.nan), "clip must be finite and above 0, got nan"),
        (
            lambda: sum_of(clip=X),
            r"clip must be one number per array, got shape \(4, 2\)",
        ),
        (lambda: sum_of(clip={"w": X}), "clip must be one number or a tree with one"),
        (
            lambda: sum_of(jnp.ones((257, 1)), bits=24),
            "num_clients must be between 1 and 256 for bits 24, .* got 257",
        ),
        (
            lambda: decode(jnp.zeros(1, jnp.uint32), num_clients=0, clip=1.0, bits=8),
            "num_clients must be between 1 and .*, got 0",
        ),
        (
            lambda: largest_error(257, clip=1.0, bits=24),
            "num_clients must be between 1 and 256",
        ),
        (
            lambda: sum_of(present=jnp.ones(3, bool)),
            r"present must have one value per client, shape \(4,\), got shape \(3,\)",
        ),
        (lambda: sum_of({"w": X, "b": X[:2]}), "stacked must be a tree of arrays with"),
        (lambda: sum_of(jnp.ones(())), "stacked must be a tree of arrays with one"),
        (lambda: sum_of({}), "stacked must be a tree of arrays with one leading axis"),
        (
            lambda: sum_of(key=jax.random.key(0, impl="rbg")),
            "key must be a threefry2x32 key, got rbg",
        ),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
