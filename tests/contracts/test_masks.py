"""Legal actions: every inner loop takes no others, or refuses the environment."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
import toys
from loops import EVERY

from metaevo import envs, spaces
from metaevo.engine import checks, play
from metaevo.errors import ConfigError
from metaevo.fitness import final_return
from metaevo.types import Search
from strategies.open_es import open_es

BOTH = {"sac"}  # of continuous and of discrete actions
HONORING = sorted(
    name
    for name, small in EVERY.items()
    if name in BOTH or isinstance(envs.make(small.env).action, envs.Discrete)
)


@functools.cache
def lived(name, make=probes.minefield):
    """A loop, and its states and metrics from birth to evaluation."""
    loop = EVERY[name].make(env=make())

    @jax.jit
    def run(key):
        born = loop.init(key, loop.meta)
        state, metrics = loop.train(key, loop.meta, born)
        return born, state, metrics, loop.evaluate(key, loop.meta, state)

    return loop, *run(jax.random.key(0))


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", HONORING)
def test_an_illegal_action_is_never_taken(name):
    """It is one of three in every state, and NaN from then on."""
    loop, born, state, metrics, evaluation = lived(name)
    assert loop.masks
    assert finite(born.experience), "warm-up"
    assert metrics["episodes"] > 0
    assert metrics["return"] == 6.0, "training"
    assert finite((state.agent, state.experience, metrics))
    assert evaluation["return"] == 6.0
    key = jax.random.key(1)
    assert play.episode(key, loop, loop.meta, state.agent)[2] == 6.0


def test_without_the_mask_it_would_be():
    """The test above can fail: the same environment, and a mask of all actions."""

    def unmasked():
        return probes.minefield()._replace(action_mask=lambda state: jnp.ones(3, bool))

    _, _, state, metrics, evaluation = lived("ppo", unmasked)
    assert not np.isfinite(metrics["return"])
    assert not np.isfinite(evaluation["return"])
    assert not finite(state.agent)


# Those of GORILA are by the function of DQN, those of R2D2 by that of R2D3.
@pytest.mark.parametrize("name", ["apex", "dqn", "pqn", "r2d3"])
def test_targets_are_of_legal_actions(name):
    """A huge value of an action that is never legal enters no target."""
    small = EVERY[name]

    def two_of_three(state):
        return jnp.arange(3) != 1

    env = probes.terminated(6, envs.Discrete(3))._replace(action_mask=two_of_three)
    # Of a dueling network the mean over actions would hold the illegal one's value.
    loop = small.make(
        env=env, **({"dueling": False} if name in ("apex", "r2d3") else {})
    )

    @jax.jit
    def run(key):
        state = loop.init(key, loop.meta)
        params = jax.tree.map(
            lambda x: x.at[1].add(1e6) if x.shape == (3,) else x, state.agent.params
        )
        agent = state.agent._replace(params=params)
        if hasattr(agent, "target_params"):
            agent = agent._replace(target_params=params)
        return loop.train(key, loop.meta, state._replace(agent=agent))[1]

    assert abs(run(jax.random.key(0))["value_error_rms"]) < 100


def test_what_cannot_honor_a_mask_refuses_it():
    """Loops of continuous actions, and all loops where the actions are continuous."""
    box = envs.Box((3,), -1.0, 1.0)
    for name, small in EVERY.items():
        with pytest.raises(ConfigError, match=r"action_mask|discrete actions"):
            small.make(env=probes.minefield(box))
        if name not in HONORING:
            with pytest.raises(ConfigError, match=r"discrete|continuous"):
                small.make(env=probes.minefield())


def test_a_search_refuses_a_loop_of_ones_own_that_does_not_say_that_it_honors_masks():
    loop = toys.quadratic()._replace(env=probes.minefield())
    space = spaces.tune(lr=spaces.log())

    def search(loop):
        strategy = open_es(space, 4, 0.1, optax.adam(0.1))
        return Search(loop, space, strategy, 1, final_return)

    with pytest.raises(ConfigError, match=r"env='minefield' has an action_mask"):
        checks.check(search(loop))
    checks.check(search(loop._replace(masks=True)))


@pytest.mark.parametrize("name", ["ppo", "ppo_rnn"])
def test_the_loss_is_of_the_policy_that_acted(name):
    """Of one minibatch, the first: no divergence, and the entropy of two actions."""
    small = EVERY[name]
    config = {"num_epochs": 1, "num_minibatches": 1, "num_steps": 320}
    loop = small.make(env=probes.minefield(), **config)

    @jax.jit
    def run(key):
        return loop.train(key, loop.meta, loop.init(key, loop.meta))[1]

    metrics = run(jax.random.key(0))
    assert abs(metrics["kl"]) < 1e-6
    np.testing.assert_allclose(metrics["entropy"], np.log(2), rtol=1e-3)
