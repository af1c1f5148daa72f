"""Gymnax environments (Lange, 2022) as `Env`s; the only importer of gymnax.

What gymnax leaves irregular is made regular here: observations and rewards are
float32 (FourRooms and some bandits give integers), an integer observation becomes
one-hot (FrozenLake), `max_steps` is an int, a step that both terminates and reaches
the time limit counts as terminated.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import (
    Box,
    Discrete,
    Env,
    Step,
    rendering,
    unknown,
    with_auto_reset,
    with_types,
)
from metaevo.errors import ConfigError

# Downloads its data when made.
_EXCLUDED = ("MNISTBandit-bsuite",)
# Parameters that follow from others.
_DERIVED = {
    "CartPole-v1": {
        "total_mass": lambda p: p.masscart + p.masspole,
        "polemass_length": lambda p: p.masspole * p.length,
    }
}


def names() -> list[str]:
    """The environments of this suite."""
    return sorted(set(_gymnax().registered_envs) - set(_EXCLUDED))


class _OnUse(types.ModuleType):
    """A module that is imported when something is taken from it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@functools.cache
def _gymnax() -> Any:
    """Import gymnax, but not what its pictures alone need.

    Seaborn and pyplot, with pandas and scipy, are nine tenths of its import.
    """
    names = [x for x in ("seaborn", "matplotlib.pyplot") if x not in sys.modules]
    sys.modules.update({name: _OnUse(name) for name in names})
    try:
        return importlib.import_module("gymnax")
    finally:
        for name in names:
            del sys.modules[name]


def make(name: str) -> Env:
    """Make a gymnax environment with its default parameters.

    Args:
        name: `CartPole-v1`, or `CartPole-v1?length=0.25..1&force_mag=5..15` for
            parameters that are drawn for each lifetime; see `vary`.

    Raises:
        ConfigError: there is no such environment, it cannot be used offline, or it has
            no such parameter to draw.
    """
    name, question, query = name.partition("?")
    if question:
        return vary(name, **_ranges(f"gymnax/{name}?{query}", query))
    if name not in names():
        raise unknown("gymnax", name, names())
    env, params = _gymnax().make(name)
    return adapt(env, params, f"gymnax/{name}")


def vary(name: str, **ranges: tuple[float, float]) -> Env:
    """Make a gymnax environment whose parameters are drawn for each lifetime.

    They are uniform in their ranges and independent; see `Env.task`. Parameters that
    follow from others do: the mass and the moment of CartPole's pole.

    Args:
        name: such as `CartPole-v1`.
        **ranges: parameter -> (low, high), low < high; numbers of gymnax's `EnvParams`.

    Raises:
        ConfigError: there is no such environment or parameter, or a range is empty.
    """
    make(name)
    env, params = _gymnax().make(name)
    derived = _DERIVED.get(name, {})
    known = {
        field.name
        for field in dataclasses.fields(params)
        if isinstance(getattr(params, field.name), float) and field.name not in derived
    }
    query = "&".join(f"{key}={low:g}..{high:g}" for key, (low, high) in ranges.items())
    full = f"gymnax/{name}?{query}"
    for key, (low, high) in ranges.items():
        if key not in known:
            raise ConfigError(
                f"env={full!r}: no parameter {key!r} to draw; "
                f"{', '.join(sorted(known)) or 'there is none'}"
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"env={full!r}: {key}: expected LOW..HIGH, low < high")
    if not ranges:
        raise ConfigError(f"env={full!r}: expected ?PARAMETER=LOW..HIGH&...")
    return adapt(env, params, full, ranges, derived)


def _ranges(full: str, query: str) -> dict[str, tuple[float, float]]:
    """Ranges by parameter, from `length=0.25..1&force_mag=5..15`."""
    found = {}
    for part in query.split("&"):
        key, _, span = part.partition("=")
        low, _, high = span.partition("..")
        try:
            found[key] = float(low), float(high)
        except ValueError:
            raise ConfigError(
                f"env={full!r}: {part!r}: expected PARAMETER=LOW..HIGH, such as "
                "length=0.25..1"
            ) from None
    return found


def deep_sea(size: int = 12) -> Env:
    """DeepSea of size x size cells, `env=metaevo.envs.gymnax:deep_sea`.

    Its reward of 1 takes `size` right actions in a row, which a random policy has in
    one episode of 2^size (Osband et al., 2020, https://arxiv.org/abs/1908.03568).
    gymnax's own has size 8.
    """
    env = _gymnax().environments.DeepSea(size)
    made = adapt(env, env.default_params, "gymnax/DeepSea-bsuite")
    return made._replace(observation=made.observation._replace(binary=True))


def adapt(
    env,
    params,
    name: str,
    ranges: Mapping[str, tuple[float, float]] = {},
    derived: Mapping = {},
) -> Env:
    """Wrap a gymnax environment object; `params` are its gymnax parameters.

    Args:
        ranges: parameter -> (low, high), of those that are drawn for each lifetime.
        derived: parameter -> function of the parameters, of those that follow from
            others.
    """
    spaces = _gymnax().environments.spaces
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

    types = jax.eval_shape(lambda key: env.reset_env(key, params)[1], jax.random.key(0))

    def functions(params):
        def reset(key):
            obs, state = env.reset_env(key, params)
            return with_types(state, types), observe(obs)

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
            return with_types(state, types), step

        return reset, with_auto_reset(reset, step_raw), step_raw

    def task(key):
        draws = jax.random.uniform(key, (len(ranges),))
        pairs = zip(ranges.items(), draws, strict=True)
        return {key: low + u * (high - low) for (key, (low, high)), u in pairs}

    def at(drawn):
        found = dataclasses.replace(params, **drawn)
        follow = {key: follows(found) for key, follows in derived.items()}
        reset, step, step_raw = functions(dataclasses.replace(found, **follow))
        return made._replace(reset=reset, step=step, step_raw=step_raw)

    reset, step, step_raw = functions(params)
    obs = jax.eval_shape(reset, jax.random.key(0))[1]
    bounds = (0.0, 1.0)
    if isinstance(space, spaces.Box):
        bounds = (space.low, space.high)
    binary = bool(num_categories) or name.partition("?")[0].endswith("-MinAtar")
    made = Env(
        reset=reset,
        step=step,
        step_raw=step_raw,
        observation=Box(obs.shape, *bounds, binary=binary),
        action=action,
        max_steps=math.ceil(float(params.max_steps_in_episode)),
        name=name,
        render=_renderer(env, params),
    )
    return made._replace(task=task, at=at) if ranges else made


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
