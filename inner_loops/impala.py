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

import jax.numpy as jnp

import metaevo
from inner_loops import _actor_critic
from inner_loops._actor_critic import Agent, Estimate, Experience
from metaevo import advantages, envs, slots, spaces
from metaevo.rl import returns
from metaevo.slots import Slot
from metaevo.types import InnerLoop, on_any_env

__all__ = ["STATS", "TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_actor_critic.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_envs: E, environments of one member.
        max_delay: D, the most updates that actors are behind; D sets of parameters are
            kept.
        normalize_advantage: whether the advantages of a rollout get mean 0 and
            deviation 1.
        memory: `none`, or `gru` of `hidden` units before those layers. The learner sees
            a rollout again from the actors' memory.
    """

    num_steps: int = 20
    max_delay: int = 4


@slots.extended
class Meta(_actor_critic.Meta):
    """Slots of IMPALA.

    Attributes:
        lr: step size of the optimizer, before annealing; `context.stats` holds `delay`.
        gae_lambda: λ of V-trace, in [0, 1].
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

    `context.stats` of all slots holds `entropy`, `kl` and `clip_fraction` of the last
    rollout, 0 before the first.
    """

    lr: Slot = 2e-3
    rho_clip: slots.Positive = 1.0
    c_clip: slots.Positive = 1.0
    pg_clip: slots.Positive = 1.0
    leak: slots.Share = 0.0
    correction: Slot = advantages.clipped


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
    return _actor_critic.inner_loop(
        *(env, config, meta, algorithm),
        tunable=TUNABLE,
        choices=_actor_critic.CHOICES,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
