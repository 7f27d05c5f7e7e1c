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
AXES = ("vmap", "map", "unroll", None)


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
    """Compiled once for all tests: (key, client, mask, data) -> (client, loss)."""

    def train(key, client, mask, data=(problem.x, problem.y), *, batch_size=BATCH_SIZE):
        x, y = data
        return problem._replace(x=x, y=y).train(
            key, client, mask, batch_size=batch_size
        )

    return jax.jit(train, static_argnames="batch_size")


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


def recorder(num_slots, num_steps):
    """A loss without parameters to speak of, and a client that notes its visits."""

    def loss(key, variables, slots, mask):
        step, visits = variables["log"]["step"], variables["log"]["visits"]
        log = {"step": step + 1, "visits": visits.at[step, slots].add(mask)}
        return variables["params"] * 0.0, {"params": variables["params"], "log": log}

    visits = jnp.zeros((num_steps, num_slots), int)
    variables = {"params": jnp.ones(()), "log": {"step": 0, "visits": visits}}
    variables = jax.tree.map(jnp.asarray, variables)
    return loss, clients.Client(variables, optax.sgd(0.1).init(jnp.ones(())))


# --- train


@pytest.mark.parametrize("size", [11, 8])
def test_train_is_the_plain_loop(key, problem, train, plain_step, size):
    """Batches of 4, 4, 3 and of 4, 4, with nothing padded."""
    client, loss = train(key, problem.client(), first(size, size))
    expected, mean = plain_train(plain_step, key, problem.client(), size, num_epochs=2)
    assert_trees_close(client, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(loss, mean, rtol=1e-5)
    assert largest_difference(client.variables, problem.variables) > 1e-2


@pytest.mark.parametrize("axis", AXES[:3])
def test_short_clients_train_as_they_would_alone(key, problem, plain_step, axis):
    sizes, num_epochs = (11, 7, 3), 2
    masks = jnp.stack([first(size) for size in sizes])
    keys = clients.fold_in(key, len(sizes))

    @jax.jit
    def train_all(keys, masks):
        return clients.for_each(
            lambda key, mask: problem.train(key, problem.client(), mask),
            keys,
            masks,
            axis=axis,
        )

    trained, losses = train_all(keys, masks)
    for i, size in enumerate(sizes):
        expected, mean = plain_train(
            plain_step, keys[i], problem.client(), size, num_epochs
        )
        mine = jax.tree.map(lambda x, i=i: x[i], trained)
        assert_trees_close(mine, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(losses[i], mean, rtol=1e-5)
        # Adam counts its steps: ceil(size / 4) in each epoch.
        assert mine.opt_state[0].count == num_epochs * -(-size // BATCH_SIZE)


@pytest.mark.parametrize("size", [7, 3])
def test_padding_changes_no_result(key, problem, train, size):
    padded, loss = train(key, problem.client(), first(size))
    alone, alone_loss = train(key, problem.client(), first(size, size))
    assert_trees_close(padded, alone, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(loss, alone_loss, rtol=1e-5)


def test_what_padded_slots_hold_changes_nothing(key, problem, train):
    spoilt = (problem.x.at[7:].set(1e3), problem.y.at[7:].set(-1e3))
    clean, loss = train(key, problem.client(), first(7))
    other, other_loss = train(key, problem.client(), first(7), spoilt)
    assert_trees_close(other, clean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other_loss, loss, rtol=1e-6)


def test_every_epoch_visits_every_example_once_in_a_new_order(key):
    loss, client = recorder(num_slots=9, num_steps=6)
    trained, _ = training.train(
        key,
        client,
        loss,
        first(7, 9),
        optimizer=optax.sgd(0.1),
        batch_size=3,
        num_epochs=2,
    )
    log = trained.variables["log"]
    visits = np.asarray(log["visits"])
    assert log["step"] == 6
    np.testing.assert_array_equal(visits.sum(axis=1), [3, 3, 1, 3, 3, 1])
    for epoch in (visits[:3], visits[3:]):
        np.testing.assert_array_equal(epoch.sum(axis=0), [1] * 7 + [0] * 2)
    assert not np.array_equal(visits[:3], visits[3:])


@pytest.mark.parametrize(
    ("drop_last", "lengths"), [(False, [128] * 6 + [32]), (True, [128] * 6)]
)
def test_a_short_last_batch_is_kept_or_dropped(key, drop_last, lengths):
    """800 = 6 x 128 + 32; what is dropped is of another 32 in the second epoch."""
    num_steps = len(lengths)
    loss, client = recorder(num_slots=800, num_steps=2 * num_steps)
    trained, _ = training.train(
        key,
        client,
        loss,
        jnp.ones(800, bool),
        optimizer=optax.sgd(0.1),
        batch_size=128,
        num_epochs=2,
        drop_last=drop_last,
    )
    log = trained.variables["log"]
    assert log["step"] == 2 * num_steps
    visits = np.asarray(log["visits"])
    np.testing.assert_array_equal(visits.sum(axis=1), 2 * lengths)
    first, second = visits[:num_steps].sum(axis=0), visits[num_steps:].sum(axis=0)
    assert first.max() == second.max() == 1
    assert np.array_equal(first, second) == (not drop_last)


def test_dropping_the_last_batch_changes_none_before_it(key):
    """Batches of 4, 4 (and 3), in the order of the key."""
    logs = []
    for drop_last in (False, True):
        loss, client = recorder(num_slots=11, num_steps=3)
        trained, _ = training.train(
            key,
            client,
            loss,
            first(11),
            optimizer=optax.sgd(0.1),
            batch_size=4,
            num_epochs=1,
            drop_last=drop_last,
        )
        logs.append(np.asarray(trained.variables["log"]["visits"]))
    whole, dropped = logs
    assert whole[2].sum() == 3
    np.testing.assert_array_equal(dropped[:2], whole[:2])
    assert not dropped[2].any()


@pytest.mark.parametrize("axis", AXES[:3])
def test_every_client_drops_its_own_last_batch(key, axis):
    """Of 11, 8, 7, 4, 3 and 0 examples in batches of 4. One without a full batch keeps
    the one it has; one without examples takes no step."""
    sizes, batches = (11, 8, 7, 4, 3, 0), (2, 2, 1, 1, 1, 0)
    seen = (8, 8, 4, 4, 3, 0)
    loss, client = recorder(num_slots=11, num_steps=4)
    masks = jnp.stack([first(size) for size in sizes])

    @jax.jit
    def train_all(keys, masks):
        return clients.for_each(
            lambda key, mask: training.train(
                key,
                client,
                loss,
                mask,
                optimizer=optax.sgd(0.1),
                batch_size=4,
                num_epochs=2,
                drop_last=True,
            ),
            keys,
            masks,
            axis=axis,
        )

    trained, _ = train_all(clients.fold_in(key, len(sizes)), masks)
    log = trained.variables["log"]
    np.testing.assert_array_equal(log["step"], [2 * n for n in batches])
    for visits, n, count in zip(np.asarray(log["visits"]), batches, seen, strict=True):
        for epoch in (visits[:n], visits[n : 2 * n]):
            assert epoch.sum() == count
            assert epoch.sum(axis=0).max(initial=0) <= 1


def test_the_mean_loss_is_over_the_steps_that_were_taken(key):
    """Losses 1 and 2 of two full batches; a third of one example would have been 3."""

    def loss(key, variables, slots, mask):
        step = variables["log"] + 1
        return variables["params"] * 0 + step, {**variables, "log": step}

    client = clients.Client(
        {"params": jnp.zeros(()), "log": jnp.zeros(())}, optax.sgd(1.0).init(0.0)
    )
    _, mean = training.train(
        key,
        client,
        loss,
        first(5, 9),
        optimizer=optax.sgd(1.0),
        batch_size=2,
        num_epochs=1,
        drop_last=True,
    )
    assert mean == 1.5


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


def test_train_averages_the_loss_of_its_steps(key):
    """Losses 1, 2, 3, 4 in the four steps of two epochs of a padded client."""

    def loss(key, variables, slots, mask):
        step = variables["log"] + 1
        return variables["params"] * 0 + step, {**variables, "log": step}

    client = clients.Client(
        {"params": jnp.zeros(()), "log": jnp.zeros(())}, optax.sgd(1.0).init(0.0)
    )
    _, mean = training.train(
        key,
        client,
        loss,
        first(4, 9),
        optimizer=optax.sgd(1.0),
        batch_size=2,
        num_epochs=2,
    )
    assert mean == (1 + 2 + 3 + 4) / 4


def test_a_nan_loss_is_reported(key):
    def loss(key, variables, slots, mask):
        return variables["params"] * jnp.nan, variables

    client = clients.Client({"params": jnp.ones(())}, optax.sgd(1.0).init(0.0))
    trained, mean = training.train(
        key,
        client,
        loss,
        first(3, 4),
        optimizer=optax.sgd(1.0),
        batch_size=2,
        num_epochs=1,
    )
    assert np.isnan(mean)
    assert np.isnan(trained.variables["params"])


def test_zero_gradients_of_idle_steps_leave_no_nan(key):
    """A batch of nobody divides 0 by 0; its step must not reach the client."""

    def loss(key, variables, slots, mask):
        w = variables["params"]
        return jnp.sum(w * mask) / mask.sum(), variables

    client = clients.Client({"params": jnp.ones(())}, optax.sgd(0.5).init(0.0))
    trained, mean = training.train(
        key,
        client,
        loss,
        first(2, 9),
        optimizer=optax.sgd(0.5),
        batch_size=2,
        num_epochs=1,
    )
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


def pull(rate):
    """A loss with gradient w - target, and the client that descends it from 8 and 0."""

    def loss(key, variables, slots, mask):
        w, target = variables["params"], variables["target"]
        return (w - target) ** 2 / 2, variables

    variables = {"params": jnp.float32(8), "target": jnp.float32(0)}
    return loss, clients.Client(variables, optax.sgd(rate).init(variables["params"]))


def test_a_target_follows_every_step_by_hand(key):
    """Rate 1/2: w = 8 - 4 = 4, target = 1; then w = 4 - 1.5 = 2.5, target = 1.375."""
    loss, client = pull(0.5)
    train = partial(
        training.train, optimizer=optax.sgd(0.5), batch_size=2, after_step=follow
    )
    trained, mean = train(key, client, loss, first(2), num_epochs=1)
    assert trained.variables == {"params": 4.0, "target": 1.0}
    assert mean == 32
    for size, num_epochs in [(4, 1), (3, 1), (2, 2)]:
        trained, mean = train(key, client, loss, first(size), num_epochs=num_epochs)
        assert trained.variables == {"params": 2.5, "target": 1.375}
        assert mean == (32 + 4.5) / 2


def test_without_it_the_target_stays(key):
    """w = 8, 4, 2: half the way to 0 in each step."""
    loss, client = pull(0.5)
    trained, _ = training.train(
        key,
        client,
        loss,
        first(4),
        optimizer=optax.sgd(0.5),
        batch_size=2,
        num_epochs=1,
    )
    assert trained.variables == {"params": 2.0, "target": 0.0}


@pytest.mark.parametrize("axis", AXES[:3])
def test_the_target_of_a_short_client_stands_still_with_it(key, axis):
    """Of one, two and three steps side by side; the third: w = 2.5 - 0.5625 = 1.9375,
    target = 1.03125 + 0.484375."""
    loss, client = pull(0.5)

    def train(mask):
        return training.train(
            key,
            client,
            loss,
            mask,
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
    spoilt = z.at[2:].set(jnp.nan)
    np.testing.assert_allclose(
        training.spread(spoilt, first(2, 4)), 0.5**0.5, rtol=1e-6
    )


def test_spread_of_random_directions_is_one_and_of_one_direction_zero(key):
    z = jax.random.normal(key, (2000, 16))
    np.testing.assert_allclose(training.spread(z, first(2000, 2000)), 1, rtol=0.01)
    lengths = jnp.arange(1.0, 6.0)[:, None]
    collapsed = lengths * jnp.array([[0.6, 0.8, -2.0]])
    np.testing.assert_allclose(training.spread(collapsed, first(5, 5)), 0, atol=1e-6)
