"""Gaussian noise on sums over clients, for a guarantee per client or per example.

References:
    McMahan, Ramage, Talwar and Zhang, `Learning Differentially Private Recurrent
    Language Models <https://arxiv.org/abs/1710.06963>`_, ICLR 2018: clipped updates of
    clients with a fixed denominator.

    Andrew, Thakkar, McMahan and Ramaswamy, `Differentially Private Learning with
    Adaptive Clipping <https://arxiv.org/abs/1905.03871>`_, NeurIPS 2021: a clip that
    follows a quantile of the norms.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from fcjax.federated import clients, server
from fcjax.privacy.accounting import Part
from fcjax.types import Federation, PRNGKey, PyTree, Scalar

NoiseAt = Literal["server", "clients"]
"""The party that adds the noise. The server adds it to the sum, or each participating
client adds a share to its upload. The noise of the sum has the same distribution."""


SHORT = 0.25
"""The weight of the bit in an upload with an adaptive clip, as a share of the clip. The
noise of the updates grows by the factor sqrt(1 + SHORT^2), 3 %."""
CLIP_RATE = 0.2
"""Step size of the adaptive clip (eta_C of Andrew et al., Section 2.1)."""


class Upload(NamedTuple):
    """The upload of a client in a private round."""

    update: PyTree
    """The clipped update of the network."""
    is_short: PyTree = ()
    """With an adaptive clip C: SHORT C if the update was not longer than C, else
    -SHORT C. So the upload has an L2 norm of at most C sqrt(1 + SHORT^2)."""


class Updates(NamedTuple):
    """Differentially private averages of the clients' networks, for one run.

    Examples:
        >>> part = Part("rounds", share=1.0, times=1)
        >>> updates = Updates(noise=0.0, part=part, clip=5.0)
        >>> network, number = jnp.array([6.0, 8.0]), jnp.int32(1)
        >>> upload = updates.upload(
        ...     jax.random.key(0), network, jnp.zeros(2), number, updates.first_clip
        ... )
        >>> print(upload.update)  # the update has the norm 10
        [3. 4.]
    """

    noise: Scalar
    """The noise multiplier of the run, see `Part.noise_multiplier`."""
    part: Part
    """The share of the budget of all averages, and their number."""
    clip: Scalar = 1.0
    """C, the largest L2 norm of a client's update. Longer updates are scaled down."""
    noise_at: NoiseAt = "server"
    """The party that adds the noise, see `NoiseAt`."""
    quantile: float | None = None
    """The share of clients whose updates are not scaled down. The clip adapts to it
    after each round. None keeps the clip."""

    @property
    def first_clip(self) -> PyTree:
        """The clip of the first round."""
        return jnp.float32(self.clip)

    def scale(self, clip: Scalar) -> Scalar:
        """Computes the standard deviation of the noise of the sum of all uploads.

        Args:
            clip: the clip of the round.

        Returns:
            The standard deviation.
        """
        longest = clip if self.quantile is None else clip * math.hypot(1, SHORT)
        return self.part.noise_multiplier(self.noise) * longest

    def messages(self, clip: PyTree) -> dict[str, PyTree]:
        """Returns what travels besides the network in a round, for the traffic.

        Args:
            clip: the clip.

        Returns:
            The adaptive clip, in place of which a client uploads its bit; empty for a
            clip that stays the same.
        """
        return {} if self.quantile is None else {"clip": clip}

    def sample(self, key: PRNGKey, federation: Federation) -> Bool[Array, "M"]:
        """Samples the participating clients of a round, each independently.

        Args:
            key: the key of the round.
            federation: the federation in the current round.

        Returns:
            True [M] at the sampled clients on this device.
        """
        present = server.all_participants(federation)
        keys = clients.fold_in(jax.random.fold_in(key, SAMPLE), len(present))
        draws = jax.vmap(jax.random.uniform)(keys)
        sampled = present & (draws < self.part.sample_rate)
        return clients.on_this_device(sampled, len(federation.indices))

    def upload(
        self,
        key: PRNGKey,
        trained: PyTree,
        before: PyTree,
        number: Int[Array, ""],
        clip: Scalar,
    ) -> Upload:
        """Computes the upload of a client.

        Args:
            key: the key of the client in this round.
            trained: the network after local training.
            before: the network that the client downloaded.
            number: the number of participating clients.
            clip: the clip of the round.

        Returns:
            The clipped update of the network.
        """
        update = jax.tree.map(jnp.subtract, trained, before)
        update, is_short = clip_norm(update, clip), ()
        if self.quantile is not None:
            # A norm equal to the clip is one that was scaled down.
            is_short = jnp.where(optax.tree.norm(update) < clip * (1 - 1e-5), 1, -1)
            is_short = is_short * SHORT * clip
        upload = Upload(update, is_short)
        if self.noise_at == "clients":
            scale = self.scale(clip) / jnp.sqrt(jnp.maximum(number, 1))
            upload = add_noise(noise_key(key, self.noise), upload, scale)
        return upload

    def receive(
        self,
        key: PRNGKey,
        mean: Upload,
        before: PyTree,
        participating: Bool[Array, "A"],
        clip: Scalar,
    ) -> tuple[PyTree, Scalar]:
        """Computes the new global network from the mean of the uploads.

        The sum of the updates is divided by the expected number of participating
        clients, which does not depend on the data.

        Args:
            key: the key of the round.
            mean: the mean of the participating clients' uploads.
            before: the global network before the round.
            participating: the participating clients of all devices.
            clip: the clip of the round.

        Returns:
            The global network after the round, and the clip of the next round.
        """
        number = participating.sum()
        total = jax.tree.map(lambda x: jnp.where(number > 0, x * number, 0), mean)
        scale = self.scale(clip)
        if self.noise_at == "clients":  # Without a client, nobody has added noise.
            scale = jnp.where(number > 0, 0, scale)
        total = add_noise(noise_key(key, self.noise), total, scale)
        expected = self.part.sample_rate * len(participating)
        network = jax.tree.map(lambda old, x: old + x / expected, before, total.update)
        network = jax.tree.map_with_path(positive_variance, network)
        if self.quantile is None:
            return network, clip
        share = (1 + total.is_short / (SHORT * clip * expected)) / 2
        share = jnp.clip(share, 0, 1)
        return network, clip * jnp.exp(-CLIP_RATE * (share - self.quantile))


SAMPLE, NOISE = 0x5A000000, 0xD9000000
"""Numbers that derive the keys of the sampling and of the noise from other keys. They
are above the number of any client, whose key derives from its number."""


def noise_key(key: PRNGKey, noise: Scalar) -> PRNGKey:
    """Derives the key of the noise, which differs between runs of different budgets.

    Two budgets with the same noise up to its scale would reveal the sum without noise.

    Args:
        key: the key of the round, or of a client in the round.
        noise: the noise multiplier of the run.

    Returns:
        The key.
    """
    bits = jax.lax.bitcast_convert_type(jnp.float32(noise), jnp.uint32)
    return jax.random.fold_in(jax.random.fold_in(key, NOISE), bits)


LEAST_VARIANCE = 1e-3
"""Smallest variance of a batch norm after noise, which may make variances negative."""


def positive_variance(path: tuple[Any, ...], x: Array) -> Array:
    """Raises the variances of batch norms to `LEAST_VARIANCE`.

    Args:
        path: the keys of the array in the tree of variables.
        x: the array.

    Returns:
        The array, changed if it is the variable `var` of a batch norm.
    """
    is_variance = getattr(path[-1], "key", "") == "var" if path else False
    return jnp.maximum(x, LEAST_VARIANCE) if is_variance else x


def clip_norm(tree: PyTree, most: Scalar) -> PyTree:
    """Scales a tree down to a largest L2 norm.

    Args:
        tree: a tree of arrays. Values that are not finite count as 0.
        most: the largest norm, above 0.

    Returns:
        The tree, unchanged if its norm is at most `most`.

    Examples:
        >>> print(clip_norm(jnp.array([3.0, 4.0]), 1.0), clip_norm(jnp.ones(1), 2.0))
        [0.6 0.8] [1.]
    """
    tree = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0), tree)
    # A norm above the largest float32 would be infinite, and its values 0 or NaN.
    largest = jnp.max(jnp.array([jnp.abs(x).max() for x in jax.tree.leaves(tree)]))
    unit = jnp.maximum(largest, jnp.finfo(jnp.float32).tiny)
    length = unit * optax.tree.norm(jax.tree.map(lambda x: x / unit, tree))
    factor = most / jnp.maximum(length, most)
    return jax.tree.map(lambda x: x * factor, tree)


def add_noise(key: PRNGKey, tree: PyTree, scale: Scalar) -> PyTree:
    """Adds independent Gaussian noise to all values of a tree.

    Args:
        key: the key of the noise.
        tree: a tree of arrays.
        scale: the standard deviation of the noise.

    Returns:
        The noisy tree.

    Examples:
        >>> noisy = add_noise(jax.random.key(0), {"sums": jnp.zeros(1000)}, 2.0)
        >>> print(noisy["sums"].std().round(0))
        2.0
    """
    leaves, structure = jax.tree.flatten(tree)
    keys = clients.fold_in(key, len(leaves))
    noisy = [
        x + scale * jax.random.normal(keys[i], x.shape) for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)


def sensitivity(*bounds: Scalar) -> Scalar:
    """Computes the L2 sensitivity of several sums together.

    Args:
        *bounds: the largest L2 norm that one example or client adds to each sum.

    Returns:
        The square root of the sum of the squares.

    Examples:
        >>> print(sensitivity(3.0, 4.0))
        5.0
    """
    squares = sum(bound * bound for bound in bounds)
    return math.sqrt(squares) if isinstance(squares, float) else jnp.sqrt(squares)
