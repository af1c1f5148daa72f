"""Worlds: numbers and tasks that are drawn for each, and common to its members."""

import gymnax
import jax
import jax.numpy as jnp
import loops
import numpy as np
import pytest
import toys

from metaevo import envs, fitness, spaces
from metaevo.analysis import holdout
from metaevo.engine import checks, identity
from metaevo.envs import gymnax as suite
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import InnerLoop, InnerState, Proposal, Search, on_any_env
from strategies.pbt import pbt
from strategies.random_search import random_search

VARY = spaces.prior(lr=spaces.log_uniform(1e-3, 1e-1))
CARTPOLE = "gymnax/CartPole-v1?length=0.25..1&force_mag=5..15"


# --- a loop that tells its world ------------------------------------------------------


def length_env() -> envs.Env:
    """The task is a number, which every observation and every reward is."""

    def at(params):
        obs = jnp.full((1,), params)

        def reset(key):
            del key
            return jnp.int32(0), obs

        def step_raw(key, state, action):
            del key, action
            state = state + 1
            ended, never = state >= 3, jnp.zeros((), bool)
            return state, envs.Step(obs, obs[0], ended, never, obs, {})

        step = envs.with_auto_reset(reset, step_raw)
        return nothing._replace(reset=reset, step=step, step_raw=step_raw)

    nothing = envs.Env(None, None, None, envs.Box((1,)), envs.Discrete(2), 3)
    return at(0.5)._replace(task=lambda key: jax.random.uniform(key), at=at)


@on_any_env
def teller(env, num_segments=3) -> InnerLoop:
    """The return tells the learning rate and the task, at birth, in training, after."""

    def told(meta, obs):
        return jnp.stack([jnp.float32(meta.lr), obs[0]])

    def init(key, meta):
        state, obs = env.reset(key)
        return InnerState(
            (told(meta, obs), state, obs), (), (), toys.Clock(jnp.int32(0))
        )

    def train(key, meta, state):
        at_birth, env_state, _ = state.agent
        env_state, out = env.step(key, env_state, jnp.int32(0))
        now = told(meta, out.obs)
        metrics = {"return": now[0], "episodes": jnp.ones(()), "task": out.reward}
        same = (now == at_birth).all()
        state = state._replace(agent=(at_birth, env_state, out.obs))
        return state, metrics | {"same": jnp.float32(same)}

    def evaluate(key, meta, state):
        now = told(meta, env.reset(key)[1])
        return {"return": now[1], "length": jnp.float32((now == state.agent[0]).all())}

    def act(key, meta, agent, carry, obs):
        return jnp.int32(0), carry

    return InnerLoop(toys.Meta(), init, train, evaluate, num_segments, act, env=env)


def telling(**options):
    """A search whose members tell their worlds."""
    loop, score = teller(length_env()), fitness.final_return
    return Search(loop, toys.space(), None, 1, score, vary=VARY, **options)


def on_one_device(search, **options):
    return LocalEvaluator(search, jax.devices()[:1], **options)


@pytest.mark.parametrize("common", [True, False])
def test_draws_differ_between_seeds_and_are_common_to_members(common):
    """Each agent trains and is evaluated in one world.

    A new generation draws new worlds and compiles nothing.
    """
    options = {"num_seeds": 4, "chunk_size": 2, "common_random_numbers": common}
    evaluate = on_one_device(telling(**options))
    equal = Proposal({"lr": jnp.zeros(3)})
    result, _ = evaluate(jax.random.key(5), equal, ())
    for drawn, low, high in (
        (result.train[0]["return"][..., 0], 1e-3, 1e-1),
        (result.train[0]["task"][..., 0], 0.0, 1.0),
    ):
        drawn = np.asarray(drawn)  # [S, P]
        np.testing.assert_array_equal(drawn, drawn[:, :1].repeat(3, 1))
        assert len(np.unique(drawn[:, 0])) == 4
        assert (drawn > low).all()
        assert (drawn < high).all()
    assert (np.asarray(result.train[0]["same"]) == 1).all()
    assert (np.asarray(result.evaluation[0]["length"]) == 1).all()
    second, _ = evaluate(jax.random.key(6), equal, ())
    assert (result.fitness != second.fitness).all()
    counts = {name: p._cache_size() for name, p in evaluate.programs.items()}
    assert counts["init/0"] == counts["run/0"] == 1
    assert set(counts.values()) <= {0, 1}


def test_a_members_own_params_are_bound_after_the_draw():
    proposal = Proposal({"lr": np.log([1.0, 2.0]).astype(np.float32)})
    result, _ = on_one_device(telling())(jax.random.key(5), proposal, ())
    one, twice = np.asarray(result.train[0]["return"])[0, :, 0]
    assert twice == pytest.approx(2 * one, rel=1e-5)


def test_held_out_seeds_are_worlds_that_both_sides_share():
    search, make = telling(), on_one_device
    key, zero = jax.random.key(1), {"lr": np.float32(0.0)}
    runs, _ = holdout.train(search, toys.space(), {"mine": zero}, key, 5, make)
    rival, _ = holdout.train(
        search, holdout.HAND_MADE, {"theirs": holdout.NOTHING}, key, 5, make
    )
    for metric in ("return", "task"):
        mine = runs["mine"].train[0][metric][:, 0]
        np.testing.assert_allclose(
            mine, rival["theirs"].train[0][metric][:, 0], rtol=1e-6
        )
        assert len(np.unique(mine)) == 5
    assert (runs["mine"].train[0]["same"] == 1).all()


# --- what is refused ------------------------------------------------------------------


def search_with(loop=None, space=None, strategy=None, **options):
    space = space or toys.space()
    strategy = strategy or random_search(space, 4)
    return Search(
        loop or toys.quadratic(), space, strategy, 1, fitness.final_return, **options
    )


def test_draws_that_cannot_be_kept_are_refused():
    living = {"strategy": pbt(VARY, 4), "segments_per_generation": 1}
    target = spaces.prior(target=spaces.uniform(0, 1))
    rate = spaces.prior(rate=spaces.uniform(0, 1))
    loop = teller(length_env())
    for options, message in (
        ({"vary": toys.space()}, "Search.vary needs a space of ranges"),
        ({"vary": rate}, "no slot 'rate' in this algorithm"),
        ({"space": VARY, "vary": VARY}, "'lr' is drawn for each world"),
        ({"space": VARY, "vary": target, **living}, "segments_per_generation=1"),
        ({"loop": loop, "space": VARY, **living}, "would get another in each"),
        ({"loop": loop._replace(on=None)}, "types.on_any_env"),
    ):
        with pytest.raises(ConfigError, match=message):
            checks.check(search_with(**options))


def test_a_search_that_varies_is_another_search():
    plain, varied = search_with(), search_with(vary=VARY)
    assert "vary" not in identity.lifetime(plain)
    assert identity.lifetime(varied)["vary"]["lr"]["low"] == 1e-3
    narrow = search_with(vary=spaces.prior(lr=spaces.log_uniform(1e-3, 1e-2)))
    assert identity.identity(varied) != identity.identity(narrow)


def test_every_loop_can_be_put_on_the_tasks_of_its_environment():
    for small in loops.EVERY.values():
        loop = small.make()
        other = loop.on(loop.env._replace(name="other"))
        assert other.env.name == "other", small.module
        assert other.config == loop.config


# --- gymnax's own parameters ----------------------------------------------------------


def test_a_task_steps_as_gymnax_does_with_these_parameters():
    env = envs.make(CARTPOLE)
    assert env.name == CARTPOLE
    drawn = {"length": jnp.float32(0.8), "force_mag": jnp.float32(6.0)}
    reference, params = gymnax.make("CartPole-v1")
    # The moment of the pole follows from its length.
    params = params.replace(**drawn, polemass_length=params.masspole * drawn["length"])
    key, action = jax.random.key(2), jnp.int32(1)

    @jax.jit
    def stepped(key):
        state, _ = env.at(drawn).reset(key)
        _, out = env.at(drawn).step_raw(key, state, action)
        theirs, *_ = reference.step_env(key, state, action, params)
        return out.obs, theirs, env.step_raw(key, state, action)[1].obs

    obs, expected, plain = stepped(key)
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
    assert np.abs(plain - obs).max() > 1e-3


def test_drawn_parameters_fill_their_ranges():
    env = suite.vary("MountainCar-v0", gravity=(0.002, 0.003))
    draw = jax.jit(jax.vmap(env.task))
    drawn = draw(jax.random.split(jax.random.key(0), 500))["gravity"]
    assert 0.002 <= drawn.min() < 0.0021
    assert 0.0029 < drawn.max() <= 0.003
    assert drawn.mean() == pytest.approx(0.0025, abs=5e-5)


def test_a_parameter_that_cannot_be_drawn_is_refused():
    for name, message in (
        ("CartPole-v1?", "expected PARAMETER=LOW..HIGH"),
        ("CartPole-v1?length=1", "expected PARAMETER=LOW..HIGH"),
        ("CartPole-v1?length=1..0.5", "length: expected LOW..HIGH, low < high"),
        ("CartPole-v1?total_mass=1..2", "no parameter 'total_mass'"),
        ("CartPole-v1?mass=1..2", "gravity, length, masscart"),
        ("CartPol-v1?length=1..2", "Did you mean gymnax/CartPole-v1"),
    ):
        with pytest.raises(ConfigError, match=message):
            envs.make(f"gymnax/{name}")


def test_selected_components_keep_the_tasks():
    env = envs.select(envs.make(CARTPOLE), (0, 2))
    task = env.task(jax.random.key(0))
    _, obs = jax.eval_shape(env.at(task).reset, jax.random.key(1))
    assert obs.shape == (2,)
    assert set(task) == {"length", "force_mag"}


# --- several tasks --------------------------------------------------------------------


def test_bounds_that_normalize_nothing_are_refused():
    for low, high in (([0.0], [1.0, 2.0]), ([0.0, 3.0], [1.0, 3.0]), (0.0, 1.0)):
        with pytest.raises(ConfigError, match="expected low < high for each task"):
            fitness.normalized(low, high)


def test_an_aggregate_that_does_not_fit_the_tasks_is_refused():
    """Bounds of two tasks would broadcast over one."""
    two = fitness.normalized([0.0, 0.0], [1.0, 2.0])
    with pytest.raises(ConfigError, match="bounds of 2 tasks, the search has 1"):
        checks.check(search_with(aggregate=two))
    both = search_with([toys.quadratic(), toys.quadratic()], aggregate=two)
    assert checks.check(both).parents is None
    with pytest.raises(ConfigError, match=r"gives \[1, 4\].*expected \[4\]"):
        checks.check(search_with(aggregate=lambda x: x.mean(0)))
    checks.check(search_with(aggregate=lambda x: np.asarray(x).mean((0, 1))))
    with pytest.raises(ConfigError, match=r"gives \[1, 4\].*expected \[4\]"):
        checks.check(search_with(aggregate=lambda x: np.asarray(x).mean(0)))
