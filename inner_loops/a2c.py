"""Advantage actor-critic, with parallel workers: A2C, and A3C as a setting.

Mnih et al., 2016, https://arxiv.org/abs/1602.01783. One gradient step on each rollout.
`inner.num_workers=4 inner.max_delay=4` is A3C: each worker acts and learns with
parameters of some updates ago, and their gradients are applied in turn. Differences
from the paper:

* Asynchrony is a whole number of updates, the same in each: a run repeats to the bit.
  Worker w of W is ⌊(w + 1) δ / W⌋ updates behind, δ = `delay`.
* Time limits are bootstrapped: a truncated episode's value target contains the value of
  its true last observation.
* Policy and critic are separate networks. With `inner.memory=gru` they are heads of one
  GRU.
* Workers share a normalizer of observations, if there is one.

The loss and the update are in `_actor_critic`, common with IMPALA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

import metaevo
from inner_loops import _actor_critic
from inner_loops._actor_critic import Agent, Estimate, Experience
from metaevo import envs, losses, optimizers, rewards, slots, spaces
from metaevo.rl import actor_critics, delays, heads, networks, returns
from metaevo.slots import Slot
from metaevo.types import InnerLoop, on_any_env

__all__ = ["STATS", "TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member, of all its workers.
        num_steps: T, steps of a rollout. An update takes E x T frames.
        num_workers: W, divides `num_envs`; each gives one gradient step an update.
        max_delay: D, the most updates that a worker is behind; D sets of parameters are
            kept.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation, normalize_reward: by running statistics.
        normalize_advantage: whether the advantages of a worker's rollout get mean 0 and
            deviation 1.
        torso: before the hidden layers of policy and critic: `mlp`, nothing; `cnn`, a
            convolution as in MinAtar.
        memory: `none`, or `gru` of `hidden` units before those layers.
        hidden: units of the GRU.
        features: units of each hidden layer of policy and critic.
        activation: function of these layers.
        reward_scale: factor of the learner's reward, > 0.
        policy: of continuous actions: `normal`, with deviations of its own, or
            `tanh_normal`, of bounded actions, with those that the network gives.
        initial_log_std: of `normal`.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 8
    num_steps: int = 5
    num_workers: int = 1
    max_delay: int = 0
    num_segments: int = 16
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool = False
    normalize_advantage: bool = False
    torso: networks.Torso = "mlp"
    memory: actor_critics.Memory = "none"
    hidden: int = 64
    features: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    reward_scale: float = 1.0
    policy: heads.Policy = "normal"
    initial_log_std: float = 0.0
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of A2C and A3C.

    Attributes:
        lr: step size of the optimizer, before annealing; `context.stats` holds `delay`,
            that of the worker whose gradient is applied.
        gamma: discount, in [0, 1].
        gae_lambda: trace decay, in [0, 1]; 1 is the n-step return of the paper.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: global norm that each worker's gradient is clipped to.
        entropy_spread: > 0: the workers' entropy weights go from `ent_coef` /
            `entropy_spread` to `ent_coef` x `entropy_spread`; 1: all explore alike.
        delay: δ, updates that the last worker is behind, rounded, in [0, D]; None: D.
        delay_decay: c >= 0: the step size of a worker is lr / (1 + c delay).
        advantage: `(reward, value, next_value, log_ratio, terminated, done, context) ->
            [T, E]`, from [T, E] each, what the policy's gradient is weighted by; None:
            generalized advantage estimation. `context.stats` holds `gamma` and
            `gae_lambda`.
        value_loss: `(value, target, old_value, context) -> [...]`.
        policy_loss: added term `(log_prob, log_ratio, advantage, entropy, context)
            -> [...]`, or None.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        activation: `(x) -> [...]`, of hidden layers; None: that of the Config.

    `context.stats` of all slots holds `entropy`, the mean over the last rollouts, 0
    before the first.
    """

    lr: Slot = 7e-4
    gamma: Slot = 0.99
    gae_lambda: Slot = 1.0
    ent_coef: Slot = 0.01
    vf_coef: Slot = 0.5
    max_grad_norm: Slot = 0.5
    entropy_spread: Slot = 1.0
    delay: Slot | None = None
    delay_decay: Slot = 0.0
    advantage: Slot | None = None
    value_loss: Slot = losses.square
    policy_loss: Slot | None = None
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.rmsprop(0.99, 1e-5)
    activation: Slot | None = None


STATS = ("entropy",)
"""Names in `context.stats`: means over the last update's rollouts."""

TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log().starting_at(0.95),
    ent_coef=spaces.log(),
    vf_coef=spaces.log(),
    max_grad_norm=spaces.log(),
)
"""The space that a baseline is tuned in. λ, whose default lies at the end of its scale,
starts beside it."""


# --- what makes it A2C ----------------------------------------------------------------


def _numbers(meta, context):
    return {
        "gamma": slots.value(meta.gamma, context),
        "gae_lambda": slots.value(meta.gae_lambda, context),
    }


def _estimate(meta, numbers, rollout, value, next_value, log_ratio, context):
    """On policy: generalized advantages are the errors of the values, too."""
    del meta, log_ratio, context
    advantage = returns.generalized_advantage(
        rollout.reward,
        value,
        next_value,
        rollout.terminated,
        rollout.done,
        numbers["gamma"],
        numbers["gae_lambda"],
    )
    return Estimate(advantage, advantage)


def _learner(acting, params):
    """A worker's gradient is that of the parameters it acted with."""
    del params
    return acting


def _step_size(meta, context, delay):
    decay = slots.value(meta.delay_decay, context)
    return slots.value(meta.lr, context) / (1.0 + decay * delay)


def _entropy(meta, context, num_workers) -> jax.Array:
    spread = slots.value(meta.entropy_spread, context)
    factors = delays.factors(spread, num_workers)
    return slots.value(meta.ent_coef, context) * factors


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """A2C on `env`; A3C with workers that are behind.

    Metrics of `train`: those of `rollouts.metrics`, `entropy`, and mean and root mean
    square of value − target on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    algorithm = _actor_critic.Algorithm(
        _numbers, _estimate, _learner, _step_size, _entropy, STATS
    )
    return _actor_critic.inner_loop(
        env, config, meta, algorithm, config.num_workers, tunable=TUNABLE
    )


if __name__ == "__main__":
    metaevo.train_main(make)
