"""Rewards that an agent learns from: values of the `reward` slot.

`(obs, action, reward, next_obs, terminated, context) -> scalar`, one transition.
Fitness is always on the environment's own reward.
"""

from __future__ import annotations

import jax

from metaevo import slots
from metaevo.episodes import Transition
from metaevo.slots import Context, Slot


def learned_from(reward: Slot, steps: Transition, context: Context) -> jax.Array:
    """What `reward` makes of transitions with any leading axes."""
    for _ in range(steps.reward.ndim):
        reward = jax.vmap(reward, (0, 0, 0, 0, 0, None))
    return reward(
        steps.obs,
        steps.action,
        steps.reward,
        steps.next_obs,
        steps.terminated,
        context,
    )


@slots.function
def identity(obs, action, reward, next_obs, terminated, context=None):
    """The environment's own reward."""
    del obs, action, next_obs, terminated, context
    return reward
