"""An evolved player against one who learns by RL: model-free opponent shaping.

M-FOS in environments of two players, such as the Coin Game (Lu et al., 2022,
https://arxiv.org/abs/2205.01447). A lifetime is one meta-episode. In it an agent of
another inner loop, such as PPO, learns from scratch in the second seat. A function that
does not learn, the shaper, plays the first; it is in the slot `player`. It sees its
observation and three numbers: what both players were paid a step in the learner's last
segment, on average over games, and the share of the meta-episode that is over.

Differences from the paper: the shaper evolves. It is a feedforward network, and those
numbers are its memory, where the paper's has recurrent networks trained by PPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, policies, slots
from metaevo.errors import ConfigError
from metaevo.learned.functions import Learned
from metaevo.rl import config_checks
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState

NUM_REMEMBERED = 3


@dataclass(frozen=True)
class Config:
    """Static settings; the lifetime is the learner's.

    Attributes:
        num_segments: K, points on the curve; it divides the learner's.
        features: units of each hidden layer of the shaper.
        activation: function of these layers of its policy.
    """

    num_segments: int = 1
    features: tuple[int, ...] = (16,)
    activation: str = "tanh"


class Meta(NamedTuple):
    """Slots of the first player.

    Attributes:
        player: `(obs [n + 3], context) -> action`, of the flat observation and the
            remembered numbers; None: always action 0.
    """

    player: Slot | None = None


class Agent(NamedTuple):
    learner: Any  # the second player's agent
    memory: jax.Array  # [3]

    @property
    def age(self) -> jax.Array:
        """Updates of the second player."""
        return self.learner.age


def policy(env: envs.Env, config: Config = Config()) -> Learned:
    """The shaper as a learned function, for `spaces.replace(player=...)`.

    Raises:
        ConfigError: the actions are not discrete, or observations are not flat.
    """
    if not isinstance(env.action, envs.Discrete) or len(env.observation.shape) != 1:
        raise ConfigError(
            f"env={env.name!r}: a shaper needs discrete actions and flat observations"
        )
    size = env.observation.shape[0] + NUM_REMEMBERED
    action = {"num": env.action.num}
    try:
        return policies.policy((size,), action, config.features, config.activation)
    except ValueError as error:
        raise ConfigError(f"shaper.{error}") from None


def make(
    learner: InnerLoop,
    config: Config = Config(),
    meta: Meta = Meta(),
    baselines: Mapping[str, Mapping[str, Any]] | None = None,
) -> InnerLoop:
    """The meta-episode in which `learner` learns against the shaper.

    Metrics of `train`: those of the learner, but `return` and `opponent_return`, which
    are what shaper and learner were paid a step. An episode is one step of one game.
    `evaluate` gives the shaper's of the learner's last segment.

    Args:
        learner: a loop on an environment of two players. It can be put on another
            (`InnerLoop.on`), and is not coupled.
        baselines: as in `InnerLoop`.

    Raises:
        ConfigError: the learner or its environment does not fit.
    """
    env, on = learner.env, learner.on
    if env is None or on is None or learner.coupled:
        raise ConfigError("partner: the learner cannot be put on another environment")
    config_checks.check_positive(config, key="shaper")
    policy(env, config)
    envs.against(env, lambda obs: jnp.int32(0))  # refuses what does not fit
    if learner.num_segments % config.num_segments:
        raise ConfigError(
            f"shaper.num_segments={config.num_segments} does not divide the learner's, "
            f"inner.num_segments={learner.num_segments}"
        )
    per_segment = learner.num_segments // config.num_segments
    steps = jnp.float32(learner.frames_per_segment)

    def facing(meta: Meta, agent: Agent) -> InnerLoop:
        """The learner against the shaper as it is in this segment."""
        context = Context(progress=agent.memory[2])

        def play(obs):
            if meta.player is None:
                return jnp.int32(0)
            return meta.player(jnp.concatenate([obs, agent.memory]), context)

        return on(envs.against(env, play))

    def init(key, meta):
        nobody = Agent((), jnp.zeros(NUM_REMEMBERED))
        loop = facing(slots.checked(meta), nobody)
        state = loop.init(key, loop.meta)
        return state._replace(agent=nobody._replace(learner=state.agent))

    def once(key, meta, state):
        """One segment of the learner."""
        agent = state.agent
        loop = facing(meta, agent)
        inner = state._replace(agent=agent.learner)
        inner, metrics = loop.train(key, loop.meta, inner)
        metrics = dict(metrics)
        own, other = metrics.pop("partner_reward"), metrics.pop("own_reward")
        share = agent.memory[2] + 1 / learner.num_segments
        agent = Agent(inner.agent, jnp.stack([own, other, jnp.minimum(share, 1.0)]))
        metrics |= {"return": own, "opponent_return": other}
        metrics |= {"episodes": steps, "length": jnp.ones(())}
        return InnerState(agent, inner.experience, (), inner.clock), metrics

    def train(key, meta, state):
        meta = slots.checked(meta)
        state, metrics = jax.lax.scan(
            lambda state, _: once(key, meta, state), state, None, per_segment
        )
        means = jax.tree.map(jnp.mean, metrics)
        sums = {name: metrics[name].sum() for name in ("episodes", "diverged")}
        return state, means | sums

    def evaluate(key, meta, state):
        del key, meta
        return {"return": state.agent.memory[0], "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        """The learner's action in the second seat."""
        del meta
        return learner.act(key, learner.meta, agent.learner, carry, obs, state, mask)

    return learner._replace(
        meta=slots.checked(meta),
        num_segments=config.num_segments,
        frames_per_segment=learner.frames_per_segment * per_segment,
        steps_per_segment=learner.steps_per_segment * per_segment,
        init=init,
        train=train,
        evaluate=evaluate,
        act=act,
        # `act` is of one seat, so that no episode can be played by it alone.
        env=env._replace(render=None),
        config=config,
        parts=learner,
        tunable=None,
        on=None,
        baselines=baselines or {},
    )
