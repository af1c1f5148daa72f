"""Policies that evolve: one function in training, in the artifact and elsewhere."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from loops import SMALL
from test_artifacts import edit

import metaevo
from inner_loops import fixed_policy, td3, td3_shared
from metaevo import envs, fitness, policies
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.rl import config_checks
from metaevo.storage import artifacts
from metaevo.types import Search, keep
from strategies.open_es import open_es

PENDULUM, CARTPOLE = "gymnax/Pendulum-v1", "gymnax/CartPole-v1"
SIZES = {"features": (16, 8), "activation": "relu"}


def space_on(name):
    return fixed_policy.policy_space(envs.make(name), fixed_policy.Config(**SIZES))


def away(space):
    """Params that are not those of a start."""
    params = jax.jit(space.init)(jax.random.key(0))
    return jax.tree.map(lambda x: np.asarray(x) + np.float32(0.1), params)


@pytest.fixture
def saved(tmp_path):
    def save(name):
        space = space_on(name)
        artifacts.save(tmp_path / "solution", away(space), space.spec, {}, {})
        return tmp_path / "solution"

    return save


def test_it_is_the_network_that_td3_trains():
    """The same tree, the same actions: what evolves is what learned."""
    env, config = envs.make(PENDULUM), td3.Config(**SIZES)
    loop, actor = td3.make(env, config), policies.of(env, config)
    agent = jax.jit(loop.init)(jax.random.key(0), loop.meta).agent
    params = jax.tree.map(lambda x: x + 0.1, agent.actor.params)
    agent = agent._replace(actor=agent.actor._replace(params=params))
    mine = jax.eval_shape(actor.init, jax.random.key(1))
    assert jax.tree.structure(mine) == jax.tree.structure(params)
    assert jax.tree.map(jnp.shape, mine) == jax.tree.map(jnp.shape, params)
    act, apply = jax.jit(loop.act), jax.jit(actor.apply)
    for obs in np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32):
        expected = act(jax.random.key(0), loop.meta, agent, (), obs)[0]
        np.testing.assert_array_equal(apply(params, obs), expected)


def test_a_start_acts_next_to_nothing():
    """An orthogonal start with a small last layer, as that of all policies here."""
    params = jax.jit(space_on(PENDULUM).init)(jax.random.key(0))["actor"]["params"]
    hidden = np.asarray(params["Dense_1"]["kernel"])
    np.testing.assert_allclose(hidden.T @ hidden, 2 * np.eye(8), atol=1e-5)
    last = np.linalg.norm(params["Dense_2"]["kernel"])
    assert last == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("name", [PENDULUM, CARTPOLE])
def test_a_loaded_policy_acts_as_the_searched_one(saved, name):
    env, space = envs.make(name), space_on(name)
    loop = fixed_policy.make(env, fixed_policy.Config(**SIZES))
    meta = space.bind(away(space), loop.meta)
    agent = jax.jit(loop.init)(jax.random.key(0), meta).agent
    loaded, act = metaevo.load(saved(name)).actor, jax.jit(loop.act)
    obs = np.random.default_rng(1).normal(size=(16, *env.observation.shape))
    obs = obs.astype(np.float32)
    expected = np.stack([act(jax.random.key(2), meta, agent, (), x)[0] for x in obs])
    assert len(np.unique(expected)) > 1
    alone = jax.jit(loaded)
    np.testing.assert_array_equal(np.stack([alone(x) for x in obs]), expected)
    np.testing.assert_allclose(jax.jit(jax.vmap(loaded))(obs), expected, rtol=1e-5)
    # As other libraries hand observations over, one or many.
    np.testing.assert_allclose(loaded(np.float64(obs)), expected, rtol=1e-5)
    np.testing.assert_allclose(loaded(obs[0].tolist()), expected[0], rtol=1e-5)


def test_loading_a_policy_needs_jax_numpy_and_safetensors_alone(saved):
    program = (
        "import sys\n"
        "for x in 'optax flax evosax gymnax scipy omegaconf matplotlib brax'.split():\n"
        "    sys.modules[x] = None\n"
        "import metaevo\n"
        f"print(metaevo.load({str(saved(PENDULUM))!r}).actor([1, 0, 0]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert np.isfinite(float(out.stdout.strip("[]\n")))


def test_an_altered_policy_is_refused(saved):
    path = saved(PENDULUM)
    manifest = path / "manifest.json"
    given = manifest.read_text()
    for change in (
        {"activation": "__import__"},
        {"activation": "softmax"},
        {"observation": [4]},
        {"observation": [3.0]},
        {"observation": "3"},
        {"features": [16, 9]},
        {"features": []},
        {"features": [10**9]},
        {"action": {"num": 2}},
        {"action": {"low": [-2.0], "high": [float("inf")]}},
        {"action": {"low": [2.0], "high": [-2.0]}},
        {"action": {"low": [-2.0, 0.0], "high": [2.0]}},
        {"action": {"low": ["a"], "high": [2.0]}},
        {"action": {"low": [-2.0]}},
        {"action": [1]},
        {"gain": 2.0},
    ):
        edit(path, lambda x, change=change: x["slots"]["actor"].update(change))
        with pytest.raises(metaevo.ArtifactError):
            metaevo.load(path)
        manifest.write_text(given)
    metaevo.load(path)


@pytest.mark.parametrize("activation", ["hard_silu", "log_sigmoid", "relu6"])
def test_a_policy_has_every_activation_of_a_network(activation, tmp_path):
    policy = policies.policy((3,), {"num": 2}, (4,), activation)
    params = {"policy": policy.init(jax.random.key(0))}
    artifacts.save(tmp_path / "a", params, {"policy": policy.spec}, {}, {})
    obs = np.linspace(-2, 2, 30, dtype=np.float32).reshape(10, 3)
    acted = metaevo.load(tmp_path / "a").policy(obs)
    numpy = metaevo.reference.load(tmp_path / "a").policy
    np.testing.assert_array_equal(acted, numpy(obs))
    assert config_checks.ACTIVATIONS is policies.ACTIVATIONS


def test_policies_that_cannot_be_are_refused():
    unbounded = envs.make(PENDULUM)._replace(action=envs.Box((1,)))
    with pytest.raises(ConfigError, match=r"gymnax/Pendulum-v1.*bounds must be finite"):
        fixed_policy.policy_space(unbounded)
    with pytest.raises(ConfigError, match=r"inner\.activation='softmax': one of celu"):
        fixed_policy.policy_space(
            envs.make(PENDULUM), fixed_policy.Config(activation="softmax")
        )
    with pytest.raises(ConfigError, match=r"inner\.features=\(\)"):
        fixed_policy.policy_space(envs.make(PENDULUM), fixed_policy.Config(features=()))
    with pytest.raises(ConfigError, match=r"inner\.normalize_observation=true"):
        td3_shared.policy_space(
            envs.make(PENDULUM), td3_shared.Config(normalize_observation=True)
        )


# --- TD3's space ----------------------------------------------------------------------


def test_what_an_actor_learned_is_inherited():
    env = envs.make(PENDULUM)
    space = td3_shared.policy_space(env, td3_shared.Config(features=(4,)))
    assert space.inherit is not keep
    params = jax.jit(space.init)(jax.random.key(0))
    meta = space.bind(params, td3_shared.Meta())
    assert meta.actor is params["actor"]
    assert meta.learn == params["learn"] == 1.0
    agent = SimpleNamespace(actor=SimpleNamespace(params=away(space)["actor"]))
    after = space.inherit(params, SimpleNamespace(agent=agent))
    assert after == params | {"actor": agent.actor.params}


# --- policies that do not learn -------------------------------------------------------


def test_a_given_policy_is_the_agent_and_noise_is_of_training_alone():
    small = SMALL["fixed_policy"]
    loop = small.make()
    init, train, evaluate = map(jax.jit, (loop.init, loop.train, loop.evaluate))
    config = fixed_policy.Config(**small.config)
    space = fixed_policy.policy_space(loop.env, config)
    actor = jax.jit(space.init)(jax.random.key(3))["actor"]
    returns = []
    for noise in (0.0, 1.0):
        meta = fixed_policy.Meta(actor, noise)
        state = init(jax.random.key(0), meta)
        state, _ = train(jax.random.key(1), meta, state)
        for a, b in zip(*map(jax.tree.leaves, (state.agent.actor, actor)), strict=True):
            np.testing.assert_array_equal(a, b)
        returns.append(evaluate(jax.random.key(2), meta, state)["return"])
    assert returns[0] == returns[1]
    one, two = (init(jax.random.key(i), small.meta).agent.actor for i in (0, 1))
    first, second = (x["params"]["Dense_0"]["kernel"] for x in (one, two))
    assert not (first == second).any()


def test_noise_is_as_large_as_it_says():
    """A policy that always goes left meets ε / 2 of steps to the right; on a box the
    spread of what arrives is σ half ranges."""
    sent = []

    def recording(env):
        def step_raw(key, state, action):
            jax.debug.callback(lambda x: sent.append(np.asarray(x)), action)
            return env.step_raw(key, state, action)

        return env._replace(step_raw=step_raw)

    for name, noise in ((CARTPOLE, 0.4), (PENDULUM, 0.25)):
        sent.clear()
        env = recording(envs.make(name))
        config = fixed_policy.Config(2000, 4, 500, features=(4,))
        loop = fixed_policy.make(env, config)
        space = fixed_policy.policy_space(env, config)
        actor = jax.eval_shape(space.init, jax.random.key(0))["actor"]
        actor = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), actor)
        meta = fixed_policy.Meta(actor, noise)
        state = jax.jit(loop.init)(jax.random.key(0), meta)
        jax.block_until_ready(jax.jit(loop.train)(jax.random.key(1), meta, state))
        jax.effects_barrier()
        actions = np.array(sent).reshape(-1)
        assert len(actions) == 2000
        if name == CARTPOLE:
            assert actions.mean() == pytest.approx(noise / 2, abs=0.03)
        else:
            assert actions.std() == pytest.approx(2 * noise, rel=0.05)


def test_evolution_solves_a_probe():
    """By returns alone: which action is best, and what it depends on."""
    env, config = probes.matching(), fixed_policy.Config(32, 4, 8, features=(8,))
    space = fixed_policy.policy_space(env, config)
    strategy = open_es(space, 32, 0.3, optax.adam(0.1))
    loop = fixed_policy.make(env, config)
    search = Search(loop, space, strategy, 1, fitness.last_segments(1))
    evaluate = LocalEvaluator(search)
    state, ask, tell = strategy.init(jax.random.key(0)), *map(jax.jit, strategy[1:3])
    for i in range(20):
        key = jax.random.key(i)
        proposal, state = ask(key, state)
        evaluated, _ = evaluate(key, proposal, ())
        state = tell(key, state, proposal, evaluated.fitness[0, 0])
    actor = strategy.solution(state)["actor"]
    newborn = loop.init(jax.random.key(0), fixed_policy.Meta(actor))
    found = jax.jit(loop.evaluate)(jax.random.key(99), loop.meta, newborn)
    assert found["return"] == 1.0
