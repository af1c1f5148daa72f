"""Tasks of Jumanji (Bonnet et al., 2024) as `Env`s; the only importer of jumanji.

`make("Snake-v1")` is a task of one agent with discrete actions. An action of several
parts, such as Tetris's rotation and column, is one number here; the last part changes
fastest. An observation is all arrays of Jumanji's, flattened and joined in the order of
their names, but for the legal actions: these are `Env.action_mask`. What Jumanji ends
with a discount of 0 has terminated; most of its time limits are among that.

Jumanji: https://arxiv.org/abs/2306.09884.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import (
    Box,
    Discrete,
    Env,
    Step,
    optional,
    require,
    unknown,
    with_auto_reset,
)

MAX_STEPS = {
    "CVRP-v1": 40,
    "Game2048-v1": 1000,
    "GraphColoring-v1": 20,
    "Knapsack-v1": 50,
    "Maze-v0": 100,
    "Minesweeper-v0": 90,
    "PacMan-v1": 1000,
    "RubiksCube-partly-scrambled-v0": 20,
    "RubiksCube-v0": 200,
    "SlidingTilePuzzle-v0": 500,
    "Snake-v1": 4000,
    "Sudoku-v0": 81,
    "Sudoku-very-easy-v0": 81,
    "TSP-v1": 20,
    "Tetris-v0": 400,
}
"""Tasks of one agent with discrete actions that need no download -> time limit.

It is Jumanji's where there is one, the number of decisions where that is fixed, and
chosen here for Game2048: an episode that would be longer is truncated."""


class State(NamedTuple):
    """A state.

    Attributes:
        task: Jumanji's state.
        mask: [num_actions] bool, the legal actions; all where Jumanji tells none.
        time: int32, steps made.
    """

    task: Any
    mask: jax.Array
    time: jax.Array


def names() -> list[str]:
    """The environments of this suite.

    Raises:
        ConfigError: jumanji is not installed.
    """
    require("jumanji", "jumanji", "jumanji")
    return sorted(MAX_STEPS)


def make(name: str) -> Env:
    """Make a task.

    Raises:
        ConfigError: there is no such task here, or jumanji is not installed.
    """
    if name not in MAX_STEPS:
        kind = "task of one agent with discrete actions"
        raise unknown("jumanji", name, names(), kind)
    with optional("env=jumanji/...", "jumanji"):
        import jumanji  # pyright: ignore[reportMissingImports]
    # Its package does not list its names.
    task: Any = jumanji.make(name)  # pyright: ignore[reportPrivateImportUsage]
    max_steps = MAX_STEPS[name]
    parts = np.atleast_1d(np.asarray(task.action_spec.num_values))
    num_actions = math.prod(map(int, parts))

    def mask(timestep):
        legal = getattr(timestep.observation, "action_mask", None)
        return jnp.ones(num_actions, bool) if legal is None else legal.reshape(-1)

    def observed(timestep):
        shown = timestep.observation
        if hasattr(shown, "_asdict"):
            shown = {k: x for k, x in shown._asdict().items() if k != "action_mask"}
        arrays = [jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(shown)]
        return jnp.concatenate(arrays)

    def taken(action):
        if task.action_spec.shape == ():
            return jnp.asarray(action, task.action_spec.dtype)
        split = jnp.unravel_index(action, tuple(map(int, parts)))
        return jnp.stack(split).astype(task.action_spec.dtype)

    def reset(key):
        state, timestep = task.reset(key)
        return State(state, mask(timestep), jnp.int32(0)), observed(timestep)

    def step_raw(key, state, action):
        del key  # Jumanji draws from a key that its state keeps
        inner, timestep = task.step(state.task, taken(action))
        after = State(inner, mask(timestep), state.time + 1)
        terminated = timestep.last() & (timestep.discount == 0)
        truncated = ~terminated & (timestep.last() | (after.time >= max_steps))
        reward = jnp.asarray(timestep.reward, jnp.float32)
        obs = observed(timestep)
        return after, Step(obs, reward, terminated, truncated, obs, {})

    key = jax.random.key(0)
    shown = jax.eval_shape(reset, key)[1]
    has_mask = hasattr(jax.eval_shape(task.reset, key)[1].observation, "action_mask")
    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box(shown.shape),
        action=Discrete(num_actions),
        max_steps=max_steps,
        action_mask=(lambda state: state.mask) if has_mask else None,
        name=f"jumanji/{name}",
    )
