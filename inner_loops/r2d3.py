"""R2D2 from demonstrations: R2D3 (Gulcehre et al., 2020).

https://arxiv.org/abs/1909.01387. Each sequence of a minibatch is a demonstration's with
the probability `demo_ratio`, else one of the agent's own; both buffers are prioritized,
and there is no loss of imitation. Differences from the paper:

* Demonstrations start without a memory, which the burn-in fills, as no agent had one.
* Importance weights correct for priorities within a buffer, the ratio stays.
* Those of R2D2; what both share is in `_r2d2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _r2d2
from inner_loops._r2d2 import Agent, Experience
from metaevo import envs, slots, spaces
from metaevo.rl import demonstrations, rollouts, training
from metaevo.rl.priorities import Drawn, Priorities
from metaevo.rl.recurrent_q import Sequences
from metaevo.rl.rollouts import Transition
from metaevo.slots import value
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_r2d2.Config):
    """Static settings: shapes and loop lengths; those of R2D2, and one more.

    Attributes:
        num_demonstrations: episodes that the environment's script plays, see
            `demonstrations.SCRIPTS`.
    """

    total_timesteps: int = 200_000
    num_demonstrations: int = 50


@slots.extended
class Meta(_r2d2.Meta):
    """Slots of R2D3: those of R2D2, and one more.

    Attributes:
        demo_ratio: in [0, 1], the expected share of demonstrations in a minibatch.
    """

    demo_ratio: slots.Share = 1 / 256


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    epsilon=spaces.logit(),
    epsilon_exponent=spaces.log(),
    priority_exponent=spaces.log(),
    importance_exponent=spaces.logit(),
    max_grad_norm=spaces.log(),
    demo_ratio=spaces.logit(),
)
"""The space that a baseline is tuned in."""


@on_any_env
def make(
    env: envs.Env,
    config: Config = Config(),
    meta: Meta = Meta(),
    given: Transition | None = None,
) -> InnerLoop:
    """R2D3 on `env`, whose actions are discrete; see `r2d2.make`.

    Args:
        given: demonstrations in place of those of the environment's script: whole
            episodes, one after another, [N, ...], as of `demonstrations.record`.

    Raises:
        ConfigError: as for R2D2; or there is no script for `env`, or it draws a task
            for each lifetime.
    """
    parts = _r2d2.parts(env, config, "R2D3")
    num_updates = parts.sizes.lifetime.num_updates
    steps = given
    if steps is None:
        played = demonstrations.script(env)
        steps = demonstrations.record(env, played, config.num_demonstrations)
    demos = demonstrations.sequences(
        steps, parts.sizes.window, config.period, config.hidden
    )
    shape = config.num_gradient_steps, config.batch_size

    def init(key, meta):
        agent, experience = parts.born(key, meta)
        context = training.context(agent.age, num_updates)
        sequences = demos.read(jnp.arange(demos.number))
        learner = parts.learner(agent)
        seen = learner.first_seen(agent.params, sequences, meta, context)
        mass, _ = learner.first_mass(seen, agent.return_std, meta, context)
        experience = experience._replace(demonstrations=demos.start(mass))
        return InnerState(agent, experience, clock=training.start_clock())

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        act_key, own_key = jax.random.split(jax.random.fold_in(key, clock.update))
        demo_key, choice_key = jax.random.split(jax.random.fold_in(own_key, 1))
        context = training.context(agent.age, num_updates)
        agent, experience, finished = parts.collect(
            act_key, agent, experience, clock, meta, context
        )
        own = parts.draw(own_key, experience, clock)
        theirs = demos.draw(demo_key, experience.demonstrations, shape)
        ratio = value(meta.demo_ratio, context)
        chosen = jax.random.bernoulli(choice_key, ratio, shape)
        drawn = jax.tree.map(
            partial(jnp.where, chosen),
            _relative(theirs, experience.demonstrations),
            _relative(own, experience.priorities),
        )
        sequences = _mixed(
            chosen, demos.read(theirs.indices), parts.read(experience, own.indices)
        )
        agent, mass, info = parts.learner(agent).improve(
            agent, sequences, drawn, clock, meta, context
        )
        experience = experience._replace(
            priorities=parts.windows.update(
                experience.priorities, own.indices, mass, ~chosen
            ),
            demonstrations=demos.update(
                experience.demonstrations, theirs.indices, mass, chosen
            ),
        )
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {
            "demonstrations": chosen.mean(),
            "totals": rollouts.totals(finished),
        }

    return training.inner_loop(
        parts.env,
        config,
        meta,
        parts.sizes.lifetime,
        init,
        update,
        parts.act,
        initial_carry=lambda: jnp.zeros(config.hidden),
        tunable=TUNABLE,
        masks=True,
        parts=given,
    )


def _mixed(chosen: jax.Array, theirs: Sequences, own: Sequences) -> Sequences:
    """Sequences of two sources: `theirs` where `chosen` [U, B], else `own`.

    Leaves of steps are [W, U, B, ...], those of starts [U, B, ...].
    """

    def pick(x, y):
        return jnp.where(chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), x, y)

    return Sequences(
        jax.tree.map(jax.vmap(pick), theirs.steps, own.steps),
        jax.tree.map(pick, theirs.start, own.start),
    )


def _relative(drawn: Drawn, kept: Priorities) -> tuple[jax.Array, ...]:
    """Mass over the mean of those that can be drawn; age and visits as they are."""
    leaves, top = kept.levels[0], kept.levels[-1]
    share = drawn.mass * (leaves > 0).sum() / top.sum()
    return share, drawn.age, drawn.visits


if __name__ == "__main__":
    metaevo.train_main(make)
