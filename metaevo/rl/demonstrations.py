"""Demonstrations: recorded episodes, and prioritized sequences of them.

They are read once, when a loop is made, and are the same for all seeds and members:
what members have of their own is the priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs
from metaevo.envs import last_step
from metaevo.errors import ConfigError
from metaevo.rl import matches, sum_tree
from metaevo.rl.priorities import Drawn, Priorities
from metaevo.rl.recurrent_q import Memory, Sequences
from metaevo.rl.rollouts import Transition
from metaevo.types import Key

__all__ = ["SCRIPTS", "Demonstrated", "record", "script", "sequences"]

Script = Callable[[jax.Array, Any], jax.Array]


def _along_velocity(obs: jax.Array, state: Any) -> jax.Array:
    """Pushes the car of MountainCar where it moves: about −120."""
    del state
    return jnp.where(obs[1] >= 0, 2, 0)


def _to_the_right(obs: jax.Array, state: Any) -> jax.Array:
    """Dives to the right in DeepSea, whichever action that is: the optimum, 0.99."""
    del obs
    last = len(state.action_mapping) - 1
    return state.action_mapping[jnp.minimum(state.row, last), state.column]


def _perfectly(obs: jax.Array, state: Any) -> jax.Array:
    """A best move of tic-tac-toe: never loses, beats a random opponent six in seven."""
    game = envs.make("pgx/tic_tac_toe")
    mask = envs.legal_actions(game, state.state)
    return matches.minimax(game)(jax.random.key(0), obs, state.state, mask)


SCRIPTS: Mapping[str, Script] = {
    "gymnax/MountainCar-v0": _along_velocity,
    "gymnax/DeepSea-bsuite": _to_the_right,
    "versus/pgx/tic_tac_toe": _perfectly,
}
"""`(obs, state) -> action` by the name of an environment."""


def script(env: envs.Env) -> Script:
    """The script that demonstrates `env`.

    Raises:
        ConfigError: there is none.
    """
    if env.name not in SCRIPTS:
        raise ConfigError(
            f"env={env.name!r}: no script demonstrates it; give demonstrations, or "
            f"choose one of {', '.join(SCRIPTS)}"
        )
    return SCRIPTS[env.name]


def record(env: envs.Env, act: Script, num_episodes: int, seed: int = 0) -> Transition:
    """Whole episodes, one after another.

    Args:
        act: `(obs, state) -> action`.

    Returns:
        numpy arrays [N, ...]; the last step ends an episode.

    Raises:
        ConfigError: `env` draws a task for each lifetime, or has several players.
    """
    if env.task is not None or env.num_players > 1:
        raise ConfigError(
            f"env={env.name!r}: demonstrations are of one task of one player"
        )

    def episode(key):
        reset_key, run_key = jax.random.split(key)

        def step(now, key):
            state, obs = now
            mask = envs.legal_actions(env, state)
            action = jnp.asarray(act(obs, state), jnp.int32)
            state, out = env.step_raw(key, state, action)
            taken = Transition(
                *(envs.packed(env, obs), action, out.reward),
                *(envs.packed(env, out.final_obs), out.terminated, out.done),
                *(mask, envs.legal_actions(env, state)),
            )
            return (state, out.final_obs), taken

        keys = jax.random.split(run_key, env.max_steps)
        return jax.lax.scan(step, env.reset(reset_key), keys)[1]

    keys = jax.random.split(jax.random.key(seed), num_episodes)
    steps = jax.device_get(jax.jit(jax.vmap(episode))(keys))
    # Until the first end of each.
    before = np.cumsum(steps.done, 1) - steps.done
    return jax.tree.map(lambda x: x[before == 0], steps)


class Demonstrated(NamedTuple):
    """Prioritized sequences of demonstrations, M in all.

    Attributes:
        read: `leaves [...] -> Sequences`, leaves [W, ...] and [...].
        start: `mass [M] -> Priorities`.
        draw: `(key, priorities, shape) -> Drawn`, with replacement; its `indices` are
            the leaves [*shape], its ages 1.
        update: `(priorities, leaves [...], mass [...], chosen [...]) -> Priorities`,
            as of `priorities.Prioritized`.
        number: M.
    """

    read: Callable[[jax.Array], Sequences]
    start: Callable[[jax.Array], Priorities]
    draw: Callable[[Key, Priorities, tuple[int, ...]], Drawn]
    update: Callable[..., Priorities]
    number: int


def sequences(steps: Transition, window: int, period: int, hidden: int) -> Demonstrated:
    """The sequences of `window` steps that start every `period` steps.

    Steps follow each other in a circle, so that each is in as many sequences. A
    sequence starts without a memory, but with its last action and reward.

    Args:
        steps: whole episodes, [N, ...], as of `record`.
        hidden: units of the memory.

    Raises:
        ConfigError: the last step does not end an episode.
    """
    num_steps = len(steps.done)
    if not num_steps or not steps.done[-1]:
        raise ConfigError("demonstrations must be whole episodes, one after another")
    number = -(-num_steps // period)
    before = np.arange(number) * period - 1
    ended = np.asarray(steps.done)[before]
    action = np.where(ended, last_step.NO_ACTION, np.asarray(steps.action)[before])
    reward = np.where(ended, 0.0, np.asarray(steps.reward)[before])
    last = action.astype(np.int32), reward.astype(np.float32)

    def read(leaves):
        step = jnp.arange(window).reshape(-1, *[1] * leaves.ndim)
        rows = (leaves * period + step) % num_steps
        taken = jax.tree.map(lambda x: jnp.asarray(x)[rows], steps)
        taken = taken._replace(
            obs=envs.unpacked(taken.obs), next_obs=envs.unpacked(taken.next_obs)
        )
        nothing = jnp.zeros((*leaves.shape, hidden))
        start = Memory(nothing, *(jnp.asarray(x)[leaves] for x in last))
        return Sequences(taken, start)

    def start(mass):
        return Priorities(sum_tree.build(mass), jnp.zeros(number, jnp.int32))

    def draw(key, priorities, shape):
        leaf, mass = sum_tree.draw(key, priorities.levels, shape)
        return Drawn(leaf, mass, jnp.ones(shape), priorities.visits[leaf])

    def update(priorities, leaves, mass, chosen):
        leaves = jnp.where(chosen, leaves, sum_tree.NOWHERE).reshape(-1)
        levels = sum_tree.assign(priorities.levels, leaves, mass.reshape(-1))
        return Priorities(levels, priorities.visits.at[leaves].add(1))

    return Demonstrated(read, start, draw, update, number)
