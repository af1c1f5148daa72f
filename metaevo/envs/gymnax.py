"""Gymnax environments (Lange, 2022) as `Env`s; the only importer of gymnax.

What gymnax leaves irregular is made regular here: observations and rewards are
float32 (FourRooms and some bandits give integers), an integer observation becomes
one-hot (FrozenLake), `max_steps` is an int, a step that both terminates and reaches
the time limit counts as terminated.
"""

from __future__ import annotations

import difflib
import math

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import Box, Discrete, Env, Step, rendering, with_auto_reset
from metaevo.errors import ConfigError

# Downloads its data when made.
_EXCLUDED = ("MNISTBandit-bsuite",)


def names() -> list[str]:
    """The environments of this suite."""
    import gymnax

    return sorted(set(gymnax.registered_envs) - set(_EXCLUDED))


def make(name: str) -> Env:
    """Make a gymnax environment with its default parameters.

    Raises:
        ConfigError: there is no such environment, or it cannot be used offline.
    """
    import gymnax

    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean gymnax/{near[0]}?" if near else ""
        raise ConfigError(f"env='gymnax/{name}': no such environment.{hint}")
    env, params = gymnax.make(name)
    return adapt(env, params, f"gymnax/{name}")


def adapt(env, params, name: str) -> Env:
    """Wrap a gymnax environment object; `params` are its gymnax parameters."""
    from gymnax.environments import spaces

    space = env.observation_space(params)
    num_categories = space.n if isinstance(space, spaces.Discrete) else None
    action_space = env.action_space(params)
    if isinstance(action_space, spaces.Discrete):
        action = Discrete(int(action_space.n))
    elif isinstance(action_space, spaces.Box):
        shape = tuple(int(n) for n in action_space.shape)
        action = Box(shape, action_space.low, action_space.high)
    else:
        raise ConfigError(f"env={name!r}: unsupported action space {action_space}")

    box = action if isinstance(action, Box) else None

    def observe(obs):
        if num_categories is not None:
            return jax.nn.one_hot(obs, num_categories, dtype=jnp.float32)
        return jnp.asarray(obs).astype(jnp.float32)

    # A state's leaves must not change type between steps; reset's types decide.
    types = jax.eval_shape(lambda key: env.reset_env(key, params)[1], jax.random.key(0))

    def strong(state):
        return jax.tree.map(
            lambda x, t: jax.lax.convert_element_type(jnp.asarray(x), t.dtype),
            state,
            types,
        )

    def reset(key):
        obs, state = env.reset_env(key, params)
        return strong(state), observe(obs)

    def step_raw(key, state, act):
        if box is not None:
            act = jnp.clip(act, box.low, box.high)
        obs, state, reward, terminated, info = env.step_env(key, state, act, params)
        terminated = jnp.asarray(terminated).astype(bool)
        truncated = jnp.asarray(env.is_truncated(state, params)).astype(bool)
        obs = observe(obs)
        step = Step(
            obs=obs,
            reward=jnp.asarray(reward).astype(jnp.float32).reshape(()),
            terminated=terminated.reshape(()),
            truncated=(truncated & ~terminated).reshape(()),
            final_obs=obs,
            info=info,
        )
        return strong(state), step

    obs = jax.eval_shape(reset, jax.random.key(0))[1]
    bounds = (0.0, 1.0)
    if isinstance(space, spaces.Box):
        bounds = (space.low, space.high)
    binary = bool(num_categories) or name.endswith("-MinAtar")
    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box(obs.shape, *bounds, binary=binary),
        action=action,
        max_steps=math.ceil(float(params.max_steps_in_episode)),
        name=name,
        render=_renderer(env, params),
    )


def _renderer(env, params):
    """`Env.render`, or None for what has no picture, such as bandits.

    gymnax's own `Visualizer` needs pygame and makes a window system's figures.
    """
    key = jax.random.key(0)
    if env.name in rendering.CLASSIC:

        def frame(state):
            return rendering.classic(env.name, state, params)

    elif hasattr(env, "occupied_map"):  # mazes: wall, goal, agent
        walls = np.asarray(env.occupied_map)

        def frame(state):
            cells = np.zeros((*walls.shape, 3), bool)
            cells[..., 0] = walls
            for channel, (row, column) in ((1, state.goal), (2, state.pos)):
                cells[row, column, channel] = True
            return rendering.grid(cells)

    else:
        observe = jax.jit(lambda state: env.observe(key, state, None, params))
        shape = jax.eval_shape(lambda: observe(env.reset_env(key, params)[1])).shape
        if len(shape) not in (2, 3) or min(shape[:2]) < 2:
            return None

        def frame(state):
            return rendering.grid(observe(state))

    return lambda states: [frame(state) for state in states]
