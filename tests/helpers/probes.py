"""Probe environments: each fails for one kind of bug.

The five of Andy Jones' list (as in rejax), a truncation probe whose resets look unlike
other states, and its twin that terminates instead.
"""

import functools

import jax
import jax.numpy as jnp

from metaevo.envs import Box, Discrete, Env, Step, with_auto_reset

CONTINUOUS = Box((1,), -1.0, 1.0)


def _env(reset, transition, obs_size=1, action=Discrete(1), max_steps=1) -> Env:
    """An Env from `reset(key) -> state`, `transition(state, action) -> (state, reward,
    terminated, truncated)` and states that are `(time, obs)`."""

    def full_reset(key):
        state = (jnp.int32(0), reset(key))
        return state, state[1]

    def step_raw(key, state, action):
        time, obs = state
        obs, reward, terminated, truncated = transition(time, obs, action)
        terminated, truncated = jnp.asarray(terminated), jnp.asarray(truncated)
        state = (time + 1, obs)
        reward = jnp.asarray(reward, jnp.float32)
        return state, Step(obs, reward, terminated, truncated, obs, {})

    return Env(
        reset=full_reset,
        step=with_auto_reset(full_reset, step_raw),
        step_raw=step_raw,
        observation=Box((obs_size,)),
        action=action,
        max_steps=max_steps,
    )


def value(action=Discrete(1)) -> Env:
    """Zero observation, one step, reward 1: V = 1."""
    return _env(
        lambda key: jnp.zeros(1), lambda t, obs, a: (obs, 1.0, True, False), 1, action
    )


def _sign(key):
    return jax.random.rademacher(key, (1,), jnp.float32)


def always(obs) -> Env:
    """One observation [A], reward 1, one step: every batch is known."""
    return _env(
        lambda key: obs,
        lambda t, obs, a: (obs, 1.0, True, False),
        len(obs),
        CONTINUOUS,
    )


def observation(action=Discrete(1)) -> Env:
    """Random observation ±1, reward = observation: V(obs) = obs."""
    return _env(_sign, lambda t, obs, a: (obs, obs[0], True, False), 1, action)


def discount(action=Discrete(1)) -> Env:
    """Two steps, observation = time, reward at the end: V = (γ, 1)."""
    return _env(
        lambda key: jnp.zeros(1),
        lambda t, obs, a: (obs + 1, 1.0 * (t == 1), t == 1, False),
        action=action,
        max_steps=2,
    )


def policy() -> Env:
    """Two actions, reward −1 and 1: picks the second."""
    return _env(
        lambda key: jnp.zeros(1),
        lambda t, obs, a: (obs, 2.0 * a - 1, True, False),
        action=Discrete(2),
    )


def matching() -> Env:
    """The action must match the observation's sign."""
    return _env(
        _sign,
        lambda t, obs, a: (
            obs,
            jnp.where((obs[0] > 0) == (a == 1), 1.0, -1.0),
            True,
            False,
        ),
        action=Discrete(2),
    )


def continuous_policy() -> Env:
    """One action in [−1, 1], reward 1 − (a − ½)²: picks ½."""
    return _env(
        lambda key: jnp.zeros(1),
        lambda t, obs, a: (obs, 1 - (a[0] - 0.5) ** 2, True, False),
        action=CONTINUOUS,
    )


def continuous_matching() -> Env:
    """Observation ±1, reward 1 − (a − ½ obs)²."""
    return _env(
        _sign,
        lambda t, obs, a: (obs, 1 - (a[0] - 0.5 * obs[0]) ** 2, True, False),
        action=CONTINUOUS,
    )


START, LATER = (1.0, 0.0), (0.0, 1.0)


def truncated(horizon=10, action=Discrete(1)) -> Env:
    """Reward −10 in the first state and 1 in all others, *truncated* at `horizon`.

    V(later) = 1/(1−γ), V(start) = −10 + γ/(1−γ). To treat the time limit as an end,
    or to bootstrap from the next episode's start, gives much less.
    """
    return _env(
        lambda key: jnp.array(START),
        lambda t, obs, a: (
            jnp.array(LATER),
            jnp.where(t == 0, -10.0, 1.0),
            False,
            t + 1 >= horizon,
        ),
        obs_size=2,
        action=action,
        max_steps=horizon,
    )


def terminated(horizon=10, action=Discrete(1)) -> Env:
    """The twin: reward 1 in one single state, *terminated* at `horizon`.

    The mean of the return over the steps of an episode is
    1/horizon Σ_{k=1..horizon} (1 − γᵏ)/(1−γ).
    """
    return _env(
        lambda key: jnp.ones(1),
        lambda t, obs, a: (obs, 1.0, t + 1 >= horizon, False),
        action=action,
        max_steps=horizon,
    )


def with_steps(env, change) -> Env:
    """A probe with a bug: `change` is applied to each of its steps."""

    def step_raw(key, state, action):
        state, step = env.step_raw(key, state, action)
        return state, change(step)

    return env._replace(step_raw=step_raw)


def chosen(index, environments) -> Env:
    """One of several probes; its index is traced.

    Observations have the size of the largest, filled with zeros; actions are those of
    the first probe.
    """
    size = max(env.observation.shape[0] for env in environments)

    def widened(tree):
        return jax.tree.map(
            lambda x: jnp.pad(x, (0, size - len(x))) if jnp.ndim(x) else x, tree
        )

    def reset(key):
        resets = [lambda key, env=env: widened(env.reset(key)) for env in environments]
        return jax.lax.switch(index, resets, key)

    def step(env, key, state, action):
        time, obs = state
        own = obs[: env.observation.shape[0]]
        return widened(env.step_raw(key, (time, own), action))

    def step_raw(key, state, action):
        steps = [functools.partial(step, env) for env in environments]
        return jax.lax.switch(index, steps, key, state, action)

    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box((size,)),
        action=environments[0].action,
        max_steps=max(env.max_steps for env in environments),
    )


def fall_or_live(action=CONTINUOUS, limit=40, fall=4) -> Env:
    """Reward 1 a step; a first action above 0 means to fall after `fall` steps.

    All others live to the limit. A search that counts ended episodes alone sees those
    that fall, and takes them for the best.
    """

    def transition(t, obs, a):
        falls = jnp.where(t == 0, jnp.asarray(a).reshape(-1)[0] > 0, obs[1] > 0)
        obs = jnp.stack([1.0, jnp.float32(falls)])
        return obs, 1.0, falls & (t + 1 >= fall), t + 1 >= limit

    start = jnp.array([1.0, 0.0])
    return _env(lambda key: start, transition, 2, action, limit)._replace(
        name="fall_or_live"
    )


def fall_or_live_discrete() -> Env:
    """The same for action values: action 1 falls."""
    return fall_or_live(Discrete(2))


def minefield(action=Discrete(3)) -> Env:
    """Of three actions one is illegal, 0, 1 and 2 in turn; it makes everything NaN.

    The observation does not tell which. In the last state no action is legal.
    """
    num, last = 3, 6

    def transition(t, obs, a):
        illegal = jnp.asarray(a).reshape(-1)[0] == t % num
        poison = jnp.where(illegal, jnp.nan, 0.0)
        return obs + poison, 1.0 + poison, t + 1 >= last, False

    env = _env(lambda key: jnp.ones(1), transition, 1, action, last)
    return env._replace(
        action_mask=lambda state: (
            (jnp.arange(num) != state[0] % num) & (state[0] < last)
        ),
        name="minefield",
    )
