"""Probe environments: each is passed by a correct loop and failed by one kind of bug.

The bugs are made, too. All probes of a loop are one population.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import a2c, apex, dqn, impala, ppo, pqn, qtopt, sac, td3
from metaevo import envs
from metaevo.evaluators.lift import OVER_MEMBERS
from metaevo.rl import networks, returns

GAMMA = 0.9
OFF_POLICY = {"total_timesteps": 10_000, "learning_starts": 500, "buffer_size": 10_000}
OFF_POLICY |= {"num_envs": 4, "num_steps": 2, "num_gradient_steps": 4}
OFF_POLICY |= {"batch_size": 64, "features": (32,), "num_segments": 1}
ON_POLICY = {"total_timesteps": 65_536, "num_envs": 16, "num_steps": 32}
ON_POLICY |= {"features": (32,), "num_segments": 1, "anneal_lr": False}

ONE_STEP = {"total_timesteps": 65_536, "num_envs": 8, "num_steps": 8}
ONE_STEP |= {"features": (32,), "num_segments": 1, "anneal_lr": False}
ACTOR_CRITICS = ("ppo", "a2c", "impala")

# name: (module, config, meta). The targets of GORILA are DQN's, in the same function.
LOOPS = {
    "dqn": (dqn, OFF_POLICY, dqn.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5)),
    "double-dueling-3-step": (
        dqn,
        OFF_POLICY | {"double": True, "dueling": True, "num_step_return": 3},
        dqn.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5),
    ),
    "apex": (
        apex,
        OFF_POLICY,
        apex.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5),
    ),
    "ppo": (ppo, ON_POLICY, ppo.Meta(lr=2e-3, gamma=GAMMA, ent_coef=0.0)),
    "a2c": (
        a2c,
        ONE_STEP,
        a2c.Meta(lr=3e-3, gamma=GAMMA, gae_lambda=0.95, ent_coef=0.0),
    ),
    "impala": (
        impala,
        ONE_STEP | {"max_delay": 2},
        impala.Meta(lr=3e-3, gamma=GAMMA, gae_lambda=0.95, ent_coef=0.0),
    ),
    "pqn": (pqn, ON_POLICY, pqn.Meta(lr=2e-3, gamma=GAMMA)),
    "td3": (
        td3,
        OFF_POLICY,
        td3.Meta(actor_lr=2e-3, critic_lr=2e-3, gamma=GAMMA, tau=0.05),
    ),
    "qtopt": (
        qtopt,
        OFF_POLICY
        | {"total_timesteps": 10_000, "batch_size": 32}
        | {"num_samples": 16, "num_iterations": 3, "max_lag": 20},
        qtopt.Meta(3e-3, GAMMA, tau=0.05, num_elites=3.0),
    ),
    # All but without entropy, so that values are those of the rewards.
    "sac": (
        sac,
        OFF_POLICY | {"initial_temperature": 1e-4},
        sac.Meta(2e-3, 2e-3, 0.0, GAMMA, tau=0.05),
    ),
}
DISCRETE = ("dqn", "double-dueling-3-step", "apex", "pqn", *ACTOR_CRITICS)
OFTEN = {"target_period": 10}
period = dict.fromkeys(("dqn", "double-dueling-3-step", "apex"), OFTEN)


def policy(action):
    return probes.policy() if action == TWO else probes.continuous_policy()


def matching(action):
    return probes.matching() if action == TWO else probes.continuous_matching()


def limits_are_ends(action):
    """A bug: a time limit is taken for an end."""

    def change(step):
        nothing = jnp.zeros_like(step.truncated)
        return step._replace(terminated=step.done, truncated=nothing)

    return probes.with_steps(probes.truncated(action=action), change)


def resets_are_followed(action):
    """A bug: the last observation of an episode is that of the next reset, as in many
    libraries."""

    def change(step):
        obs = jnp.where(step.truncated, jnp.array(probes.START), step.obs)
        return step._replace(obs=obs, final_obs=obs)

    return probes.with_steps(probes.truncated(action=action), change)


TWO = envs.Discrete(2)
# One of each family.
CONTROLS = ("dqn", "ppo", "td3")
BUGS = ("limits are ends", "resets are followed")
ENDING = ("dqn", "td3", "sac")
PROBES = {
    "value": lambda action: probes.value(action),
    "observation": lambda action: probes.observation(action),
    "discount": lambda action: probes.discount(action),
    "policy": policy,
    "matching": matching,
    "truncated": lambda action: probes.truncated(action=action),
    "terminated": lambda action: probes.terminated(action=action),
    "limits are ends": limits_are_ends,
    "resets are followed": resets_are_followed,
}
# Observations; the truncation probe starts with the second.
SHOWN = {"zero": (0.0, 0.0), "plus": probes.START, "minus": (-1.0, 0.0)}
SHOWN |= {"later": probes.LATER}


def probes_of(name):
    """Names of the probes of a loop."""
    left_out = () if name in CONTROLS else BUGS
    left_out += () if name in ENDING else ("terminated",)
    return tuple(probe for probe in PROBES if probe not in left_out)


@functools.cache
def trained(name, names=None):
    """Actions and values by probe and by what agents are shown: one program trains an
    agent on each probe."""
    module, config, meta = LOOPS[name]
    names = names or probes_of(name)
    config = module.Config(**config | period.get(name, {}))
    action = TWO if name in DISCRETE else probes.CONTINUOUS
    environments = [PROBES[probe](action) for probe in names]
    shown = jnp.array(list(SHOWN.values()))

    def value(agent, actions):
        """Of the best action, from the weights."""
        if name in ACTOR_CRITICS:
            net = networks.mlp((32,), 1, activation="tanh")
            return net.apply(agent.params["critic"], shown)[..., 0]
        if name not in DISCRETE:
            net = networks.mlp((32,), 1, activation="relu")
            params = jax.tree.map(lambda x: x[0], agent.critic.params)
            return net.apply(params, jnp.concatenate([shown, actions], -1))[..., 0]
        dueling = getattr(config, "dueling", False)
        options = {"layer_norm": name == "pqn", "dueling": dueling}
        net = networks.mlp((32,), 2, activation="relu", **options)
        return net.apply(agent.params, shown).max(-1)

    def made(index):
        return module.make(probes.chosen(index, environments), config)

    def train(index, state):
        return made(index).train(jax.random.key(9), meta, state)[0]

    def show(index, state):
        loop, key = made(index), jax.random.key(0)
        actions = loop.act(key, meta, state.agent, (), shown)[0]
        return actions.reshape(len(shown)), value(state.agent, actions)

    # Its time is that of thousands of updates, not of compilation as elsewhere.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
    def run(key):
        indices = jnp.arange(len(environments))
        state = jax.vmap(lambda i: made(i).init(key, meta), out_axes=OVER_MEMBERS)(
            indices
        )
        state = jax.vmap(train, (0, OVER_MEMBERS), OVER_MEMBERS)(indices, state)
        return jax.vmap(show, (0, OVER_MEMBERS))(indices, state)

    return [
        {
            probe: dict(zip(SHOWN, row, strict=True))
            for probe, row in zip(names, np.asarray(table), strict=True)
        }
        for table in run(jax.random.key(0))
    ]


LATER, START = 1 / (1 - GAMMA), -10 + GAMMA / (1 - GAMMA)


@pytest.mark.parametrize("name", LOOPS)
def test_probes(name):
    """Values, actions, and time limits that are neither ends nor resets."""
    actions, values = trained(name)
    best, other = (1, 0) if name in DISCRETE else (0.5, -0.5)
    expected = {
        ("value", "zero"): 1.0,
        ("observation", "plus"): 1.0,
        ("observation", "minus"): -1.0,
        ("discount", "zero"): GAMMA,
        ("discount", "plus"): 1.0,
        ("policy", "zero"): 1.0,
        ("matching", "plus"): 1.0,
        ("matching", "minus"): 1.0,
    }
    found = {(probe, obs): values[probe][obs] for probe, obs in expected}
    assert found == pytest.approx(expected, abs=0.1)
    assert values["truncated"]["later"] == pytest.approx(LATER, rel=0.05)
    assert values["truncated"]["plus"] == pytest.approx(START, abs=0.5)
    expected = {("policy", "zero"): best, ("matching", "plus"): best}
    expected |= {("matching", "minus"): other}
    found = {(probe, obs): actions[probe][obs] for probe, obs in expected}
    assert found == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("name", ENDING)
def test_termination_twin(name):
    """The same with a true end: V = 1 + γ (1 − p) V with p = 1 in 10 steps."""
    _, values = trained(name)
    expected = 1 / (1 - GAMMA * 0.9)
    assert values["terminated"]["plus"] == pytest.approx(expected, rel=0.1)


# --- the same with a bug --------------------------------------------------------------


@pytest.mark.parametrize("name", CONTROLS)
def test_a_loop_that_takes_limits_for_ends_or_bootstraps_from_a_reset_fails(name):
    _, values = trained(name)
    for bug in BUGS:
        assert abs(values[bug]["later"] - LATER) > 0.1 * LATER, bug


@pytest.mark.parametrize(
    ("name", "function"),
    [("pqn", "lambda_return"), ("double-dueling-3-step", "n_step_window")],
)
def test_a_return_that_leaks_across_episodes_fails(name, function, monkeypatch):
    """λ-returns and n-step returns that go on with the next episode's rewards."""

    def leaking(*args, **kwargs):
        given = inspect.signature(correct).bind(*args, **kwargs)
        given.arguments["done"] = given.arguments["done"] & False
        return correct(*given.args, **given.kwargs)

    correct = getattr(returns, function)
    monkeypatch.setattr(returns, function, leaking)
    _, values = trained(name, ("truncated",))
    assert abs(values["truncated"]["later"] - LATER) > 0.05 * LATER
