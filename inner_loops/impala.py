"""Importance-weighted actor-learner (Espeholt et al., 2018): IMPALA.

https://arxiv.org/abs/1802.01561. The actors hold the parameters of some updates ago;
the learner corrects for that by V-trace, in one gradient step on each rollout.
Differences from the paper:

* Actors are the environments of one program, and how far they are behind is a whole
  number of updates, the same in each: a run repeats to the bit. There is no queue.
* The loss is a mean over the rollout, the paper's a sum. So RMSProp's ε is 1e-5 in
  place of 0.1, gradients are clipped to a norm of 0.5 in place of 40, and the step size
  is larger.
* A rollout is of 8 environments, in place of a batch of 32: more updates.
* Rewards are not clipped, the observation holds neither the last action nor reward, and
  policy and critic are separate networks. With `inner.memory=gru` they are heads of one
  GRU.
* Time limits are bootstrapped: a truncated episode's value target contains the value of
  its true last observation.

The loss and the update are in `_actor_critic`, common with A2C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

import metaevo
from inner_loops import _actor_critic
from inner_loops._actor_critic import Agent, Estimate, Experience
from metaevo import advantages, envs, losses, optimizers, rewards, slots, spaces
from metaevo.rl import actor_critics, heads, networks, returns
from metaevo.slots import Slot
from metaevo.types import InnerLoop, on_any_env

__all__ = ["STATS", "TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member.
        num_steps: T, steps of a rollout. An update takes E x T frames.
        max_delay: D, the most updates that actors are behind; D sets of parameters are
            kept.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation, normalize_reward: by running statistics.
        normalize_advantage: whether the advantages of a rollout get mean 0 and
            deviation 1.
        torso: before the hidden layers of policy and critic: `mlp`, nothing; `cnn`, a
            convolution as in MinAtar.
        memory: `none`, or `gru` of `hidden` units before those layers. The learner sees
            a rollout again from the actors' memory.
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
    num_steps: int = 20
    max_delay: int = 4
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
    """Slots of IMPALA.

    Attributes:
        lr: step size of the optimizer, before annealing; `context.stats` holds `delay`.
        gamma: discount, in [0, 1].
        gae_lambda: λ of V-trace, in [0, 1].
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: global norm that gradients are clipped to.
        rho_clip: ρ̄ > 0, where the weights of the values' errors are truncated.
        c_clip: c̄ > 0, where those of the trace are; at most ρ̄ acts.
        pg_clip: > 0, where those of the policy's gradient are.
        leak: in [0, 1], the share of weights that are not truncated.
        correction: `(log_ratio, context) -> [...]`, the weight of a ratio where it is
            truncated at 1; see `metaevo.advantages`.
        delay: updates that actors are behind, rounded, in [0, D]; None: D.
        advantage: `(reward, value, next_value, log_ratio, terminated, done, context) ->
            [T, E]`, from [T, E] each, what the policy's gradient is weighted by; None:
            that of V-trace. `context.stats` holds `gamma`, `gae_lambda`, `rho_clip`,
            `c_clip`, `pg_clip` and `leak`.
        value_loss: `(value, target, old_value, context) -> [...]`.
        policy_loss: added term `(log_prob, log_ratio, advantage, entropy, context)
            -> [...]`, or None.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        activation: `(x) -> [...]`, of hidden layers; None: that of the Config.

    `context.stats` of all slots holds `entropy`, `kl` and `clip_fraction` of the last
    rollout, 0 before the first.
    """

    lr: Slot = 2e-3
    gamma: Slot = 0.99
    gae_lambda: Slot = 1.0
    ent_coef: Slot = 0.01
    vf_coef: Slot = 0.5
    max_grad_norm: Slot = 0.5
    rho_clip: Slot = 1.0
    c_clip: Slot = 1.0
    pg_clip: Slot = 1.0
    leak: Slot = 0.0
    correction: Slot = advantages.clipped
    delay: Slot | None = None
    advantage: Slot | None = None
    value_loss: Slot = losses.square
    policy_loss: Slot | None = None
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.rmsprop(0.99, 1e-5)
    activation: Slot | None = None


STATS = ("entropy", "kl", "clip_fraction")
"""Names in `context.stats`, of the last rollout: `kl` estimates the divergence of the
policy that learned from the one that acted, `clip_fraction` is the share of ratios
above `rho_clip`."""

TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log().starting_at(0.95),
    ent_coef=spaces.log(),
    vf_coef=spaces.log(),
    max_grad_norm=spaces.log(),
    rho_clip=spaces.log(),
    c_clip=spaces.log(),
    pg_clip=spaces.log(),
)
"""The space that a baseline is tuned in. λ, whose default lies at the end of its scale,
starts beside it."""

CLIPS = ("rho_clip", "c_clip", "pg_clip")


# --- what makes it IMPALA -------------------------------------------------------------


def _numbers(meta, context):
    names = ("gamma", "gae_lambda", *CLIPS, "leak")
    return {name: slots.value(getattr(meta, name), context) for name in names}


def weights(meta, numbers, log_ratio, context):
    """The weights ρ, c and ρᵖᵍ of V-trace, [T, E] each."""
    rho_clip, c_clip, pg_clip = (numbers[name] for name in CLIPS)
    leak, ratio = numbers["leak"], returns.importance_ratio(log_ratio)

    def weight(clip):
        kept = clip * meta.correction(log_ratio - jnp.log(clip), context)
        return kept + leak * (ratio - kept)

    return weight(rho_clip), weight(jnp.minimum(c_clip, rho_clip)), weight(pg_clip)


def _estimate(meta, numbers, rollout, value, next_value, log_ratio, context):
    found = returns.vtrace(
        rollout.reward,
        value,
        next_value,
        rollout.terminated,
        rollout.done,
        numbers["gamma"],
        numbers["gae_lambda"],
        *weights(meta, numbers, log_ratio, context),
    )
    return Estimate(*found)


def _learner(acting, params):
    """The learner has the newest parameters."""
    del acting
    return params


def _step_size(meta, context, delay):
    del delay
    return slots.value(meta.lr, context)


def _entropy(meta, context, num_workers):
    return jnp.full(num_workers, slots.value(meta.ent_coef, context))


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """IMPALA on `env`.

    Metrics of `train`: those of `rollouts.metrics`, `STATS`, and mean and root mean
    square of value − target on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    algorithm = _actor_critic.Algorithm(
        _numbers, _estimate, _learner, _step_size, _entropy, STATS
    )
    return _actor_critic.inner_loop(env, config, meta, algorithm, tunable=TUNABLE)


if __name__ == "__main__":
    metaevo.train_main(make)
