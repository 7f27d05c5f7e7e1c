"""The types that every module shares.

Axis letters in shapes: G runs of a grid, M clients, N examples a client, B examples
a batch, K clusters, D latent features, P examples in the pool, R rounds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

from fcjax.ragged import Ragged

PRNGKey = Key[Array, ""]
PyTree = Any
Scalar = float | Float[Array, ""]
"""A hyper-parameter that may be swept: a Python float or a traced scalar."""


@runtime_checkable
class Pool(Protocol):
    """All examples, [P, *F]: an array, or what gives rows of them in its place,
    `fcjax.data.HostPool` or `fcjax.parallel.mesh.LocalPool`.

    Examples:
        >>> import jax.numpy as jnp
        >>> isinstance(jnp.zeros((3, 2)), Pool)
        True
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Now(NamedTuple):
    """The round that is being run, as the engine counts it.

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
    """All that an algorithm ever sees of the data; labels are not in it.

    An algorithm has that of one run; a grid of them has a leading axis G on all but the
    pool.

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
    """[P, *F]: stored once and shared by the whole grid; images stay uint8."""
    indices: Int[Array, "*G M N"]
    """Rows of the pool that each client holds; a short client repeats its own. Where
    sizes differ much it is `fcjax.ragged.Ragged`, for methods that are `by_size`, and
    so is the mask."""
    mask: Bool[Array, "*G M N"]
    """True at a client's own examples, False where one of them is repeated."""
    present: Bool[Array, "*G R M"]
    """Who answers in each round; the last row stands for all further rounds. Where the
    clients are spread over devices, each knows it of all: see `server.participants`."""
    local_clusters: Int[Array, "*G M"]
    """How many clusters each client looks for, where a method needs it."""
    now: Now = ()  # pyright: ignore[reportAssignmentType]
    """The round that is being run; () outside of rounds."""


class Grid(NamedTuple):
    """The inputs of G runs.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> rows = jnp.zeros((3, 2, 1), int)  # three runs, two clients of an example
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
    """[G, ...], what is swept."""
    keys: Key[Array, "G"]
    federations: Federation
    """One pool for all; the other fields [G, ...]."""


class Network(NamedTuple):
    """A neural network as a pair of pure functions.

    `init(key, x) -> variables` and `apply(variables, x, *, train, mask=None) ->
    (outputs, variables)`, where x is [B, *F] and `mask` [B] marks the examples that
    count in batch statistics. `variables` holds parameters and batch statistics.

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
    """What a method keeps from round to round, and whose it is.

    Examples:
        >>> import jax.numpy as jnp
        >>> state = State(server=jnp.float32(0.5), clients={"own": jnp.zeros((3, 2))})
        >>> state.clients["own"].shape  # [M, ...]
        (3, 2)
    """

    server: PyTree
    """One value, which all devices know alike."""
    clients: PyTree = ()
    """What each client keeps: every leaf is [M, ...]."""


class Stage(NamedTuple):
    """One phase of a paper's algorithm box.

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
    """One of its own within the method: the keys of its rounds come from it."""
    begin: Callable[[PRNGKey, State, Federation], State]
    """(key, state, federation) -> the state of this stage."""
    round: Callable[[PRNGKey, State, Federation], tuple[State, dict[str, Array]]]
    """(key, state, federation) -> (state, metrics); pure, jittable, vmappable. Metrics
    are the server's. Stages that have the same are compiled once."""
    num_rounds: int
    """An upper bound where the stage can end early."""
    done: Callable[[State], Bool[Array, ""]]
    """(state) -> whether this run has finished the stage, as the server sees it."""


class Communities(NamedTuple):
    """Which clusters of different clients were found to be the same."""

    of_cluster: Int[Array, "M K"]
    """The community of each client's cluster, as `assign` numbers them; -1 where it has
    none. Two clusters of a client may share one."""
    edges: Bool[Array, "M K M K"]
    """The association graph of the last round, symmetric; no edges within a client."""
    clusters: Int[Array, "M N"]
    """The clusters that it is a graph of: `assign` before the round changed them."""


class FederatedClustering(NamedTuple):
    """A federated clustering method, as built by one of `fcjax.algorithms`.

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
    """(key, federation) -> state."""
    stages: tuple[Stage, ...]
    embed: Callable[[State, Federation], Float[Array, "M N D"] | Ragged]
    """(state, federation) -> the latent representation of every example."""
    assign: Callable[[State, Federation], Int[Array, "M N"] | Ragged]
    """(state, federation) -> the cluster of every example."""
    communities: Callable[[State], Communities] | None = None
    """(state) -> which clients' clusters are the same, where a method that clusters on
    clients finds that out."""
    by_size: bool = False
    """Whether it takes clients padded by size classes, `Federation.indices` that are
    ragged: all that it does with them is within `clients.for_each`."""
