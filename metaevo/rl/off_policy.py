"""Parts of algorithms with a replay buffer: DQN, TD3, SAC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import config_checks, noise, priorities, replay, returns, rollouts
from metaevo.rl.config_checks import Lifetime
from metaevo.rl.packing import Packed
from metaevo.rl.rollouts import Transition
from metaevo.slots import Context
from metaevo.types import Key

__all__ = [
    "NStepTransition",
    "Sizes",
    "insert_and_sample",
    "n_step",
    "read",
    "sizes",
    "template",
    "warm_up",
]


class Sizes(NamedTuple):
    """Sizes that follow from a Config.

    Attributes:
        lifetime: updates, warm-up not counted.
        num_rows: capacity of the buffer in steps of all environments.
        num_warmup: steps of the warm-up.
        num_steps: steps between updates.
        window: consecutive steps of a sample.
    """

    lifetime: Lifetime
    num_rows: int
    num_warmup: int
    num_steps: int
    window: int

    def buffer(self, env: envs.Env, num_envs: int) -> replay.Replay:
        """The replay buffer for `num_envs` environments."""
        rows = self.num_rows, num_envs, self.num_warmup
        return replay.make(template(env), *rows, self.num_steps, self.window)

    def priorities(self, num_envs: int, stride: int = 1) -> priorities.Prioritized:
        """Priorities of the windows of that buffer that start at each `stride` rows."""
        rows = self.num_rows, num_envs, self.num_warmup
        return priorities.make(*rows, self.num_steps, self.window, stride)


def template(env: envs.Env) -> Transition:
    """One step of one environment as a buffer keeps it: binary observations as bits."""

    def leaf(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    obs = leaf(env.observation.shape, bool if env.observation.binary else jnp.float32)
    if isinstance(env.action, envs.Discrete):
        action = leaf((), jnp.int32)
    else:
        action = leaf(env.action.shape, jnp.float32)
    reward, flag = leaf((), jnp.float32), leaf((), bool)
    mask = None
    if env.action_mask is not None and isinstance(env.action, envs.Discrete):
        mask = leaf((env.action.num,), bool)
    fields: Any = (obs, action, reward, obs, flag, flag, mask, mask)
    return Transition(*fields)


def sizes(config: Any, window: int = 1) -> Sizes:
    """The `Sizes` of a Config.

    Raises:
        ConfigError: they do not fit each other.
    """
    num_rows, num_warmup = config_checks.buffer_sizes(config, window)
    lifetime = config_checks.lifetime(
        config, config.num_envs * config.num_steps, num_warmup * config.num_envs
    )
    return Sizes(lifetime, num_rows, num_warmup, config.num_steps, window)


def insert_and_sample(
    key: Key,
    buffer: replay.Replay,
    rows: Packed,
    update: jax.Array,
    own_steps: jax.Array | None,
    steps: Transition,
    shape: tuple[int, ...],
) -> tuple[Packed, Transition]:
    """Add the steps of this update to the buffer and sample from it.

    Args:
        rows: of the buffer.
        update: updates done before, of the clock.
        own_steps: steps since the member's birth, these included; None: as many as
            were inserted.
        steps: leaves [T, E, ...].
        shape: of the samples.

    Returns:
        the rows, and transitions, leaves [window, *shape, ...], observations float32.
    """
    num_steps = steps.reward.shape[0]
    inserted = update * num_steps
    rows = buffer.add(rows, inserted, steps)
    inserted = inserted + num_steps
    own_steps = inserted if own_steps is None else own_steps
    return rows, read(buffer, rows, buffer.draw(key, inserted, own_steps, shape))


def read(buffer: replay.Replay, rows: Packed, indices: jax.Array) -> Transition:
    """Transitions of a buffer, leaves [*indices.shape, ...], observations float32."""
    steps = buffer.read(rows, indices)
    return steps._replace(
        obs=envs.unpacked(steps.obs), next_obs=envs.unpacked(steps.next_obs)
    )


class NStepTransition(NamedTuple):
    """Transitions of n steps, leaves [...].

    Attributes:
        obs, action, mask: at the first step.
        reward: Σ_{i<m} γⁱ rᵢ, of m <= n steps: a window ends where an episode does.
        next_obs, next_mask: after the last of them.
        terminated: whether the last of them terminated the episode.
        discount: γᵐ.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array
    discount: jax.Array
    mask: jax.Array | None
    next_mask: jax.Array | None

    def target(self, next_value: jax.Array) -> jax.Array:
        """R + γᵐ (1 − terminated) V(o'); a terminal state's value is not looked at."""
        return self.reward + jnp.where(self.terminated, 0.0, self.discount * next_value)


def n_step(
    windows: Transition,
    reward: jax.Array,
    gamma: jax.Array | float,
    see: Callable[[jax.Array], jax.Array] = lambda obs: obs,
) -> NStepTransition:
    """The transitions of n steps that windows make.

    Args:
        windows: leaves [n, ...].
        reward: [n, ...], that the agent learns from.
        gamma: in [0, 1].
        see: normalizes observations.
    """
    total, _, last = returns.n_step_window(
        reward, windows.terminated, windows.done, gamma
    )

    def after(x):
        out = x[0]
        for i in range(1, len(x)):
            here = (last == i).reshape(*last.shape, *[1] * (out.ndim - last.ndim))
            out = jnp.where(here, x[i], out)
        return out

    first = jax.tree.map(lambda x: x[0], windows)
    kept = windows.next_obs, windows.next_mask, windows.terminated
    next_obs, next_mask, terminated = jax.tree.map(after, kept)
    return NStepTransition(
        see(first.obs),
        first.action,
        total,
        see(next_obs),
        terminated,
        gamma * jnp.power(gamma, last),
        first.mask,
        next_mask,
    )


def warm_up(
    keys: Sequence[Key] | jax.Array,
    env: envs.Env,
    noise_shape: tuple[int, ...],
    random: Callable[[jax.Array, jax.Array | None], jax.Array],
    num_envs: int,
    num_steps: int,
    meta: Any,
) -> tuple[rollouts.Episodes, Transition, jax.Array]:
    """Fresh environments after steps with random actions.

    Args:
        keys: [4], of the environments' starts, first noise, further noise and steps.
        noise_shape: of one action's noise.
        random: `(noise [E, *noise_shape], mask) -> action` of standard normal noise.
        meta: with the slot `noise_correlation`.

    Returns:
        episodes, transitions [num_steps, num_envs, ...], and the last noise
        [num_envs, *noise_shape].
    """
    env_key, first_key, noise_key, step_key = keys
    first = jax.random.normal(first_key, (num_envs, *noise_shape))
    drawn = noise.draw(noise_key, meta, Context(), first, num_steps)

    def choose(carry, obs, noise, state, mask):
        del obs, state
        return carry, random(noise, mask), ()

    episodes, _, steps, _, _ = rollouts.collect(
        step_key, env, rollouts.start(env_key, env, num_envs), drawn, choose
    )
    return episodes, steps, drawn[-1]
