"""The environments of one member: stepping them, and returns of their episodes.

Leaves [E, ...]; `collect` takes T steps.

In an environment of N players each seat counts as one of the E environments, so one
agent plays all seats and learns from all (parameter sharing): E / N games, whose states
have leaves [E / N, ...], and player i of game g is environment N g + i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.errors import ConfigError
from metaevo.slots import Context
from metaevo.types import Key, Metrics, PyTree

__all__ = [
    "Episodes",
    "Finished",
    "Transition",
    "collect",
    "for_new_agent",
    "learned_from",
    "metrics",
    "start",
    "totals",
    "worlds",
]


class Episodes(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    env_state: Any
    obs: jax.Array
    episode_return: jax.Array  # so far
    episode_length: jax.Array
    num_episodes: jax.Array  # that ended; -1: the one that runs does not count
    last_return: jax.Array  # of the last of them


class Finished(NamedTuple):
    """Episodes at a step; leaves [E], scanned [T, E]."""

    done: jax.Array  # True where one ended that counts
    episode_return: jax.Array  # where done: of the episode that ended
    episode_length: jax.Array
    diverged: jax.Array  # True where the simulation failed
    metrics: Mapping[str, jax.Array] = {}  # `Step.info["metrics"]`


class Transition(NamedTuple):
    """Transitions; leaves [T, E, ...] in a rollout.

    Attributes:
        obs, next_obs: observations, in bytes where that is exact (`envs.packed`); the
            next one is the true one, never a reset's.
        reward: the environment's.
        mask, next_mask: [..., A] bool, the legal actions in the states of `obs` and
            `next_obs`; None where the environment has no `action_mask`.
    """

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array
    done: jax.Array
    mask: jax.Array | None = None
    next_mask: jax.Array | None = None


def start(key: Key, env: envs.Env, num_envs: int) -> Episodes:
    """Fresh episodes in `num_envs` environments.

    Raises:
        ConfigError: `num_envs` is no multiple of the number of players.
    """
    keys = jax.random.split(key, _num_games(env, num_envs))
    env_state, obs = jax.vmap(env.reset)(keys)
    zeros = jnp.zeros(num_envs)
    return Episodes(env_state, _by_seat(env, obs), zeros, zeros, zeros, zeros)


def _num_games(env: envs.Env, num_envs: int) -> int:
    if num_envs % env.num_players:
        raise ConfigError(
            f"inner.num_envs={num_envs} must be a multiple of the {env.num_players} "
            f"players of env={env.name!r}: each seat counts as an environment"
        )
    return num_envs // env.num_players


def _by_seat(env: envs.Env, x: jax.Array) -> jax.Array:
    """[E / N, N, ...] -> [E, ...]; of one player as it is."""
    return x if env.num_players == 1 else x.reshape(-1, *x.shape[2:])


def _by_game(env: envs.Env, x: jax.Array) -> jax.Array:
    """[E, ...] -> [E / N, N, ...]; of one player as it is."""
    return x if env.num_players == 1 else x.reshape(-1, env.num_players, *x.shape[1:])


def _for_each_seat(env: envs.Env, x: jax.Array) -> jax.Array:
    """[E / N] -> [E]."""
    return x if env.num_players == 1 else jnp.repeat(x, env.num_players)


def worlds(
    step_key: Key, reset_key: Key, env: envs.Env, num_steps: int, num_envs: int
) -> tuple[PyTree, Callable[[PyTree], tuple]]:
    """Random numbers for T steps, drawn at once: inside a scan they cost more.

    Where resets are expensive (`env.cheap_reset` false) only one start per environment
    and 16 steps is drawn, N in all: step t gives environment e the start (e + t) mod N.

    Returns:
        a pytree to scan over, leaves [T, ...], and a function from its slice to
        `(keys, fresh states, fresh observations)`, leaves [E, ...], of games with
        several players [E / players, ...].
    """
    num_envs = _num_games(env, num_envs)
    shape = (num_steps, num_envs)
    keys = jax.random.split(step_key, shape)
    if env.cheap_reset:
        state, obs = jax.vmap(jax.vmap(env.reset))(jax.random.split(reset_key, shape))

        def each(drawn):
            keys, state, obs = drawn
            return keys, state, envs.unpacked(obs)

        return (keys, state, envs.packed(env, obs)), each
    num_starts = num_envs * max(1, num_steps // 16)
    pool = jax.vmap(env.reset)(jax.random.split(reset_key, num_starts))

    def rolled(drawn):
        keys, t = drawn
        return (keys, *jax.tree.map(lambda x: jnp.roll(x, -t, 0)[:num_envs], pool))

    return (keys, jnp.arange(num_steps)), rolled


def _step(
    env: envs.Env, world: tuple, episodes: Episodes, action: jax.Array
) -> tuple[Episodes, envs.Step, Finished, jax.Array | None]:
    """One step of E environments, with auto-reset; `world` comes from `worlds`.

    The last output is the mask of the state that the action led to, [E, A] or None.
    """
    keys, fresh_state, fresh_obs = world
    action = _by_game(env, action)
    env_state, out = jax.vmap(env.step_raw)(keys, episodes.env_state, action)
    next_mask = _masks(env, env_state)
    env_state, out = jax.vmap(envs.auto_reset)(env_state, out, fresh_state, fresh_obs)
    out = out._replace(
        obs=_by_seat(env, out.obs),
        final_obs=_by_seat(env, out.final_obs),
        reward=_by_seat(env, out.reward),
        terminated=_for_each_seat(env, out.terminated),
        truncated=_for_each_seat(env, out.truncated),
    )
    episode_return = episodes.episode_return + out.reward
    episode_length = episodes.episode_length + 1
    diverged = jnp.zeros_like(out.done)
    if "diverged" in out.info:
        diverged = _for_each_seat(env, out.info["diverged"])
    counts = out.done & (episodes.num_episodes >= 0)
    measured = out.info.get("metrics", {})
    finished = Finished(counts, episode_return, episode_length, diverged, measured)
    # Selected, not multiplied: infinity times zero would stay NaN.
    episodes = Episodes(
        env_state,
        out.obs,
        episode_return=jnp.where(out.done, 0.0, episode_return),
        episode_length=jnp.where(out.done, 0.0, episode_length),
        num_episodes=episodes.num_episodes + out.done,
        last_return=jnp.where(counts, episode_return, episodes.last_return),
    )
    return episodes, out, finished, next_mask


def _masks(env: envs.Env, state: PyTree) -> jax.Array | None:
    """Legal actions [E, A] in states with leaves [E, ...]."""
    if env.action_mask is None:
        return None
    legal = jax.vmap(lambda state: envs.legal_actions(env, state))(state)
    return None if legal is None else _by_seat(env, legal)


def for_new_agent(episodes: Episodes) -> Episodes:
    """Episodes after the member's agent was replaced by another.

    Past returns are cleared, and the episode that runs is not counted when it ends.
    """
    began = episodes.episode_length > 0
    return episodes._replace(
        num_episodes=jnp.where(began, -1.0, 0.0),
        last_return=jnp.zeros_like(episodes.last_return),
    )


def collect(
    key: Key,
    env: envs.Env,
    episodes: Episodes,
    noise: PyTree,
    choose: Callable[..., tuple[PyTree, jax.Array, PyTree]],
    carry: PyTree = (),
    initial_carry: PyTree = None,
) -> tuple[Episodes, PyTree, Transition, Finished, PyTree]:
    """A rollout of T steps of E environments.

    Args:
        key: one key, or [2], of the steps and of the starts of new episodes.
        noise: leaves [T, E, ...], for `choose`; drawn at once, since random numbers
            inside a scan cost more.
        choose: `(carry, obs, noise, state, mask) -> (carry, action, extras)`, leaves
            [E, ...]: `obs` float32, `state` the environments', `mask` [E, A] their
            legal actions, None without `env.action_mask`. It holds what acting needs;
            all else is faster done afterwards, for all steps at once.
        carry: what `choose` passes on from step to step, leaves [E, ...].
        initial_carry: what it becomes where an episode ended; leaves broadcast to those
            of `carry`. None: zeros.

    Returns:
        the environments and the carry after it, and transitions, ended episodes and
        extras, leaves [T, E, ...].
    """
    step_key, reset_key = jax.random.split(key) if key.ndim == 0 else key
    num_steps, num_envs = jax.tree.leaves(noise)[0].shape[:2]
    drawn, world = worlds(step_key, reset_key, env, num_steps, num_envs)
    if initial_carry is None:
        initial_carry = jax.tree.map(lambda x: jnp.zeros((), x.dtype), carry)

    def one(now, drawn):
        (episodes, carry), (noise, drawn) = now, drawn
        mask = _masks(env, episodes.env_state)
        carry, action, extras = choose(
            carry, episodes.obs, noise, episodes.env_state, mask
        )
        after, out, finished, next_mask = _step(env, world(drawn), episodes, action)
        transition = Transition(
            envs.packed(env, episodes.obs),
            action,
            out.reward,
            envs.packed(env, out.final_obs),
            out.terminated,
            out.done,
            mask,
            next_mask,
        )

        def restarted(x, first):
            done = out.done.reshape(-1, *[1] * (x.ndim - 1))
            return jnp.where(done, first, x)

        carry = jax.tree.map(restarted, carry, initial_carry)
        return (after, carry), (transition, finished, extras)

    (episodes, carry), (steps, finished, extras) = jax.lax.scan(
        one, (episodes, carry), (noise, drawn)
    )
    return episodes, carry, steps, finished, extras


def learned_from(meta: Any, steps: Transition, context: Context) -> jax.Array:
    """Rewards of transitions by the slot `reward`, with any leading axes.

    Args:
        meta: with slots `reward` and `gamma`.
    """
    gamma = slots.value(meta.gamma, context)
    context = context._replace(stats={**context.stats, "gamma": gamma})
    reward = meta.reward
    for _ in range(steps.reward.ndim):
        reward = jax.vmap(reward, (0, 0, 0, 0, 0, None))
    return reward(
        envs.unpacked(steps.obs),
        steps.action,
        steps.reward,
        envs.unpacked(steps.next_obs),
        steps.terminated,
        context,
    )


def totals(finished: Finished) -> Metrics:
    """Sums over a rollout, [T, E] -> scalars; `metrics` makes means of them."""
    done = finished.done
    return {
        "episodes": done.sum(dtype=jnp.float32),
        "return_sum": jnp.where(done, finished.episode_return, 0.0).sum(),
        "length_sum": jnp.where(done, finished.episode_length, 0.0).sum(),
        "diverged": finished.diverged.sum(dtype=jnp.float32),
        "metrics": jax.tree.map(jnp.mean, dict(finished.metrics)),
    }


def metrics(episodes: Episodes, totals: Metrics) -> Metrics:
    """A segment's `return`, `length`, `episodes` and `diverged`, scalars.

    And means over its steps of what the environment measures, `Step.info["metrics"]`.

    Args:
        episodes: after the segment.
        totals: of its rollouts, stacked.
    """
    measured = jax.tree.map(jnp.mean, totals["metrics"])
    sums = {name: x.sum() for name, x in totals.items() if name != "metrics"}
    per_episode = 1 / jnp.maximum(sums["episodes"], 1)
    # If none ended: the last that did, in each environment where one has.
    ended = episodes.num_episodes > 0
    last = jnp.where(ended, episodes.last_return, 0.0).sum()
    known = jnp.where(ended.any(), last / jnp.maximum(ended.sum(), 1), jnp.nan)
    mean_return = sums["return_sum"] * per_episode
    return {
        "return": jnp.where(sums["episodes"] > 0, mean_return, known),
        "length": sums["length_sum"] * per_episode,
        "episodes": sums["episodes"],
        "diverged": sums["diverged"],
        **measured,
    }
