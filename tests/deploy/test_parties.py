"""A federation of a server and sites in one process, against the simulation."""

import functools

import jax
import numpy as np
import pytest

import fcjax
from fcjax import engine
from fcjax.algorithms.rounds import evaluation_schedule
from fcjax.data import Dataset, load
from fcjax.deploy import app
from fcjax.deploy.parties import Memory, Program, Server, Site
from fcjax.methods import CCFC, FFCM, ExactKMeans, KFed, KMeans
from fcjax.ragged import rectangle
from fcjax.sweep.experiment import prepare
from fcjax.sweep.plan import Task

SITES = 3


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """The file of the digits as vectors, for which CCFC compiles fast."""
    digits = load("digits")
    path = tmp_path_factory.mktemp("digits") / "vectors.npz"
    np.savez(path, x=digits.examples.reshape(-1, 64), y=digits.labels)
    return str(path)


class Both:
    """A simulation, and the same run as a federation."""

    def __init__(self, method, present=None, **settings):
        settings = {"dataset": "digits", "limit": 150, "p": (0.25,), **settings}
        task = Task.of(method, clients=(SITES,), **settings)
        experiment = prepare(task, in_memory=True)
        self.batch = experiment.batches[0]
        self.plan = app.app_of(experiment).plan
        self.grid = experiment.grid(self.batch)
        if present is not None:
            federations = self.grid.federations
            present = np.asarray(present)[None]
            self.grid = self.grid._replace(
                federations=federations._replace(present=present)
            )
        examples = experiment.dataset.examples
        self.data = [examples[rows] for rows in self.batch.partitions[0].clients]
        self.sites = [Site(self.plan, i, x) for i, x in enumerate(self.data)]
        self.server = Server(self.plan, len(self.data[0]))
        for site in self.sites[1:]:
            if len(site.examples) == len(self.sites[0].examples):
                site.program = self.sites[0].program  # compiles once

    @functools.cached_property
    def simulated(self):
        """The server's state and the clusters of each client, simulated."""
        program, every = engine.Program(self.batch.build), self.plan.evaluate_every
        schedule = evaluation_schedule(None, every)
        state = program.run(self.grid, schedule=schedule)
        clusters = rectangle(jax.device_get(program.assign(self.grid, state)))[0]
        return jax.tree.map(lambda x: np.asarray(x)[0], state.server), clusters

    def ask(self, step, phase, down):
        return {site.number: site.answer(step, phase, down) for site in self.sites}

    def assert_equal(self, done):
        """Checks that the federation has the bits of the simulation."""
        state, clusters = self.simulated
        for one, other in zip(
            jax.tree.leaves(state), jax.tree.leaves(done.state), strict=True
        ):
            np.testing.assert_array_equal(one, np.asarray(other))
        down = self.server.final(done)
        for site, expected in zip(self.sites, clusters, strict=True):
            found, _ = site.assign(down)
            np.testing.assert_array_equal(found, expected[: len(found)])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (ExactKMeans, {"num_rounds": 3}),
        (ExactKMeans, {"num_rounds": 3, "p": (), "alpha": (1.0,)}),  # sizes differ
        (KFed, {}),
        (FFCM, {"num_rounds": 2}),
        (CCFC, {"preset": "smoke", "pretrain_rounds": 1}),
    ],
)
def test_a_federation_has_the_bits_of_the_simulation(method, settings):
    both = Both(method, **settings)
    both.assert_equal(both.server.run(both.ask))


def test_a_site_that_does_not_answer_has_weight_0_like_a_failed_client():
    present = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
    both = Both(ExactKMeans, present, num_rounds=3)

    def ask(step, phase, down):
        answers = both.ask(step, phase, down)
        if step == 2:  # the second round
            del answers[1]
        return answers

    done = both.server.run(ask)
    both.assert_equal(done)
    np.testing.assert_array_equal(done.present, present)


def test_a_step_begins_again_without_a_site_that_stops_within_it():
    present = np.array([[1, 1, 0]] * 3, bool)
    both, asked = Both(ExactKMeans, present, num_rounds=2), []

    def ask(step, phase, down):
        asked.append((step, phase))
        answers = both.ask(step, phase, down)
        if step > 0 or (step, phase) != (0, 0) or asked.count((0, 0)) > 1:
            del answers[2]
        return answers

    done = both.server.run(ask)
    # The seeding of k-means has two uploads.
    assert asked == [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (2, 0)]
    both.assert_equal(done)


def test_a_server_that_is_started_again_goes_on_from_its_last_step():
    both, steps = Both(ExactKMeans, num_rounds=3), []
    both.server.run(both.ask, on_step=steps.append)
    asked = []

    def ask(step, phase, down):
        asked.append(step)
        return both.ask(step, phase, down)

    done = Server(both.plan, 1000).run(ask, start=steps[1])
    assert asked == [2, 3]
    both.assert_equal(done)


def test_a_site_goes_on_from_its_memory_and_repeats_a_step_with_the_same_bits(vectors):
    both = Both(CCFC, preset="smoke", pretrain_rounds=1, dataset=vectors)
    step = 1  # the first round; clients keep the state of their optimizers
    begin = both.server._first()
    down = both.server.program.server_part(("round", 0))(
        both.server.program.common(both.server.program.steps[step], present(both)),
        begin.state,
        [],
    )
    site = both.sites[0]
    first = site.answer(step, 0, [*map(np.asarray, down)])
    memory = Memory.from_arrays(site.memory.to_arrays())
    again = Site(both.plan, 0, both.data[0], memory)
    again.program = site.program
    for one, other in zip(
        first, again.answer(step, 0, [*map(np.asarray, down)]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert again.memory.rounds == [0]
    assert set(again.memory.states) == {2}


def present(both):
    everyone = both.server.program.nobody()
    everyone[0] = True
    return everyone


def test_a_site_without_its_memory_says_so_and_begins_like_a_new_client(vectors):
    both = Both(CCFC, preset="smoke", pretrain_rounds=2, dataset=vectors)
    site = Site(both.plan, 0, both.data[0])
    site.program = both.sites[0].program
    parts = site.program.cut(("round", 0)).phases[0].down
    shapes = [site.program.cut(("round", 0)).shapes[x] for x in parts]
    down = [np.zeros(x.shape, x.dtype) for x in shapes]
    site.answer(1, 0, down)
    assert not site.lost  # its state before the first round is no secret
    site.memory = Memory()
    site.answer(2, 0, down)
    assert site.lost


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"x": np.zeros((5, 8, 9, 1), np.uint8)}, "the plan needs examples of shape"),
        ({"x": np.zeros((5, 8, 8, 1), np.float32)}, "and type uint8, but site 1 has"),
        ({"number": 3}, "the number of a site must lie in 0..2, got 3"),
    ],
)
def test_a_site_that_does_not_fit_the_plan_is_refused(change, line):
    plan = Both(KFed).plan
    given = {"number": 1, "x": np.zeros((5, 8, 8, 1), np.uint8)} | change
    with pytest.raises(ValueError, match=line):
        Site(plan, given["number"], given["x"])


def test_arrays_of_other_shapes_are_refused():
    both = Both(KFed)
    with pytest.raises(ValueError, match="a message has 0 arrays of"):
        both.sites[0].answer(1, 1, [])
    down = [np.zeros((both.plan.clusters, 64), np.float32)]
    with pytest.raises(ValueError, match="phase 1 of step 1 is not the next one"):
        both.sites[0].answer(1, 1, down)

    def wrong(step, phase, down):
        return {
            i: [x[..., :1] for x in up] for i, up in both.ask(step, phase, down).items()
        }

    with pytest.raises(ValueError, match="one of shape and type"):
        both.server.run(wrong)


def test_too_few_sites_end_the_federation():
    both = Both(KFed)
    both.server.at_least = 2
    with pytest.raises(RuntimeError, match="1 of 3 sites answered, but the federation"):
        both.server.run(lambda *x: {0: both.sites[0].answer(*x)})


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        (KMeans, {}, "km cannot be deployed, because its server needs the examples"),
        (KFed, {"p": (0.0, 1.0)}, "a federation is one run, but there are 2"),
        (KFed, {"clients": (1,)}, "a federation needs at least 2 clients"),
    ],
)
def test_what_cannot_be_deployed_is_refused(method, settings, line):
    settings = {"dataset": "digits", "clients": (3,), "p": (0.25,), **settings}
    with pytest.raises(ValueError, match=line):
        app.app_of(prepare(Task.of(method, **settings), in_memory=True))


def test_the_app_of_a_run_has_the_natural_clients_of_its_data():
    x = np.random.default_rng(0).random((30, 4), np.float32)
    dataset = Dataset("rows", x, None, clients=np.repeat([0, 1, 2], 10))
    run = fcjax.run(ExactKMeans(num_rounds=2), dataset, split=fcjax.Split(clusters=2))
    plan = app.app_of_run(run[0]).plan
    assert (plan.clients, plan.clusters, plan.shape) == (3, 2, (4,))


def test_a_plan_file_has_the_plan(tmp_path):
    for method in (CCFC, FFCM):
        task = Task.of(method, dataset="digits", clients=(3,), p=(0.25,), limit=100)
        content = app.app_of(prepare(task, in_memory=True))
        app.write(content, tmp_path)
        again = app.read(tmp_path / "app" / "plan.toml")
        assert again.plan.digest == content.plan.digest
        assert again.point == content.point
        assert again.plan.data == "digits"  # methods choose their views by it
    (tmp_path / "plan.toml").write_text("x = 1")
    with pytest.raises(ValueError, match=r"plan.toml is not a plan of fcjax"):
        app.read(tmp_path / "plan.toml")


def test_steps_have_the_keys_and_numbers_of_the_engine(vectors):
    both = Both(CCFC, preset="smoke", pretrain_rounds=2, dataset=vectors)
    program = Program(both.plan, 50)
    position = next(x for x in program.steps if x == (1, 3))
    _, key, now, _ = program.common(position, program.nobody())
    stage = program.stages[1].name
    at = engine.at_round(both.grid, stage, number=3, earlier=2, is_evaluated=True)
    assert (jax.random.key_data(key) == jax.random.key_data(at.keys[0])).all()
    assert int(now.round) == 4
    assert int(now.stage_round) == 2
