"""Sizes that follow from an inner loop's `Config`, and errors that name its key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.policies import ACTIVATIONS
from metaevo.rl import replay

__all__ = [
    "BufferSizes",
    "Lifetime",
    "buffer_sizes",
    "check_integers",
    "check_masks",
    "check_positive",
    "check_turns",
    "lifetime",
    "minibatched",
    "require_box",
    "require_discrete",
]


MAX_UPDATES = (1 << 31) - 1  # of int32


def check_positive(
    config: Any, may_be_zero: Sequence[str] = (), key: str = "inner"
) -> None:
    """Check that a Config's integers are positive and its activation exists.

    Args:
        may_be_zero: names of integers that may be 0.
        key: parameter of the search that holds the Config, for messages.

    Raises:
        ConfigError: an integer is too small, or there is no such activation.
    """
    check_integers(config, may_be_zero, key)
    if config.activation not in ACTIVATIONS:
        near = difflib.get_close_matches(config.activation, ACTIVATIONS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"{key}.activation={config.activation!r} is not a function of hidden "
            f"layers; choose one of {', '.join(ACTIVATIONS)}.{hint}"
        )


def check_integers(
    config: Any, may_be_zero: Sequence[str] = (), key: str = "inner"
) -> None:
    """Check that a Config's integers, and those in its lists, are positive.

    Args:
        may_be_zero: names of integers that may be 0.
        key: parameter of the search that holds the Config, for messages.

    Raises:
        ConfigError: an integer is below 1.
    """
    for field in dataclasses.fields(config):
        value, least = getattr(config, field.name), int(field.name not in may_be_zero)
        listed = value if isinstance(value, tuple) else (value,)
        numbers = [x for x in listed if isinstance(x, int) and not isinstance(x, bool)]
        if any(x < least for x in numbers):
            shown = f"[{','.join(map(str, value))}]" if listed is value else value
            raise ConfigError(f"{key}.{field.name}={shown} must be >= {least}")


def require_box(env: envs.Env, algorithm: str) -> envs.Box:
    """The actions of `env`, which are continuous.

    Raises:
        ConfigError: they are not.
    """
    if not isinstance(env.action, envs.Box):
        raise ConfigError(
            f"env={env.name!r}: {algorithm} needs continuous actions; see dqn, pqn"
        )
    return env.action


def require_discrete(env: envs.Env, algorithm: str) -> envs.Discrete:
    """The actions of `env`, which are discrete.

    Raises:
        ConfigError: they are not.
    """
    if not isinstance(env.action, envs.Discrete):
        raise ConfigError(
            f"env={env.name!r}: {algorithm} needs discrete actions; see td3, sac"
        )
    return env.action


def check_masks(env: envs.Env, honored: bool) -> None:
    """Check that only legal actions of `env` will be taken.

    Args:
        honored: `InnerLoop.masks`.

    Raises:
        ConfigError: `env` has an action mask and the algorithm does not honor it.
    """
    if env.action_mask is None:
        return
    if not isinstance(env.action, envs.Discrete):
        raise ConfigError(f"env={env.name!r}: action_mask needs discrete actions")
    if not honored:
        raise ConfigError(
            f"env={env.name!r} has an action_mask, which this inner loop does not "
            "honor (InnerLoop.masks); those of discrete actions do"
        )


def check_turns(env: envs.Env, taken: bool) -> None:
    """Check that the algorithm can play the games of `env`.

    Args:
        taken: whether it plays for both players of a game of turns.

    Raises:
        ConfigError: `env` is such a game and it does not.
    """
    if env.player is not None and not taken:
        raise ConfigError(
            f"env={env.name!r} is a game of two players who take turns; see alphazero, "
            "gumbel_alphazero"
        )


class Lifetime(NamedTuple):
    """Updates in a lifetime and in each of its segments, and frames in an update."""

    num_updates: int
    updates_per_segment: int
    frames_per_update: int


def lifetime(
    config: Any, frames_per_update: int, num_warmup_frames: int = 0
) -> Lifetime:
    """The `Lifetime` that `total_timesteps` and `num_segments` of a Config give.

    Raises:
        ConfigError: there is less than one update in a segment, or more of them than
            an int32 counts.
    """
    num_updates = (config.total_timesteps - num_warmup_frames) // frames_per_update
    per_segment = num_updates // config.num_segments
    if per_segment < 1:
        least = frames_per_update * config.num_segments + num_warmup_frames
        warmup = f" after {num_warmup_frames} of warm-up" if num_warmup_frames else ""
        raise ConfigError(
            f"inner.total_timesteps={config.total_timesteps} is less than one update "
            f"({frames_per_update} frames) in each of {config.num_segments} segments"
            f"{warmup}; give at least {least} or lower inner.num_segments"
        )
    num_updates = per_segment * config.num_segments
    if num_updates > MAX_UPDATES:
        raise ConfigError(
            f"inner.total_timesteps={config.total_timesteps} is {num_updates:,} updates"
            f" of {frames_per_update} frames, of which a clock counts {MAX_UPDATES:,}; "
            f"give at most {MAX_UPDATES * frames_per_update}"
        )
    return Lifetime(num_updates, per_segment, frames_per_update)


def minibatched(config: Any) -> int:
    """Frames of a rollout, `num_envs` x `num_steps`.

    Raises:
        ConfigError: `num_minibatches` does not divide them.
    """
    frames = config.num_envs * config.num_steps
    if frames % config.num_minibatches:
        raise ConfigError(
            f"inner.num_minibatches={config.num_minibatches} does not divide "
            f"num_envs x num_steps = {frames}"
        )
    return frames


class BufferSizes(NamedTuple):
    """Sizes of a replay buffer, in steps of all environments of a member."""

    num_rows: int
    num_warmup: int


def buffer_sizes(config: Any, window: int = 1) -> BufferSizes:
    """The `BufferSizes` that `buffer_size` and `learning_starts` of a Config give.

    Both in whole updates of `num_envs` x `num_steps` frames: the capacity, which is
    never more than a lifetime, is rounded down, the warm-up up.

    Raises:
        ConfigError: the warm-up does not fit, or is too short for windows of `window`
            steps; see `replay.make`.
    """
    frames = config.num_envs * config.num_steps
    size = min(config.buffer_size, config.total_timesteps)
    rows = size // frames * config.num_steps
    warmup = -(-config.learning_starts // frames) * config.num_steps
    least = replay.least_warmup(window)
    if not least <= warmup <= rows:
        fewer = config.total_timesteps < config.buffer_size
        name = "total_timesteps" if fewer else "buffer_size"
        raise ConfigError(
            f"inner.learning_starts={config.learning_starts} must be at least "
            f"{least * config.num_envs} frames and fit into inner.{name}={size}, in "
            f"whole updates of {frames} frames"
        )
    return BufferSizes(rows, warmup)
