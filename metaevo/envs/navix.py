"""Grid worlds of NAVIX (Pignatelli et al., 2024) as `Env`s; the only importer of navix.

`make("Navix-DoorKey-8x8-v0")`. NAVIX is MiniGrid in JAX. An observation is that of the
environment, most often the grid as MiniGrid's symbols, [height, width, 3] of tag, color
and state, as numbers that are not scaled.

NAVIX: https://arxiv.org/abs/2407.19396.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import Box, Discrete, Env, Step, optional, unknown, with_auto_reset

_TRUNCATED, _TERMINATED = 1, 2  # navix.StepType
_LARGEST = 10  # of MiniGrid's symbols: the agent. NAVIX's own bound leaves it out.


def _navix() -> Any:
    with optional("env=navix/...", "navix"):
        import navix  # pyright: ignore[reportMissingImports]
    return navix


def names() -> list[str]:
    """The environments of this suite."""
    return sorted(_navix().registry())


def make(name: str) -> Env:
    """Make a grid world.

    Raises:
        ConfigError: there is no such environment, or navix is not installed.
    """
    navix = _navix()
    if name not in navix.registry():
        raise unknown("navix", name, names())
    world: Any = navix.make(name)

    def observed(timestep):
        return timestep.observation.astype(jnp.float32)

    def reset(key):
        timestep = world.reset(key)
        return timestep, observed(timestep)

    def step_raw(key, timestep, action):
        # NAVIX draws from the key that it keeps; its `step` would reset as well.
        del key
        after = world._step(timestep, jnp.asarray(action, jnp.int32))
        terminated = after.step_type == _TERMINATED
        truncated = after.step_type == _TRUNCATED
        reward = after.reward.astype(jnp.float32)
        obs = observed(after)
        return after, Step(obs, reward, terminated, truncated, obs, {})

    _, shown = jax.eval_shape(reset, jax.random.key(0))
    high = max(_LARGEST, float(np.max(world.observation_space.maximum)))
    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box(shown.shape, 0.0, high),
        action=Discrete(len(world.action_set)),
        max_steps=int(world.max_steps),
        name=f"navix/{name}",
    )
