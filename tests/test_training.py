"""Local training of one client, beside a loop written plainly."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from fcjax import clients, training
from fcjax.models import from_linen
from fcjax.types import Network

BATCH_SIZE = 4
AXES = ("vmap", "map", "unroll")


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
        opt_state = self.optimizer.init(self.variables["params"])
        return clients.Client(self.variables, opt_state)

    def train(self, key, client, mask, *, num_epochs=2, batch_size=BATCH_SIZE):
        return training.train(
            key,
            client,
            self.loss,
            mask,
            optimizer=self.optimizer,
            batch_size=batch_size,
            num_epochs=num_epochs,
        )


@pytest.fixture(scope="module")
def problem():
    x = jax.random.normal(jax.random.key(1), (11, 3))
    network = from_linen(MLP())
    variables = jax.jit(network.init)(jax.random.key(2), x)
    return Problem(network, x, jnp.sin(3 * x[:, 0]), variables, optax.adam(1e-2))


@pytest.fixture(scope="module")
def train(problem):
    """(key, client, mask) -> (client, loss), compiled once for all tests."""
    return jax.jit(problem.train, static_argnames="batch_size")


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

        (value, statistics), gradient = jax.value_and_grad(objective, has_aux=True)(
            params
        )
        updates, opt_state = problem.optimizer.update(gradient, client.opt_state)
        variables = {
            "params": optax.apply_updates(params, updates),
            "batch_stats": statistics,
        }
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
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, **tolerances)


def largest_difference(one, other):
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return max(float(jnp.abs(a - b).max()) for a, b in pairs)


def first(size, padded=11):
    return jnp.arange(padded) < size


def descend(key, loss, client, size, *, padded=11, rate=1.0, **options):
    """SGD on the first slots of a client, in one epoch of batches of 2 unless said."""
    options = {"batch_size": 2, "num_epochs": 1, **options}
    optimizer, mask = optax.sgd(rate), first(size, padded)
    return training.train(key, client, loss, mask, optimizer=optimizer, **options)


def client_of(rate=1.0, **variables):
    variables = jax.tree.map(jnp.asarray, variables)
    return clients.Client(variables, optax.sgd(rate).init(variables["params"]))


# --- train


@pytest.mark.parametrize("axis", AXES)
def test_clients_of_all_sizes_train_as_the_plain_loop(key, problem, plain_step, axis):
    """Batches of 4, 4, 3; of 4, 4; of 4, 3; and of 3. What padding holds is far off."""
    sizes, num_epochs = (11, 8, 7, 3), 2
    masks = jnp.stack([first(size) for size in sizes])
    keys = clients.fold_in(key, len(sizes))

    def train(key, mask):
        x = jnp.where(mask[:, None], problem.x, 1e3)
        own = problem._replace(x=x, y=jnp.where(mask, problem.y, -1e3))
        return own.train(key, own.client(), mask)

    trained, losses = jax.jit(
        lambda *of_all: clients.for_each(train, *of_all, axis=axis)
    )(keys, masks)
    for i, size in enumerate(sizes):
        expected, mean = plain_train(
            plain_step, keys[i], problem.client(), size, num_epochs
        )
        mine = jax.tree.map(lambda x, i=i: x[i], trained)
        assert_trees_close(mine, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(losses[i], mean, rtol=1e-5)
        # Adam counts its steps: ceil(size / 4) in each epoch.
        assert mine.opt_state[0].count == num_epochs * -(-size // BATCH_SIZE)
        assert largest_difference(mine.variables, problem.variables) > 1e-2


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

    def train(key, mask, drop_last):
        return training.train(
            *(key, client, note, mask),
            optimizer=optax.sgd(1.0),
            batch_size=4,
            num_epochs=num_epochs,
            drop_last=drop_last,
        )[0].variables

    @partial(jax.jit, static_argnames="drop_last")
    def of_all(keys, masks, drop_last):
        one = partial(train, drop_last=drop_last)
        return clients.for_each(one, keys, masks, axis=axis)

    keys = clients.fold_in(key, len(sizes))
    masks = jnp.stack([first(size) for size in sizes])
    whole, cut = (jax.device_get(of_all(keys, masks, drop)) for drop in (False, True))
    np.testing.assert_array_equal(whole["step"], [6, 4, 4, 2, 2, 0])
    np.testing.assert_array_equal(cut["step"], [4, 4, 2, 2, 2, 0])
    for i, size in enumerate(sizes):
        num_all, num_kept = whole["step"][i] // 2, cut["step"][i] // 2
        own = whole["visits"][i, : 2 * num_all].reshape(2, num_all, 11)
        kept = cut["visits"][i, : 2 * num_kept].reshape(2, num_kept, 11)
        np.testing.assert_array_equal(own.sum(axis=1), [np.arange(11) < size] * 2)
        # No batch before the last is another for it.
        np.testing.assert_array_equal(kept, own[:, :num_kept])
    one, other = whole["visits"][0].reshape(num_epochs, most, 11)
    assert not np.array_equal(one, other), "both epochs have one order"


@pytest.mark.parametrize(
    ("size", "num_epochs", "drop_last", "expected"),
    [(4, 2, False, (1 + 2 + 3 + 4) / 4), (5, 1, False, 2.0), (5, 1, True, 1.5)],
)
def test_the_loss_is_the_mean_of_the_steps_taken(
    key, size, num_epochs, drop_last, expected
):
    """The loss of a step is its number."""

    def loss(key, variables, slots, mask):
        step = variables["log"] + 1
        return variables["params"] * 0 + step, {**variables, "log": step}

    client = client_of(params=0.0, log=0.0)
    options = {"num_epochs": num_epochs, "drop_last": drop_last}
    assert descend(key, loss, client, size, **options)[1] == expected


def test_a_batch_longer_than_the_client_is_the_whole_client(key, problem, train):
    cut, loss = train(key, problem.client(), first(11), batch_size=100)
    whole, whole_loss = train(key, problem.client(), first(11), batch_size=11)
    assert_trees_close(cut, whole, rtol=0, atol=0)
    assert loss == whole_loss
    assert cut.opt_state[0].count == 2


def test_the_optimiser_goes_on_where_it_stood(key, problem, train, plain_step):
    """Two calls with the state kept are the plain loop; a fresh state is not."""
    keys, mask = jax.random.split(key), first(11)
    once, _ = train(keys[0], problem.client(), mask)
    twice, _ = train(keys[1], once, mask)
    fresh = once._replace(opt_state=problem.client().opt_state)
    restarted, _ = train(keys[1], fresh, mask)

    expected = problem.client()
    for one in keys:
        expected, _ = plain_train(plain_step, one, expected, 11, num_epochs=2)
    assert_trees_close(twice, expected, rtol=1e-6, atol=2e-6)
    assert twice.opt_state[0].count == 12
    assert largest_difference(twice.variables, restarted.variables) > 1e-3


def test_a_nan_loss_is_reported(key):
    def loss(key, variables, slots, mask):
        return variables["params"] * jnp.nan, variables

    trained, mean = descend(key, loss, client_of(params=1.0), 3)
    assert np.isnan(mean)
    assert np.isnan(trained.variables["params"])


def test_a_batch_of_nobody_reaches_no_client(key):
    """It divides 0 by 0."""

    def loss(key, variables, slots, mask):
        return jnp.sum(variables["params"] * mask) / mask.sum(), variables

    trained, mean = descend(key, loss, client_of(params=1.0), 2, rate=0.5)
    assert trained.variables["params"] == 0.5
    assert mean == 1


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


@pytest.mark.parametrize("padded", [7, 8, 16, 100])
def test_padding_does_not_change_the_order(key, padded):
    alone = training.shuffle(key, jnp.ones(6, bool))
    longer = training.shuffle(key, first(6, padded))
    np.testing.assert_array_equal(longer[:6], alone)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 11, 12, 100])
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


PULLED = {"params": 8.0, "target": 0.0}


@pytest.mark.parametrize(
    ("size", "num_epochs", "expected", "loss"),
    [
        (2, 1, (4, 1), 32),  # w = 8 - 8 / 2, target = 4 / 4
        (4, 1, (2.5, 1.375), (32 + 4.5) / 2),  # w = 4 - 3 / 2, target = 0.75 + 0.625
        (3, 1, (2.5, 1.375), (32 + 4.5) / 2),
        (2, 2, (2.5, 1.375), (32 + 4.5) / 2),
    ],
)
def test_a_target_follows_every_step_by_hand(key, size, num_epochs, expected, loss):
    options = {"rate": 0.5, "num_epochs": num_epochs, "after_step": follow}
    trained, mean = descend(key, pull, client_of(**PULLED), size, **options)
    assert tuple(trained.variables.values()) == expected
    assert mean == loss


def test_without_it_the_target_stays(key):
    """w = 8, 4, 2: half the way to 0 in each step."""
    trained, _ = descend(key, pull, client_of(**PULLED), 4, rate=0.5)
    assert trained.variables == {"params": 2.0, "target": 0.0}


@pytest.mark.parametrize("axis", AXES)
def test_the_target_of_a_short_client_stands_still_with_it(key, axis):
    """Of one, two and three steps side by side; the third: w = 2.5 - 0.5625 = 1.9375,
    target = 1.03125 + 0.484375."""

    def train(mask):
        return training.train(
            *(key, client_of(**PULLED), pull, mask),
            optimizer=optax.sgd(0.5),
            batch_size=2,
            num_epochs=1,
            after_step=follow,
        )[0].variables

    masks = jnp.stack([first(size) for size in (2, 3, 6)])
    trained = jax.jit(lambda m: clients.for_each(train, m, axis=axis))(masks)
    np.testing.assert_array_equal(trained["params"], [4, 2.5, 1.9375])
    np.testing.assert_array_equal(trained["target"], [1, 1.375, 1.515625])


def test_it_sees_the_new_parameters_and_statistics_of_a_step(key, problem):
    """Adam and batch norm go on as without it; a copy is that of the last step."""

    def copy(variables):
        return {**variables, "copy": {k: v for k, v in variables.items() if k in kept}}

    kept = ("params", "batch_stats")
    client = problem.client()
    given = client._replace(variables=copy(client.variables))

    def train(client, **options):
        return training.train(
            key,
            client,
            problem.loss,
            first(11),
            optimizer=problem.optimizer,
            batch_size=BATCH_SIZE,
            num_epochs=1,
            **options,
        )

    plain, loss = jax.jit(train)(client)
    copied, same = jax.jit(partial(train, after_step=copy))(given)
    own = {k: copied.variables[k] for k in kept}
    assert_trees_close(own, plain.variables, rtol=1e-6, atol=1e-6)
    assert_trees_close(copied.opt_state, plain.opt_state, rtol=1e-6, atol=1e-6)
    assert_trees_close(copied.variables["copy"], own, rtol=0, atol=0)
    np.testing.assert_allclose(same, loss, rtol=1e-6)


# --- spread


def test_spread_by_hand():
    """Of directions e1, -e1, e2, -e2: mean 0 and variance 1/2 a feature, D = 2."""
    z = jnp.array([[3.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -2.0]])
    np.testing.assert_allclose(training.spread(z, first(4, 4)), 1, rtol=1e-6)
    # Of e1 and -e1 alone: deviations 1 and 0, of which the mean is 1/2.
    np.testing.assert_allclose(training.spread(z, first(2, 4)), 0.5**0.5, rtol=1e-6)
    z = z.at[2:].set(jnp.nan)
    np.testing.assert_allclose(training.spread(z, first(2, 4)), 0.5**0.5, rtol=1e-6)


def test_spread_of_random_directions_is_one_and_of_one_direction_zero(key):
    z = jax.random.normal(key, (2000, 16))
    np.testing.assert_allclose(training.spread(z, first(2000, 2000)), 1, rtol=0.01)
    lengths = jnp.arange(1.0, 6.0)[:, None]
    collapsed = lengths * jnp.array([[0.6, 0.8, -2.0]])
    np.testing.assert_allclose(training.spread(collapsed, first(5, 5)), 0, atol=1e-6)
