"""Brax environments (Freeman et al., 2021) as `Env`s; the only importer of brax.

`make("ant")` is Brax's raw environment with a time limit of our own: resets are fresh
(Brax's own wrapper starts every episode in one cached state and overwrites the last
observation). A simulation whose numbers are no longer finite ends its episode, with
reward 0 and the last good observation, and is counted in `info["diverged"]`.
"""

from __future__ import annotations

import contextlib
import io

import jax
import jax.numpy as jnp

from metaevo.envs import (
    Box,
    Env,
    Step,
    optional,
    require,
    unknown,
    with_auto_reset,
    with_types,
)
from metaevo.errors import ConfigError

MAX_STEPS = 1000  # the time limit of Brax's own training
# Its own registry; read there it would take seconds, and brax no longer grows.
NAMES = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)
BACKENDS = ("spring", "positional", "generalized", "mjx")


def names() -> list[str]:
    """The environments of this suite.

    Raises:
        ConfigError: brax is not installed.
    """
    require("brax", "brax", "brax")
    return list(NAMES)


def make(name: str) -> Env:
    """Make a Brax environment.

    Args:
        name: `NAME` or `NAME/BACKEND`; the backends are spring, the fastest and the
            default, positional, generalized and mjx. Returns of different backends do
            not compare.

    Raises:
        ConfigError: there is no such environment or backend, or brax is missing.
    """
    base, _, backend = name.partition("/")
    if base not in NAMES:
        raise unknown("brax", name, NAMES)
    if backend and backend not in BACKENDS:
        raise ConfigError(
            f"env='brax/{name}': backend {backend!r} must be one of {BACKENDS}"
        )
    options = {} if base == "fast" else {"backend": backend or "spring"}
    quiet = io.StringIO()  # brax prints what optional simulators it lacks
    with (
        optional("env=brax/...", "brax"),
        contextlib.redirect_stderr(quiet),
        contextlib.redirect_stdout(quiet),
    ):
        from brax import envs
    return adapt(envs.get_environment(base, **options), f"brax/{name}")


def adapt(env, name: str = "", max_steps: int = MAX_STEPS) -> Env:
    """Wrap a Brax environment without wrappers; actions are in [−1, 1]."""
    types = jax.eval_shape(env.reset, jax.random.key(0))

    def reset(key):
        state = with_types(env.reset(key), types)
        return (state, jnp.int32(0)), state.obs

    def step_raw(key, state, action):
        del key
        before, time = state
        after = env.step(before, jnp.clip(action, -1.0, 1.0))
        after = with_types(after, types)
        good = jnp.isfinite(after.obs).all() & jnp.isfinite(after.reward)
        terminated = ~good | (after.done > 0.5)
        obs = jnp.where(good, after.obs, before.obs)
        step = Step(
            obs=obs,
            reward=jnp.where(good, after.reward, 0.0),
            terminated=terminated,
            truncated=(time + 1 >= max_steps) & ~terminated,
            final_obs=obs,
            info={"diverged": ~good},
        )
        return (after.replace(obs=obs), time + 1), step

    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box(types.obs.shape),
        action=Box((env.action_size,), -1.0, 1.0),
        max_steps=max_steps,
        name=name,
        cheap_reset=False,
    )
