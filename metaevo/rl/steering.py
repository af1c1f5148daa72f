"""Steering a trained agent to goals by the messages that it sees.

The test-time game of Adversarial Cheap Talk, Lu et al., 2023,
https://arxiv.org/abs/2211.11030. A victim learns its own task beside messages, and is
then frozen. An exploiter, which sees observation and goal, sends the messages from
there on, and is scored by the goal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import slots
from metaevo.envs import goals
from metaevo.rl import evaluation
from metaevo.slots import Slot
from metaevo.types import FitnessFn, InnerLoop

__all__ = ["Meta", "goal_reward", "steered"]


class Meta(NamedTuple):
    """Slots of a victim and its exploiter. The victim's other slots keep their values.

    Attributes:
        message: `(obs, context) -> [..., message_size]`, while the victim learns.
        exploiter: the same of what is observed followed by the goal, [..., n + G],
            while it is steered.
    """

    message: Slot
    exploiter: Slot


def steered(victim: InnerLoop, goal: goals.Goal | None = None) -> InnerLoop:
    """The training of `victim` by its own reward, evaluated by how it is steered.

    `evaluate`, `act` and playing are in `goals.with_goal`: the victim acts by its mode,
    sees the exploiter's messages and never a goal, and `return` is the sum of the
    goal's rewards. Its metrics of training are those of its own task.

    Args:
        victim: a loop with a slot `message`, whose default is silence.
        goal: the goals; None: those of its environment, `goals.of`.

    Raises:
        ConfigError: the victim has no slot `message`, or its environment no goals.
    """
    silence = slots.get(victim.meta, "message")
    given = goals.of(victim.env) if goal is None else goal
    env = goals.with_goal(victim.env, given)

    def learner(meta):
        return victim.meta._replace(message=slots.checked(meta).message)

    def init(key, meta):
        return victim.init(key, learner(meta))

    def train(key, meta, state):
        return victim.train(key, learner(meta), state)

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        if state is None:
            raise ValueError("a steered agent acts in a state, which has its goal")
        told = Partial(_tell, slots.checked(meta).exploiter, state.goal)
        meta = victim.meta._replace(message=told)
        return victim.act(key, meta, agent, carry, obs, state.state, mask)

    on = victim.on
    return victim._replace(
        meta=Meta(silence, silence),
        init=init,
        train=train,
        evaluate=evaluation.of_agent(
            env, act, victim.config.num_eval_envs, victim.initial_carry
        ),
        act=act,
        env=env,
        parts=(victim, given),
        tunable=None,
        on=None if on is None else lambda other: steered(on(other), goal),
    )


def _tell(exploiter: Any, goal: Any, obs: Any, context: Any) -> Any:
    """The exploiter's message at observations [..., n], with one goal [G]."""
    goal = jnp.broadcast_to(goal, (*obs.shape[:-1], *goal.shape))
    return exploiter(jnp.concatenate([obs, goal], -1), context)


def goal_reward(loop: InnerLoop) -> FitnessFn:
    """Mean reward of the goal over the time limit of an episode, in [0, 1].

    Steps that an episode ended before count 0. (Lu et al. go on with another episode.)
    """
    max_steps = loop.env.max_steps

    def score(train, evaluation):
        del train
        return evaluation["return"] / max_steps

    return FitnessFn(score, True, "mean goal reward")
