"""Local training of one client, beside a loop written plainly."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractDevice, AbstractMesh

from fcjax.federated import clients, training
from fcjax.nn import from_linen
from fcjax.types import Network

BATCH_SIZE = 4
AXES = ("vmap", "map")


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask):
        mask = None if mask is None else mask[:, None]
        # A bias before batch norm has no gradient but rounding, which Adam blows up.
        x = nn.Dense(5, use_bias=False)(x)
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
        return nn.Dense(1)(nn.tanh(norm(x, mask=mask)))[:, 0]


class Problem(NamedTuple):
    """Noisy regression: the noise makes the key of a step count."""

    network: Network
    x: jax.Array
    y: jax.Array
    variables: dict
    optimizer: optax.GradientTransformation

    def loss(self, key, variables, slots, mask):
        keys = clients.fold_in(key, len(slots))
        noise = jax.vmap(lambda k: jax.random.uniform(k, (3,)))(keys)
        x = self.x[slots] + 0.1 * noise
        outputs, variables = self.network.apply(variables, x, train=True, mask=mask)
        errors = (outputs - self.y[slots]) ** 2
        return jnp.sum(errors, where=mask) / mask.sum(), variables

    def client(self):
        """One whose optimiser has taken two steps."""
        opt_state = self.optimizer.init(self.variables["params"])
        for _ in range(2):
            _, opt_state = self.optimizer.update(self.variables["params"], opt_state)
        return clients.Client(self.variables, opt_state)


@pytest.fixture(scope="module")
def problem():
    x = jax.random.normal(jax.random.key(1), (11, 3))
    network = from_linen(MLP())
    variables = jax.jit(network.init)(jax.random.key(2), x)
    return Problem(network, x, jnp.sin(3 * x[:, 0]), variables, optax.adam(1e-2))


@pytest.fixture(scope="module")
def plain_step(problem):
    """A step on a batch without any mask."""

    @jax.jit
    def step(key, client, slots):
        params, statistics = client.variables["params"], client.variables["batch_stats"]

        def objective(params):
            keys = [jax.random.fold_in(key, i) for i in range(len(slots))]
            noise = jnp.stack([jax.random.uniform(k, (3,)) for k in keys])
            outputs, new = problem.network.apply(
                {"params": params, "batch_stats": statistics},
                problem.x[slots] + 0.1 * noise,
                train=True,
            )
            return jnp.mean((outputs - problem.y[slots]) ** 2), new["batch_stats"]

        of_loss = jax.value_and_grad(objective, has_aux=True)
        (value, statistics), gradient = of_loss(params)
        updates, opt_state = problem.optimizer.update(gradient, client.opt_state)
        params = optax.apply_updates(params, updates)
        variables = {"params": params, "batch_stats": statistics}
        return clients.Client(variables, opt_state), value

    return step


def plain_train(step, key, client, size, num_epochs):
    """Local training as Algorithm 1 of FedAvg says it: epochs, batches, a step each."""
    losses = []
    for epoch in range(num_epochs):
        order_key, step_key = jax.random.split(jax.random.fold_in(key, epoch))
        order = np.asarray(training.shuffle(order_key, jnp.ones(size, bool)))
        for i, start in enumerate(range(0, size, BATCH_SIZE)):
            slots = jnp.asarray(order[start : start + BATCH_SIZE])
            client, loss = step(jax.random.fold_in(step_key, i), client, slots)
            losses.append(float(loss))
    return client, np.mean(losses)


def assert_trees_close(actual, expected, **tolerances):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(one, other, **tolerances)


def first(size, padded=11):
    return jnp.arange(padded) < size


def descend(key, loss, client, size, *, rate=1.0, **options):
    """SGD on the first slots of a client, in one epoch of batches of 2 unless said."""
    options = {"batch_size": 2, "num_epochs": 1, **options}
    optimizer, mask = optax.sgd(rate), first(size)
    return training.train(key, client, loss, mask, optimizer=optimizer, **options)


def client_of(rate=1.0, **variables):
    variables = jax.tree.map(jnp.asarray, variables)
    return clients.Client(variables, optax.sgd(rate).init(variables["params"]))


# --- train


@pytest.mark.parametrize("axis", AXES)
def test_clients_of_all_sizes_train_as_the_plain_loop(key, problem, plain_step, axis):
    """Batches of 4, 4, 3; of 4, 4; of 4, 3; and of 3. What padding holds is far off.
    What follows a step sees its new parameters and statistics."""
    sizes, num_epochs, kept = (11, 8, 7, 3), 2, ("params", "batch_stats")
    masks = jnp.stack([first(size) for size in sizes])
    keys, client = clients.fold_in(key, len(sizes)), problem.client()

    def copy(variables):
        return {**variables, "copy": {k: variables[k] for k in kept}}

    def train(key, mask):
        x = jnp.where(mask[:, None], problem.x, 1e3)
        own = problem._replace(x=x, y=jnp.where(mask, problem.y, -1e3))
        return training.train(
            *(key, client._replace(variables=copy(client.variables)), own.loss, mask),
            optimizer=problem.optimizer,
            batch_size=BATCH_SIZE,
            num_epochs=num_epochs,
            after_step=copy,
        )

    trained, losses = jax.jit(
        lambda *of_all: clients.for_each(train, *of_all, axis=axis)
    )(keys, masks)
    for i, size in enumerate(sizes):
        expected, mean = plain_train(plain_step, keys[i], client, size, num_epochs)
        mine = jax.tree.map(lambda x, i=i: x[i], trained)
        followed = mine.variables.pop("copy")
        assert_trees_close(mine, expected, rtol=1e-6, atol=1e-6)
        assert_trees_close(followed, mine.variables, rtol=0, atol=0)
        np.testing.assert_allclose(losses[i], mean, rtol=1e-5)
        # Adam counts its steps: ceil(size / 4) in each epoch.
        assert mine.opt_state[0].count == 2 + num_epochs * -(-size // BATCH_SIZE)


@pytest.mark.parametrize("axis", AXES)
def test_an_epoch_visits_every_example_once_and_may_drop_a_short_last_batch(key, axis):
    """Of 11, 8, 7, 4, 3 and 0 examples in batches of 4. One without a full batch keeps
    the one it has; one without examples takes no step."""
    sizes, num_epochs, most = (11, 8, 7, 4, 3, 0), 2, 3

    def note(key, variables, slots, mask):
        step, visits = variables["step"], variables["visits"]
        visits = visits.at[step, slots].add(mask)
        return 0 * variables["params"], {"step": step + 1, "visits": visits}

    visits = jnp.zeros((num_epochs * most, 11), int)
    client = client_of(params=1.0, step=0, visits=visits)

    @partial(jax.jit, static_argnames="drop_last")
    def of_all(keys, sizes, drop_last):
        def one(key, size):
            options = {"num_epochs": num_epochs, "drop_last": drop_last}
            found, _ = descend(key, note, client, size, batch_size=4, **options)
            return found.variables

        return clients.for_each(one, keys, sizes, axis=axis)

    given = clients.fold_in(key, len(sizes)), jnp.array(sizes)
    whole, cut = (jax.device_get(of_all(*given, drop)) for drop in (False, True))
    np.testing.assert_array_equal(whole["step"], [6, 4, 4, 2, 2, 0])
    np.testing.assert_array_equal(cut["step"], [4, 4, 2, 2, 2, 0])
    epochs = [
        own[:steps].reshape(2, -1, 11)
        for own, steps in zip(whole["visits"], whole["step"], strict=True)
    ]
    for own, size in zip(epochs, sizes, strict=True):
        np.testing.assert_array_equal(own.sum(axis=1), [np.arange(11) < size] * 2)
    # No batch before the last is another for it.
    kept = cut["visits"][0, :4].reshape(2, 2, 11)
    np.testing.assert_array_equal(kept, epochs[0][:, :2])
    assert not np.array_equal(*epochs[0]), "both epochs have one order"


@pytest.mark.parametrize(
    ("size", "options", "start", "expected"),
    [
        (4, {"num_epochs": 2}, 0.0, (1 + 2 + 3 + 4) / 4),
        (5, {}, 0.0, 2.0),
        (5, {"drop_last": True}, 0.0, 1.5),
        (11, {"batch_size": 100}, 0.0, 1.0),  # cut to all that there are
        (3, {}, np.nan, np.nan),  # is not hidden
    ],
)
def test_the_loss_is_the_mean_of_the_steps_taken(key, size, options, start, expected):
    """The loss of a step is its number."""

    def loss(key, variables, slots, mask):
        step = variables["log"] + 1
        return variables["params"] * 0 + step, {**variables, "log": step}

    client = client_of(params=0.0, log=start)
    found = descend(key, loss, client, size, **options)[1]
    np.testing.assert_array_equal(found, expected)


# --- shuffle, batches, sizes


def test_shuffle_puts_true_examples_first_in_an_order_of_the_key(key):
    mask = first(6, 10)
    orders = [np.asarray(training.shuffle(k, mask)) for k in jax.random.split(key, 20)]
    for order in orders:
        assert sorted(order[:6]) == list(range(6))
        assert sorted(order[6:]) == list(range(6, 10))
    assert len({tuple(order[:6]) for order in orders}) > 15
    # Every example is first at some time.
    assert {order[0] for order in orders} == set(range(6))


@pytest.mark.parametrize("batch_size", [4, 5, 100])
def test_in_batches_is_the_direct_call(key, batch_size):
    pool = jax.random.normal(key, (20, 3))
    rows = jax.random.permutation(key, 20)[:12]
    lengths = []

    def encode(rows):
        lengths.append(len(rows))
        return jnp.stack([pool[rows].sum(axis=-1), rows.astype(float)], axis=-1)

    result = training.in_batches(encode, rows, batch_size=batch_size)
    assert set(lengths) == {min(batch_size, 12)}
    expected = np.stack([np.asarray(pool)[rows].sum(axis=-1), rows], axis=-1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_root_mean_square_by_hand():
    """(9 + 16 + 0 + 0 + 25) / 5 = 10, over leaves of different sizes."""
    weights = {"a": jnp.array([[3.0, 4.0], [0.0, 0.0]]), "b": jnp.array([-5.0])}
    np.testing.assert_allclose(training.root_mean_square(weights), 10**0.5, rtol=1e-6)


# --- after_step


def follow(variables):
    """A target that keeps three quarters of itself."""
    target = 0.75 * variables["target"] + 0.25 * variables["params"]
    return {**variables, "target": target}


def pull(key, variables, slots, mask):
    """Has the gradient w - target."""
    return (variables["params"] - variables["target"]) ** 2 / 2, variables


@pytest.mark.parametrize(
    ("after_step", "expected"),
    [
        # w = 4, 2.5 - 1 / 2 and 2.5 - 0.5625; target = 1, 1.375 and 1.03125 + 0.484375
        (follow, ([4, 2.5, 2.5, 1.9375], [1, 1.375, 1.375, 1.515625])),
        (None, ([4, 2, 2, 1], [0, 0, 0, 0])),
    ],
)
def test_a_target_follows_every_step_of_its_own_client_by_hand(
    key, after_step, expected
):
    """From w = 8 half the way to the target in each of one, two, two and three steps.
    Losses: 8 ** 2 / 2 = 32, then with the target at 1 that of 3, 3 ** 2 / 2."""
    options = {} if after_step is None else {"after_step": after_step}
    client = client_of(params=8.0, target=0.0)

    def train(size):
        return descend(key, pull, client, size, rate=0.5, **options)

    trained, losses = jax.jit(jax.vmap(train))(jnp.array([2, 3, 4, 6]))
    found = (trained.variables["params"], trained.variables["target"])
    np.testing.assert_array_equal(found, expected)
    second = 4.5 if after_step else 8
    np.testing.assert_array_equal(losses[:3], [32, *[(32 + second) / 2] * 2])


# --- spread


def test_spread_by_hand():
    """Of directions e1, -e1, e2, -e2: mean 0 and variance 1/2 a feature, D = 2."""
    z = jnp.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -2.0]])
    np.testing.assert_allclose(training.spread(z, first(4, 4)), 1, rtol=1e-6)
    # Of e1 and -e1 alone: deviations 1 and 0, of which the mean is 1/2.
    z = z.at[2:].set(jnp.nan)
    np.testing.assert_allclose(training.spread(z, first(2, 4)), 0.5**0.5, rtol=1e-6)


def test_slots_are_spread_evenly_also_where_a_product_is_no_int32():
    found = training.evenly_spaced_indices(first(70_000, 70_001), 32_768)
    np.testing.assert_array_equal(found, np.arange(32_768) * 70_000 // 32_768)


def test_for_an_accelerator_all_clients_take_as_many_steps_and_small_ones_stand_still():
    """Clients of 7, 4 and 1 of 7 rows, two epochs of batches of 3: a row is counted
    twice, and the mean of what 3, 2 and 1 steps count."""

    def counted_rows(mask):
        def step(key, seen, slots, counted):
            return seen.at[slots].add(counted), counted.sum()

        seen = jnp.zeros(7, int)
        options = {"batch_size": 3, "num_epochs": 2}
        return training.epochs(jax.random.key(0), seen, step, mask, **options)

    masks = jnp.stack([first(count, 7) for count in (7, 4, 1)])
    tpu = AbstractMesh((), (), abstract_device=AbstractDevice("tpu", None, "tpu"))
    with jax.sharding.use_abstract_mesh(tpu):
        program = jax.make_jaxpr(jax.vmap(counted_rows))(masks)
    assert "while[" not in str(program)
    seen, mean = jaxpr_as_fun(program)(masks)
    np.testing.assert_array_equal(seen, 2 * masks)
    np.testing.assert_allclose(mean, [7 / 3, 2, 1])
