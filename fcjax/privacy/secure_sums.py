"""Simulated secure sums: the server learns a sum over clients, and no client's term.

Every client encodes its values as integers and adds masks modulo 2^32. Each pair of
clients shares a random seed. One client of the pair adds the mask of this seed, and the
other client subtracts it. So a masked upload is uniformly random, and the masks cancel
in the sum of all uploads. If a client drops out, its partners reveal the seeds that
they share with it, and the server removes these masks.

These functions show the arithmetic and the rounding of secure sums within a simulation.
They protect nobody's data, because one program knows all keys. The following parts of
the protocol are left out: the key agreement of the pairs, the self masks, and the
secret sharing of the seeds. Without self masks, a server that declares a slow client
dropped can remove the masks of an upload that arrives late. A real federation uses
Flower's SecAgg+, see `fcjax.deploy.secure`.

References:
    Bonawitz et al., `Practical Secure Aggregation for Privacy-Preserving Machine
    Learning <https://eprint.iacr.org/2017/281>`_, CCS 2017, Section 4: pairwise masks.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float32, Int, Num, UInt32

from fcjax.types import PRNGKey, PyTree, Scalar

MODULUS_BITS = 32
"""Uploads and masks are integers modulo 2^32."""
MAX_BITS = 24
"""Largest number of bits of a term; float32 has no more significant bits."""


# --- Fixed point


def encode(
    x: Num[Array, "*S"] | np.ndarray, *, clip: Scalar, bits: int
) -> UInt32[Array, "*S"]:
    """Rounds numbers to integers of `bits` bits, modulo 2^32.

    The value x becomes round(L x / clip) with L = 2^(bits - 1) - 1. A negative integer
    is its two's complement.

    Args:
        x: the values. Values outside of [-clip, clip] are clipped. NaN becomes 0,
            because an integer cannot be NaN.
        clip: the largest absolute value, above 0.
        bits: number of bits of an integer with its sign, from 2 to `MAX_BITS`.

    Returns:
        The integers, of the shape of `x`.

    Raises:
        ValueError: `clip` or `bits` is out of range.

    Examples:
        >>> print(encode(jnp.array([0.0, 0.6, 9.0, -1.0]), clip=1.0, bits=3))  # L = 3
        [         0          2          3 4294967293]
    """
    _check_bits(bits)
    _check_clip(clip)
    units = jnp.clip(jnp.asarray(x, jnp.float32) / clip, -1, 1)
    units = jnp.where(jnp.isnan(units), 0, units)
    integers = jnp.round(units * _largest(bits)).astype(jnp.int32)
    return lax.bitcast_convert_type(integers, jnp.uint32)


def decode(
    total: UInt32[Array, "*S"], *, num_clients: int, clip: Scalar, bits: int
) -> Float32[Array, "*S"]:
    """Converts the sum of encoded terms to the sum of the values.

    Args:
        total: the sum modulo 2^32, without masks, see `encode` and `unmask`.
        num_clients: M, the largest number of terms of the sum.
        clip: see `encode`.
        bits: see `encode`.

    Returns:
        The sum of the values in float32. `largest_error` bounds its error.

    Raises:
        ValueError: `clip` or `bits` is out of range, or the sum of `num_clients` terms
            may overflow.

    Examples:
        >>> terms = encode(jnp.array([0.5, -1.0, -1.0]), clip=1.0, bits=16)
        >>> total = terms.sum(dtype=jnp.uint32)
        >>> print(decode(total, num_clients=3, clip=1.0, bits=16).round(4))
        -1.5
    """
    _check_sum(num_clients, bits)
    _check_clip(clip)
    integers = lax.bitcast_convert_type(total, jnp.int32)
    return integers.astype(jnp.float32) * jnp.float32(clip / _largest(bits))


def largest_error(num_clients: int, *, clip: float, bits: int) -> float:
    """Returns an upper bound of the error of a secure sum.

    The rounding of one term changes the term by at most clip / (2^bits - 2). Arithmetic
    in float32 adds less than clip / 2^21 per term. Clipping is not included, so all
    values must lie in [-clip, clip].

    Args:
        num_clients: M, the number of terms of the sum.
        clip: see `encode`.
        bits: see `encode`.

    Returns:
        M clip (1 / (2^bits - 2) + 1 / 2^21), compared with the exact sum of the values.

    Raises:
        ValueError: `clip` or `bits` is out of range, or the sum of `num_clients` terms
            may overflow.

    Examples:
        >>> print(f"{largest_error(10, clip=1.0, bits=8):.5f}")  # 10 / 254
        0.03937
    """
    _check_sum(num_clients, bits)
    _check_clip(clip)
    return num_clients * clip * (1 / (2**bits - 2) + 2.0**-21)


def _largest(bits: int) -> int:
    """Returns L, the largest integer of `bits` bits with a sign."""
    return 2 ** (bits - 1) - 1


def _check_bits(bits: int) -> None:
    if not 2 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be between 2 and {MAX_BITS}, got {bits}")


def _check_sum(num_clients: int, bits: int) -> None:
    _check_bits(bits)
    largest = _largest(MODULUS_BITS) // _largest(bits)
    if not 1 <= num_clients <= largest:
        raise ValueError(
            f"num_clients must be between 1 and {largest} for bits {bits}, because a "
            f"larger sum can overflow, got {num_clients}"
        )


def _check_clip(clip: Any) -> None:
    if np.ndim(clip):
        raise ValueError(
            f"clip must be one number per array, got shape {np.shape(clip)}"
        )
    # The value of a traced array is not known.
    if not isinstance(clip, Tracer) and not 0 < clip < np.inf:
        raise ValueError(f"clip must be finite and above 0, got {clip}")


# --- Masks


def client_mask(
    key: PRNGKey, client: int | Int[Array, ""], partners: Bool[Array, "M"], size: int
) -> UInt32[Array, "size"]:
    """Returns the sum of the masks that a client shares with its partners.

    The mask of clients i < j is random, uniform modulo 2^32. Client i adds this mask,
    and client j subtracts it.

    Args:
        key: the key of the round. Each pair derives its seed from this key. It must be
            a threefry key, the default of JAX. Both clients of a pair must draw the
            same numbers, and other keys give other numbers under `vmap`.
        client: the index of the client, from 0 to M - 1.
        partners: the partners of the client. The client itself is ignored.
        size: S, the number of values of an upload.

    Returns:
        The sum of the signed masks, modulo 2^32.

    Raises:
        ValueError: `key` is no threefry key.

    Examples:
        >>> key, everyone = jax.random.key(0), jnp.ones(3, bool)
        >>> masks = [client_mask(key, i, everyone, 2) for i in range(3)]
        >>> print(sum(masks))  # every mask is added once and subtracted once
        [0 0]
    """
    if (name := str(jax.random.key_impl(key))) != "threefry2x32":
        raise ValueError(f"key must be a threefry2x32 key, got {name}")

    def add(other, total):
        first, second = jnp.minimum(client, other), jnp.maximum(client, other)
        seed = jax.random.fold_in(jax.random.fold_in(key, first), second)
        mask = jax.random.bits(seed, (size,), jnp.uint32)
        signed = jnp.where(client < other, mask, -mask)
        return total + jnp.where(partners[other] & (other != client), signed, 0)

    return lax.fori_loop(0, len(partners), add, jnp.zeros(size, jnp.uint32))


def mask_uploads(key: PRNGKey, encoded: UInt32[Array, "M S"]) -> UInt32[Array, "M S"]:
    """Adds its masks to the upload of every client.

    With at least two clients, each row of the result is uniform modulo 2^32 and says
    nothing about the client's values. The same holds for the sum of any rows but all.

    Args:
        key: the key of the round, see `client_mask`. A new round needs a new key.
        encoded: the values of every client, see `encode`.

    Returns:
        The masked uploads. The sum of all rows modulo 2^32 is the sum of `encoded`.

    Examples:
        >>> encoded = jnp.array([[1], [2], [3]], jnp.uint32)
        >>> uploads = mask_uploads(jax.random.key(0), encoded)
        >>> print((uploads == encoded).any(), uploads.sum(axis=0, dtype=jnp.uint32))
        False [6]
    """
    return encoded + _masks(key, jnp.ones(len(encoded), bool), encoded.shape[1])


def unmask(
    total: UInt32[Array, "S"], key: PRNGKey, present: Bool[Array, "M"]
) -> UInt32[Array, "S"]:
    """Removes the masks that participating clients share with absent clients.

    The participating clients reveal the seeds of these pairs, and the server computes
    the masks. Masks of two participating clients cancel, so their seeds stay secret.

    Args:
        total: the sum of the uploads of the participating clients, see `mask_uploads`.
        key: the key of the round, see `client_mask`.
        present: the participating clients, whose uploads are in `total`.

    Returns:
        The sum of the encoded values of the participating clients, modulo 2^32.

    Examples:
        >>> key, encoded = jax.random.key(0), jnp.array([[1], [2], [3]], jnp.uint32)
        >>> uploads = mask_uploads(key, encoded)
        >>> total = uploads[0] + uploads[2]  # the second client dropped out
        >>> print(unmask(total, key, jnp.array([True, False, True])))
        [4]
    """
    # An absent client would have added the same masks with the other sign.
    missing = _masks(key, present, len(total))
    return total + jnp.sum(missing, axis=0, where=~present[:, None], dtype=jnp.uint32)


def _masks(key: PRNGKey, partners: Bool[Array, "M"], size: int) -> UInt32[Array, "M S"]:
    """Returns the sum of the masks that each client shares with the partners."""
    indices = jnp.arange(len(partners))
    return jax.vmap(lambda client: client_mask(key, client, partners, size))(indices)


# --- Secure sum


def secure_sum(
    key: PRNGKey,
    stacked: PyTree,
    *,
    present: Bool[Array, "M"] | None = None,
    clip: Scalar | PyTree,
    bits: int,
) -> PyTree:
    """Computes the sum over the participating clients as secure sums do.

    Every client encodes and masks its values. The server adds the uploads of the
    participating clients, removes the masks of absent clients, and decodes the sum. All
    clients must be on one device.

    The M clients draw M (M - 1) masks, and as many again for the absent clients. The
    memory is a few arrays of the size of `stacked`. The masks cancel exactly. So a
    simulation without masks has the same bits and is faster: `encode`, the sum over the
    participating clients modulo 2^32, and `decode`.

    Args:
        key: the key of the round, see `client_mask`. A new round needs a new key.
        stacked: a tree of arrays [M, ...], the values of every client. Values of absent
            clients are ignored, even if they are NaN.
        present: the participating clients; None means all clients. The sum of one
            participating client is the value of this client, so a server should ask for
            a least number of clients.
        clip: the largest absolute value, see `encode`. It is one number, or a tree with
            one number per array of `stacked`.
        bits: number of bits of a client's value, see `encode`.

    Returns:
        The tree without its leading axis, in float32; 0 if no client participates. The
        error is at most `largest_error` of the participating clients.

    Raises:
        ValueError: an argument is out of range, the arrays do not have one leading
            axis, or the sum of M values may overflow.

    Examples:
        >>> stacked = {"w": jnp.array([[0.5, -1.0], [0.25, 0.0], [jnp.nan, 1.0]])}
        >>> present = jnp.array([True, True, False])
        >>> key = jax.random.key(0)
        >>> total = secure_sum(key, stacked, present=present, clip=1.0, bits=16)
        >>> print(total["w"].round(4))
        [ 0.75 -1.  ]
    """
    leaves, structure = jax.tree.flatten(stacked)
    num_clients = _number_of_clients(leaves)
    _check_sum(num_clients, bits)
    if present is None:
        present = jnp.ones(num_clients, bool)
    if present.shape != (num_clients,):
        raise ValueError(
            f"present must have one value per client, shape ({num_clients},), got "
            f"shape {present.shape}"
        )
    clips = _clips(clip, structure)
    encoded = [
        encode(x, clip=c, bits=bits).reshape(num_clients, -1)
        for x, c in zip(leaves, clips, strict=True)
    ]
    uploads = mask_uploads(key, jnp.concatenate(encoded, axis=1))
    total = jnp.sum(uploads, axis=0, where=present[:, None], dtype=jnp.uint32)
    total = unmask(total, key, present)
    ends = np.cumsum([x.shape[1] for x in encoded])[:-1].tolist()
    to_float = partial(decode, num_clients=num_clients, bits=bits)
    sums = [
        to_float(part, clip=c).reshape(x.shape[1:])
        for part, c, x in zip(jnp.split(total, ends), clips, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, sums)


def _number_of_clients(leaves: list[Any]) -> int:
    """Returns the length of the leading axis that all arrays must have."""
    shapes = [np.shape(x) for x in leaves]
    lengths = {shape[0] if shape else None for shape in shapes}
    (length,) = lengths if len(lengths) == 1 else (None,)
    if not length:
        raise ValueError(
            "stacked must be a tree of arrays with one leading axis of clients, got "
            f"shapes {shapes}"
        )
    return length


def _clips(clip: Any, structure: Any) -> list[Any]:
    """Returns one largest absolute value per array."""
    if jax.tree.structure(clip) == structure:
        clips = jax.tree.leaves(clip)
    elif jax.tree_util.all_leaves([clip]):
        clips = [clip] * structure.num_leaves
    else:
        raise ValueError(
            "clip must be one number or a tree with one number per array of stacked, "
            f"got {jax.tree.structure(clip)}"
        )
    for x in clips:
        _check_clip(x)
    return clips
