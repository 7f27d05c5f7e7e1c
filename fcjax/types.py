"""Types that all modules share: data, states, stages and methods.

Axis letters in shapes: G runs of a grid, M clients, N examples per client, B examples
per batch, K clusters, D latent features, P examples in the pool, R rounds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fcjax.ragged import Ragged

PRNGKey = Key[Array, ""]
PyTree = Any
Scalar = float | Float[Array, ""]
"""A hyper-parameter that may be swept: a Python float or a traced scalar."""


@runtime_checkable
class Pool(Protocol):
    """All examples, [P, *F], as an array or as an object that is indexed like one.

    The objects are `fcjax.data.HostPool` and `fcjax.parallel.mesh.LocalPool`.

    Examples:
        >>> import jax.numpy as jnp
        >>> isinstance(jnp.zeros((3, 2)), Pool)
        True
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all examples, (P, *F)."""
        ...

    @property
    def dtype(self) -> Any:
        """The type of the values, uint8 for images."""
        ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Now(NamedTuple):
    """The number of the current round.

    Examples:
        >>> import jax.numpy as jnp
        >>> now = Now(jnp.int32(12), jnp.int32(2), is_evaluated=jnp.array(False))
        >>> int(now.round)
        12
    """

    round: Int[Array, "*G"]
    """Number of the round over all stages, from 0."""
    stage_round: Int[Array, "*G"]
    """Number of the round within its stage, from 0."""
    is_evaluated: Bool[Array, "*G"]
    """Whether the clusters are evaluated after the round."""


class Federation(NamedTuple):
    """The data as an algorithm sees them: examples, clients and participation.

    Labels are not part of it. An algorithm gets the federation of one run. The
    federations of a grid have a leading axis G on all fields but the pool.

    Examples:
        >>> import jax.numpy as jnp
        >>> federation = Federation(
        ...     pool=jnp.array([[0.0], [1.0], [2.0]]),
        ...     indices=jnp.array([[0, 1], [2, 2]]),
        ...     mask=jnp.array([[True, True], [True, False]]),
        ...     present=jnp.array([[True, True]]),
        ...     local_clusters=jnp.array([2, 1]),
        ... )
        >>> federation.pool[federation.indices].shape  # [M, N, *F]
        (2, 2, 1)
    """

    pool: Pool
    """All examples, [P, *F], shared by all runs of a grid. Images are uint8."""
    indices: Int[Array, "*G M N"]
    """Index into the pool of each client's examples. Smaller clients are padded by
    repeating their examples. For methods with `by_size`, it may be a
    `fcjax.ragged.Ragged`, and the mask, too."""
    mask: Bool[Array, "*G M N"]
    """True for the examples of a client, False for padding."""
    present: Bool[Array, "*G R M"]
    """The participating clients of each round. The last row also applies to all further
    rounds. If the clients are spread over devices, every device has the whole array,
    see `server.participants`."""
    local_clusters: Int[Array, "*G M"]
    """Number of clusters of each client, for methods with local clusterings."""
    now: Now = ()  # pyright: ignore[reportAssignmentType]
    """The current round; () outside of rounds."""


class Grid(NamedTuple):
    """The inputs of G runs.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> rows = jnp.zeros((3, 2, 1), int)  # 3 runs, 2 clients, 1 example each
        >>> grid = Grid(
        ...     hyper={"model_weight": jnp.array([0.0, 0.01, 0.1])},
        ...     keys=jax.vmap(jax.random.key)(jnp.arange(3)),
        ...     federations=Federation(
        ...         pool=jnp.zeros((1, 4)),
        ...         indices=rows,
        ...         mask=rows == 0,
        ...         present=jnp.ones((3, 1, 2), bool),
        ...         local_clusters=jnp.ones((3, 2), int),
        ...     ),
        ... )
        >>> grid.keys.shape
        (3,)
    """

    hyper: PyTree
    """The swept hyper-parameters, [G, ...]."""
    keys: Key[Array, "G"]
    """The random key of each run."""
    federations: Federation
    """The data of each run: one common pool, and the other fields [G, ...]."""


class Network(NamedTuple):
    """A neural network as a pair of pure functions.

    The functions are `init(key, x) -> variables` and `apply(variables, x, *, train,
    mask=None) -> (outputs, variables)`. x is [B, *F]. `mask`, bool [B], selects the
    examples for batch statistics. `variables` holds parameters and batch statistics.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> identity = Network(
        ...     init=lambda key, x: {"params": {}},
        ...     apply=lambda variables, x, *, train, mask=None: (x, variables),
        ... )
        >>> x = jnp.ones((3, 2))
        >>> identity.apply(identity.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 2)
    """

    init: Callable[..., PyTree]
    apply: Callable[..., tuple[Any, PyTree]]


class State(NamedTuple):
    """The state of a method between two rounds, split into server and clients.

    Examples:
        >>> import jax.numpy as jnp
        >>> state = State(server=jnp.float32(0.5), clients={"own": jnp.zeros((3, 2))})
        >>> state.clients["own"].shape  # [M, ...]
        (3, 2)
    """

    server: PyTree
    """The state of the server, replicated on all devices of a run."""
    clients: PyTree = ()
    """The state of the clients: every leaf is [M, ...]."""


class Stage(NamedTuple):
    """One phase of a method, as in the algorithm box of its paper: rounds of one kind.

    Examples:
        >>> import jax.numpy as jnp
        >>> counting = Stage(
        ...     "counting",
        ...     begin=lambda key, state, federation: state,
        ...     round=lambda key, state, federation: (State(state.server + 1), {}),
        ...     num_rounds=3,
        ...     done=lambda state: jnp.array(False),
        ... )
        >>> counting.round(None, State(0), None)[0].server
        1
    """

    name: str
    """Name, unique within the method. The random keys of the rounds derive from it."""
    begin: Callable[[PRNGKey, State, Federation], State]
    """(key, state, federation) -> the first state of this stage."""
    round: Callable[[PRNGKey, State, Federation], tuple[State, dict[str, Array]]]
    """(key, state, federation) -> (state, metrics). The function is pure and works
    under `jit` and `vmap`. The metrics are values of the server. Stages with the same
    function are compiled once."""
    num_rounds: int
    """The number of rounds, an upper bound if the stage can end early."""
    done: Callable[[State], Bool[Array, ""]]
    """(state) -> whether the run has finished the stage, from the server's state."""


class Communities(NamedTuple):
    """Groups of clusters of different clients that are considered the same cluster."""

    of_cluster: Int[Array, "M K"]
    """The community of each cluster of each client, numbered as in `assign`; -1 without
    a community. Two clusters of one client may have the same community."""
    edges: Bool[Array, "M K M K"]
    """The association graph of the last round: symmetric, without edges within a
    client."""
    clusters: Int[Array, "M N"]
    """The clusters of the graph: the assignment before the last round changed it."""


class Uploads(NamedTuple):
    """The last uploads of the clients, as points that the server can compute.

    Examples:
        >>> import jax.numpy as jnp
        >>> uploads = Uploads(jnp.array([[[0.5], [jnp.nan]]]), jnp.array([[2, 0]]))
        >>> uploads.points.shape  # one client, two centroids of one feature
        (1, 2, 1)
    """

    points: Float[Array | np.ndarray, "M L D"]
    """Centroids in the space of `FederatedClustering.embed`, or synthetic examples as
    flat rows, see `fcjax.data.augment.as_rows` without scaling to unit length. NaN
    where a client has uploaded no point."""
    members: Int[Array | np.ndarray, "M L"]
    """Number of the client's examples in the cluster of each centroid. -1 for all
    points if they are synthetic examples."""


class FederatedClustering(NamedTuple):
    """A federated clustering method, built by a function of `fcjax.algorithms`.

    Examples:
        >>> import jax.numpy as jnp
        >>> all_in_one = FederatedClustering(
        ...     init=lambda key, federation: State(server=()),
        ...     stages=(),
        ...     embed=lambda state, federation: federation.pool[federation.indices],
        ...     assign=lambda state, federation: jnp.zeros_like(federation.indices),
        ... )
        >>> all_in_one.stages
        ()
    """

    init: Callable[[PRNGKey, Federation], State]
    """(key, federation) -> the first state."""
    stages: tuple[Stage, ...]
    """The stages, which are run in this order."""
    embed: Callable[[State, Federation], Float[Array, "M N D"] | Ragged]
    """(state, federation) -> the latent representation of every example."""
    assign: Callable[[State, Federation], Int[Array, "M N"] | Ragged]
    """(state, federation) -> the cluster of every example."""
    communities: Callable[[State], Communities] | None = None
    """(state) -> the communities of the clients' clusters; None if the method has no
    communities."""
    by_size: bool = False
    """Whether the method accepts size classes of clients, with `Ragged` indices. Such a
    method uses the indices only within `clients.for_each`."""
    uploads: Callable[[PRNGKey, State, Federation], Uploads] | None = None
    """(key, final state, federation) -> the clients' last uploads, for reports on
    privacy; None if the clients upload neither centroids nor synthetic examples."""
