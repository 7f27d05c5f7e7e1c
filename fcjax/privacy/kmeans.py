"""Federated k-means with differential privacy, for examples or for clients.

Each quantity is a sum over examples with a bounded part per example, plus Gaussian
noise. The sums of a Lloyd step contain the differences to the centroids before the
step. The differences are shorter than the examples, so they need less noise. Seeds are
random directions around the noisy mean of all examples, so that no seed is an example.

With a guarantee per client, every example of a client with n examples has the weight
1 / n. The weights of a client then sum to 1, and its sums have the same bounds as those
of a single example.

References:
    Su, Cao, Li, Bertino and Jin, `Differentially Private k-Means Clustering
    <https://arxiv.org/abs/1504.05998>`_, 2015: few Lloyd steps with noisy sums.
    Differences to the centroids, their clipping and the seeds are our own choice.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from fcjax.cluster import assign_nearest
from fcjax.cluster.fuzzy import memberships
from fcjax.cluster.kmeans import squared_distances
from fcjax.federated import clients, server
from fcjax.federated.kmeans import (
    HALF,
    Clusters,
    Embedding,
    Entries,
    Mask,
    Points,
    Read,
    Whitening,
    no_clusters,
)
from fcjax.losses import normalize
from fcjax.privacy.accounting import Part, Parts
from fcjax.privacy.gaussian import NoiseAt, add_noise, noise_key, sensitivity
from fcjax.ragged import is_ragged
from fcjax.types import Federation, PRNGKey, PyTree, Scalar, Stage, State

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

STEPS = 6
"""Default number of Lloyd steps. More steps need more noise per step. On digits and
Pendigits, 4 and 8 steps found worse clusters for most budgets."""
MEAN, WHITENING = 0.05, 0.3
"""Shares of the budget for the mean, and for the moments of the whitening."""
CLUSTERING = 0.3
"""Share of the budget for federated k-means, if the network is private, too."""
NEAR = 0.7
"""Distance of the seeds from the mean, and largest length of a difference, as a share
of the root mean square distance of the examples from their mean."""
VISIBLE = 2.0
"""A centroid moves only if its noisy count is at least this many standard deviations of
the noise, and at least 1."""


def parts_of(num_steps: int, *, whitens: bool = False, share: float = 1.0) -> Parts:
    """Lists the noisy sums of private federated k-means.

    Args:
        num_steps: number of Lloyd steps.
        whitens: whether the embedding is whitened.
        share: share of the budget of the run for all these sums.

    Returns:
        The parts, for `accounting.noise_of`.

    Examples:
        >>> [(part.name, part.times) for part in parts_of(6, whitens=True)]
        [('moments', 1), ('mean', 1), ('steps', 6)]
    """
    first = (Part("moments", share * WHITENING, 1),) if whitens else ()
    rest = 1 - MEAN - (WHITENING if whitens else 0)
    return (
        *first,
        Part("mean", share * MEAN, 1),
        Part("steps", share * rest, num_steps),
    )


class PrivateKMeans(NamedTuple):
    """Private federated k-means as a stage of a method whose server has `clusters`.

    Examples:
        >>> kmeans = PrivateKMeans(
        ...     points=lambda state, federation: (),
        ...     num_clusters=3,
        ...     noise=1.0,
        ...     parts=parts_of(6),
        ... )
        >>> kmeans.stage().num_rounds
        6
    """

    points: Points
    """Computes the embedding to cluster, or the argument of `read`."""
    num_clusters: int
    """K."""
    noise: Scalar
    """The noise multiplier of the run, see `accounting.noise_of`."""
    parts: Parts
    """The noisy sums, see `parts_of`."""
    radius: Scalar = 1.0
    """R, the largest L2 norm of an example. Longer examples are scaled down."""
    per_client: bool = False
    """Whether the guarantee is per client; otherwise it is per example."""
    noise_at: NoiseAt = "server"
    """The party that adds the noise, see `NoiseAt`."""
    cosine: bool = False
    """Scale the centroids to unit length, for embeddings of unit length."""
    fuzzifier: Scalar | None = None
    """m > 1 weighs the sums by memberships, as fuzzy c-means does; None is k-means."""
    model: Callable[[State], dict[str, PyTree]] = lambda _: {}
    """(state) -> the networks that clients download for their embedding, by name."""
    read: Callable[[Federation], Read] = lambda _: lambda z: z
    """(federation) -> the function that computes the points of a client, see
    `fcjax.federated.kmeans.Read`."""
    keep: bool = True
    """Whether clients store their points as their state. Otherwise, and always for size
    classes, clients compute the points again in every round, which takes less
    memory."""

    def stage(self, name: str = "k-means") -> Stage:
        """Returns the stage; each round is one noisy Lloyd step.

        Args:
            name: the name of the stage.

        Returns:
            The stage. It runs all of its rounds. Its metrics are the `loss` (inertia
            per example before the step), `participants`, `moved` (Frobenius norm of the
            change of the centroids) and the traffic. The loss is a measurement of the
            simulation without noise. The guarantee does not cover it.
        """
        steps = self.part("steps").times
        return Stage(name, self.begin, self.round, steps, lambda _: jnp.array(False))

    def part(self, name: str) -> Part:
        """Returns the part of the budget with this name."""
        return next(part for part in self.parts if part.name == name)

    @property
    def whitens(self) -> bool:
        """Whether the points are whitened, and so have unit length."""
        return any(part.name == "moments" for part in self.parts)

    def begin(self, key: PRNGKey, state: State, federation: Federation) -> State:
        """Computes the whitening and the initial centroids from noisy moments.

        Args:
            key: the key of the noise and of the directions of the seeds.
            state: the last state of the previous stage.
            federation: the federation in the current round.

        Returns:
            The first state of the stage, with new `clusters`.
        """
        keys = jax.random.split(key, 3)
        z, mask, read = *self.points(state, federation), self.read(federation)
        whitening = ()
        if self.whitens:
            whitening = self.whitening(keys[0], z, mask, read, federation)
        space = partial(self.space, read, whitening)
        centroids, spread = self.seeds(keys[1], keys[2], z, mask, space, federation)
        clusters = no_clusters(*centroids.shape)
        clusters = clusters._replace(
            centroids=centroids, whitening=whitening, spread=spread
        )
        after = state._replace(server=state.server._replace(clusters=clusters))
        if not self.keeps(federation):
            return after
        return after._replace(clients=(clients.for_each(space, z), mask))

    def keeps(self, federation: Federation) -> bool:
        """Tells whether clients store their points as their state."""
        return self.keep and not is_ragged(federation.mask)

    def space(
        self, read: Read, whitening: Whitening | tuple[()], z: Shaped[Array, "N ..."]
    ) -> Float[Array, "N D"]:
        """Computes the points of a client, of L2 norm at most `radius`.

        Args:
            read: computes the points from the entries of z.
            whitening: the whitening; () for none. Whitened points have unit length.
            z: the entries of a client.

        Returns:
            The points [N, D].
        """
        points = clip_rows(read(z), self.radius)
        return whitening.apply(points) if whitening else points

    def whitening(
        self, key: PRNGKey, z: Entries, mask: Mask, read: Read, federation: Federation
    ) -> Whitening:
        """Computes a whitening from noisy first and second moments.

        Variances below the noise are raised to the level of the noise, so that the
        whitening does not amplify noise.

        Args:
            key: the key of the noise.
            z: the embedding of the examples, or the argument of `read`.
            mask: False at padding.
            read: computes the points of a client.
            federation: the federation in the current round.

        Returns:
            The whitening.
        """
        radius, part = self.radius, self.part("moments")

        def moments(z, mask):
            points, weights = self.weighted(self.space(read, (), z), mask)
            second = matmul(points.T, weights[:, None] * points)
            # All three have the same bound: `radius`.
            return (
                weights.sum() * radius,
                matmul(weights, points),
                second / radius,
            )

        scale = part.noise_multiplier(self.noise) * sensitivity(*(1.0,) * 3) * radius
        total, first, second = self.noisy_sum(key, moments, scale, z, mask, federation)
        count = jnp.maximum(total / radius, 1)
        mean = first / count
        # The noise of an off-diagonal entry is the mean of two draws. The norm of the
        # upper triangle, with these entries times sqrt(2), is the Frobenius norm.
        second = (second + second.T) / 2 * radius / count
        variances, vectors = jnp.linalg.eigh(second - mean[:, None] * mean[None])
        variances, vectors = variances[::-1], vectors[:, ::-1]
        floor = scale * radius * math.sqrt(2 * len(variances)) / count
        tiny = len(variances) * jnp.finfo(jnp.float32).eps * jnp.abs(variances).max()
        scales = jnp.maximum(variances, jnp.maximum(floor, tiny))
        return Whitening(mean, vectors * (scales ** (-HALF / 2))[None])

    def seeds(
        self,
        mean_key: PRNGKey,
        key: PRNGKey,
        z: Entries,
        mask: Mask,
        space: Read,
        federation: Federation,
    ) -> tuple[Float[Array, "K D"], Float[Array, ""]]:
        """Places the initial centroids around the noisy mean of the examples.

        Args:
            mean_key: the key of the noise.
            key: the key of the directions.
            z: the embedding of the examples, or the argument of `space`.
            mask: False at padding.
            space: computes the points of a client.
            federation: the federation in the current round.

        Returns:
            The centroids [K, D], and the root mean square distance of the examples from
            their mean.
        """
        radius = 1.0 if self.whitens else self.radius
        features = jax.eval_shape(space, jax.tree.leaves(z)[0][0, :1]).shape[1]
        # Counts and squares have less weight than the mean, whose noise has D values.
        weight: Any = radius * features**-0.25

        def sums(z, mask):
            points, weights = self.weighted(space(z), mask)
            squares = jnp.sum(weights * jnp.sum(points**2, axis=1))
            return (
                weights.sum() * weight,
                squares * weight / radius**2,
                matmul(weights, points),
            )

        bound = sensitivity(weight, weight, radius)
        scale = self.part("mean").noise_multiplier(self.noise) * bound
        total, squares, first = self.noisy_sum(
            mean_key, sums, scale, z, mask, federation
        )
        count = jnp.maximum(total / weight, 1)
        mean = clip_rows((first / count)[None], radius)[0]
        noise = features * (scale / count) ** 2  # expected square of the noise
        variance = squares * radius**2 / (weight * count) - (jnp.sum(mean**2) - noise)
        spread = jnp.sqrt(jnp.clip(variance, (0.1 * radius) ** 2, radius**2))
        directions = normalize(jax.random.normal(key, (self.num_clusters, features)))
        centroids = mean[None] + NEAR * spread * directions
        return normalize(centroids) if self.cosine else centroids, spread

    def round(
        self, key: PRNGKey, state: State, federation: Federation
    ) -> tuple[State, dict[str, Array]]:
        """Runs one noisy Lloyd step.

        Args:
            key: the key of the noise.
            state: the state before the round.
            federation: the federation in the current round.

        Returns:
            The state after the round, and the metrics of the round, see `stage`.
        """
        before: Clusters = state.server.clusters
        if self.keeps(federation):
            (z, mask), space = state.clients, lambda z: z
        else:
            z, mask = self.points(state, federation)
            space = partial(self.space, self.read(federation), before.whitening)
        spread = jnp.asarray(before.spread)
        centroids = self.step(key, z, mask, space, before.centroids, spread, federation)
        after = before._replace(
            centroids=centroids, moved=jnp.linalg.norm(centroids - before.centroids)
        )
        participating = server.gather(server.participants(federation))
        counts = jnp.zeros(len(centroids))
        once = self.model(state)
        once |= {"whitening": before.whitening} if before.whitening else {}
        is_first = federation.now.stage_round == 0
        metrics = {
            "loss": self.inertia(z, mask, space, before.centroids, federation),
            "participants": participating.sum(),
            "moved": after.moved,
            **server.traffic(
                participating,
                up={"sums": centroids, "counts": counts},
                down={"centroids": centroids},
            ),
            **server.traffic(
                participating & is_first, up=self.first_uploads(before), down=once
            ),
        }
        return state._replace(server=state.server._replace(clusters=after)), metrics

    def first_uploads(self, clusters: Clusters) -> dict[str, PyTree]:
        """Returns the uploads of `begin`, for the traffic of the first round."""
        size = clusters.centroids.shape[-1]
        uploads = {"mean": jnp.zeros(size + 2)}
        if clusters.whitening:
            number = size * (size + 1) // 2 + size + 1
            uploads["moments"] = jnp.zeros(number)
        return uploads

    def step(
        self,
        key: PRNGKey,
        z: Entries,
        mask: Mask,
        space: Read,
        before: Float[Array, "K D"],
        spread: Scalar,
        federation: Federation,
    ) -> Float[Array, "K D"]:
        """Moves the centroids by the noisy mean difference of their examples.

        Args:
            key: the key of the noise.
            z: the embedding of the examples, or the argument of `space`.
            mask: False at padding.
            space: computes the points of a client.
            before: the centroids before the step.
            spread: root mean square distance of the examples from their mean.
            federation: the federation in the current round.

        Returns:
            The new centroids [K, D]. A centroid whose count is not above the noise does
            not move.
        """
        longest, weight = self.bounds(before.shape[1], spread)

        def local_sums(z, mask):
            points, weights = self.weighted(space(z), mask)
            differences, counts = difference_sums(
                points, weights, before, longest, self.fuzzifier
            )
            return differences, counts * weight

        scale = self.part("steps").noise_multiplier(self.noise)
        scale = scale * sensitivity(longest, weight)
        sums, counts = self.noisy_sum(key, local_sums, scale, z, mask, federation)
        counts, noise = counts / weight, scale / weight
        one = 0.1 if self.per_client else 1.0  # an example, or a part of a client
        least = jnp.maximum(VISIBLE * noise, one)
        moved = before + sums / jnp.maximum(counts, least)[:, None]
        moved = normalize(moved) if self.cosine else moved
        return jnp.where((counts >= least)[:, None], moved, before)

    def inertia(
        self,
        z: Entries,
        mask: Mask,
        space: Read,
        centroids: Float[Array, "K D"],
        federation: Federation,
    ) -> Float[Array, ""]:
        """Measures the mean squared distance to the nearest centroid, without noise.

        Args:
            z: the embedding of the examples, or the argument of `space`.
            mask: False at padding.
            space: computes the points of a client.
            centroids: the centroids.
            federation: the federation in the current round.

        Returns:
            The mean over the examples of the participating clients.
        """

        def squares(z, mask):
            points = space(z)
            nearest = centroids[assign_nearest(points, centroids)]
            distances = jnp.sum((points - nearest) ** 2, axis=1)
            return jnp.sum(distances, where=mask), mask.sum().astype(float)

        present = server.participants(federation).astype(float)
        means = server.weighted_mean(clients.for_each(squares, z, mask), present)
        return means[0] / means[1]

    def bounds(self, num_features: int, spread: Scalar) -> tuple[Scalar, Scalar]:
        """Returns the largest length of a difference, and the weight of the counts.

        The weight balances the noise of sums with D values and the noise of a count.
        """
        longest = NEAR * spread
        return longest, longest * num_features**-0.25

    def weighted(
        self, points: Float[Array, "N D"], mask: Bool[Array, "N"]
    ) -> tuple[Float[Array, "N D"], Float[Array, "N"]]:
        """Returns the points without padding, and the weights of the examples."""
        points = jnp.where(mask[:, None], points, 0)
        weights = mask.astype(float)
        if self.per_client:
            weights /= jnp.maximum(weights.sum(), 1)
        return points, weights

    def noisy_sum(
        self,
        key: PRNGKey,
        sums: Callable[..., PyTree],
        scale: Scalar,
        z: Embedding | Entries,
        mask: Mask,
        federation: Federation,
    ) -> PyTree:
        """Sums a function of the clients' examples, and adds noise.

        Args:
            key: the key of the noise.
            sums: (entries, mask) of one client -> a tree of sums.
            scale: standard deviation of the noise.
            z: the entries of all clients.
            mask: False at padding.
            federation: the federation in the current round.

        Returns:
            The noisy sums over the participating clients.
        """
        everyone = server.all_participants(federation)
        present, number = server.participants(federation), everyone.sum()
        share = scale / jnp.sqrt(jnp.maximum(number, 1))
        key = noise_key(key, self.noise)

        def upload(key, z, mask):
            local = sums(z, mask)
            if self.noise_at == "clients":
                local = add_noise(key, local, share)
            return local, ()

        client_key, server_key = jax.random.split(key)
        keys = clients.keys(client_key, len(present))
        means, _ = server.mean_of_each(upload, present.astype(float), keys, z, mask)
        total = jax.tree.map(lambda x: jnp.where(number > 0, x * number, 0), means)
        if self.noise_at == "clients":  # Without a client, nobody has added noise.
            scale = jnp.where(number > 0, 0, scale)
        return add_noise(server_key, total, scale)


def clip_rows(x: Float[Array, "N D"], radius: Scalar) -> Float[Array, "N D"]:
    """Scales every row down to a largest L2 norm.

    Args:
        x: the rows. Values that are not finite count as 0.
        radius: the largest norm, above 0.

    Returns:
        The rows; those of norm at most `radius` are unchanged.

    Examples:
        >>> print(clip_rows(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0))
        [[0.6 0.8]
         [0.3 0.4]]
    """
    x = jnp.where(jnp.isfinite(x), x, 0)
    # The square of a value above 1e19 is infinite in float32.
    scale = jnp.maximum(jnp.abs(x).max(axis=1, keepdims=True), 1)
    norms = scale * jnp.linalg.norm(x / scale, axis=1, keepdims=True)
    return x * (radius / jnp.maximum(norms, radius))


def difference_sums(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    centroids: Float[Array, "K D"],
    longest: Scalar,
    fuzzifier: Scalar | None = None,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Sums the clipped differences of the examples to their centroids.

    One example changes the sums by at most `longest` times its weight, and the counts
    by at most its weight, both in the L2 norm.

    Args:
        x: the examples of a client.
        weights: the weights of the examples, 0 at padding.
        centroids: the centroids.
        longest: largest length of a difference.
        fuzzifier: m > 1 divides an example over the clusters, with its memberships to
            the power m; None assigns it to the nearest centroid.

    Returns:
        The sums [K, D] and the weighted counts [K].

    Examples:
        >>> x, centroids = jnp.array([[0.0], [3.0], [9.5]]), jnp.array([[1.0], [9.0]])
        >>> sums, counts = difference_sums(x, jnp.ones(3), centroids, 1.5)
        >>> print(sums[:, 0], counts)  # -1 + 1.5, and 0.5
        [0.5 0.5] [2. 1.]
    """
    if fuzzifier is None:
        nearest = assign_nearest(x, centroids)
        members = nearest[None] == jnp.arange(len(centroids))[:, None]
        shares = members.astype(float) * weights[None]
        differences = clip_rows(x - centroids[nearest], longest)
        return matmul(shares, differences), shares.sum(axis=1)
    shares = memberships(squared_distances(x, centroids), fuzzifier) ** fuzzifier
    shares = shares * weights[None]

    def of_cluster(centroid, shares):
        return matmul(shares, clip_rows(x - centroid[None], longest))

    sums = jax.lax.map(lambda pair: of_cluster(*pair), (centroids, shares))
    return sums, shares.sum(axis=1)
