"""Examples from independent linear subspaces, which self-expression recovers, and the
objective of deep subspace networks written out plainly."""

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.algorithms.subspace import SubspaceNetwork, dense
from fcjax.cluster import subspace_affinity, symmetric_affinity
from fcjax.evaluation import accuracy
from fcjax.models.autoencoder import AutoEncoder
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix

NUM_CLUSTERS, DIMENSION, NUM_FEATURES = 3, 2, 30
SIZES = (10, 8, 10, 9)  # of each subspace on the clients
SEEDS = tuple(range(5))


def independent_subspaces(seed):
    """A federation, and the labels [M, N] of its slots.

    Bases are random: subspaces meet in the origin alone, but are not orthogonal.
    Coefficients have a mean, so that an example has few opposites: the affinity of
    DSC-Net takes these for unlike. Examples are float, which the library takes as they
    are: a shift into [0, 1] would leave no subspace.
    """
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.normal(size=(NUM_CLUSTERS, NUM_FEATURES, DIMENSION)))[0]
    of_client = [np.repeat(np.arange(NUM_CLUSTERS), n) for n in SIZES]
    labels = np.concatenate([rng.permutation(own) for own in of_client])
    coefficients = rng.normal(2, size=(len(labels), DIMENSION))
    pool = np.einsum("nfd,nd->nf", bases[labels], coefficients)
    ends = NUM_CLUSTERS * np.cumsum(SIZES)
    rows = np.split(np.arange(len(labels)), ends[:-1])
    federation = federate(pool, rows, num_clusters=NUM_CLUSTERS)
    return federation, labels[np.asarray(federation.indices)]


def plain_affinity(coefficients, mask):
    del mask
    return symmetric_affinity(coefficients)


def processed_affinity(coefficients, mask):
    return subspace_affinity(
        coefficients,
        NUM_CLUSTERS,
        keep=0.97,
        dimension=DIMENSION + 1,
        power=2.0,
        mask=mask,
    )


AFFINITIES = {"plain": plain_affinity, "processed": processed_affinity}


def wide_network() -> SubspaceNetwork:
    """A linear one that finds subspaces.

    Without biases, as codes would leave their subspaces. Codes are longer than examples
    so that coefficients, whose curvature they are, come to rest before the codes have
    shrunk: that is how the objective evades self-expression in the end.
    """
    autoencoder = AutoEncoder(matrix(128), matrix(NUM_FEATURES))
    return SubspaceNetwork(
        autoencoder, dense(), penalty_weight=1.0, expression_weight=10.0
    )


def run(method, key, federation):
    """The state after all stages."""
    state = method.init(key, federation)
    for number, stage in enumerate(method.stages):
        stage_key = jax.random.fold_in(key, number)
        state = stage.begin(stage_key, state, federation)

        def one(state, i, round=stage.round, key=stage_key):
            return round(jax.random.fold_in(key, i), state, federation)

        state, _ = jax.lax.scan(one, state, jnp.arange(stage.num_rounds))
    return state


def worst_accuracies(build, weights) -> dict[tuple[str, float], float]:
    """By affinity and weight, the least ACC of any client with any seed; clusters of
    each client are matched by themselves.

    Args:
        build: (affinity, weight) -> the method.
        weights: of what is traced as a scalar.
    """
    federations, labels = zip(*map(independent_subspaces, SEEDS), strict=True)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *federations)
    mask = np.asarray(federations[0].mask)

    @jax.jit
    def clusters(keys, federations, weight):
        def one(key, federation):
            state = run(build(plain_affinity, weight), key, federation)
            return {
                name: build(affinity, weight).assign(state, federation)
                for name, affinity in AFFINITIES.items()
            }

        return jax.vmap(one)(keys, federations)

    keys = jax.vmap(jax.random.key)(jnp.array(SEEDS))
    worst = {}
    for weight in weights:
        found = jax.device_get(clusters(keys, stacked, jnp.float32(weight)))
        for name, ids in found.items():
            worst[name, weight] = min(
                accuracy(labels[seed][i][own], ids[seed, i][own])
                for seed in range(len(SEEDS))
                for i, own in enumerate(mask)
            )
    return worst


def equation_8(
    parts, x, adjacency, *, penalty, expression, locality=0.0, alpha=1.0, beta=1.0
):
    """FDSC's objective without halves, of a client whose networks are one matrix each
    and whose examples all count; C expresses rows."""
    c = parts["coefficients"] * (1 - np.eye(len(x), dtype=np.float32))
    z = x @ parts["encoder"]
    return (
        jnp.sum((x - c @ z @ parts["decoder"]) ** 2)
        + penalty * jnp.sum(c**2)
        + expression * jnp.sum((z - c @ z) ** 2)
        + locality * jnp.sum((alpha * adjacency - beta * c) ** 2)
    )


def descend(parts, velocity, loss, *, rate, momentum, num_steps):
    """Steps of gradient descent with momentum: the parts, the velocity, and the mean
    loss before the steps."""
    step = jax.jit(jax.value_and_grad(loss))
    values = []
    for _ in range(num_steps):
        value, gradient = step(parts)
        values.append(float(value))
        velocity = {k: gradient[k] + momentum * velocity[k] for k in parts}
        parts = {k: parts[k] - rate * velocity[k] for k in parts}
    return parts, velocity, np.mean(values)
