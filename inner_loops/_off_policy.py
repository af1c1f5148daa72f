"""Settings and state of the actor-critics with a replay buffer: TD3, SAC, QT-Opt.

`metaevo/rl/off_policy.py` has what they compute alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

from metaevo.rl import packing, rollouts


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update.
        batch_size: B, transitions in a minibatch.
        num_step_return: n, steps before the bootstrap.
        critic_layer_norm: normalize the critics' hidden layers.
        num_segments: K, points on the learning curve.
        features: units of each hidden layer of actor and critics.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 1_000_000
    learning_starts: int = 1_000
    buffer_size: int = 1_000_000
    num_envs: int = 1
    num_steps: int = 1
    num_gradient_steps: int = 1
    batch_size: int = 256
    num_step_return: int = 1
    critic_layer_norm: bool = False
    num_segments: int = 16
    features: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    num_eval_envs: int = 16


CHOICES = (
    "inner.num_step_return=3",
    "inner.critic_layer_norm=true",
    "inner.normalize_observation=true",
)
"""Static settings that a rival may take."""


class Experience(NamedTuple):
    """The member's environments and replay buffer."""

    episodes: rollouts.Episodes
    noise: jax.Array  # [E, ...], the last
    rows: packing.Packed | tuple[()]  # of the replay buffer, () where it is shared
    steps_since_birth: jax.Array  # int32, warm-up not counted
