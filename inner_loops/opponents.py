"""A matrix game against an opponent that learns: model-free opponent shaping.

M-FOS, Lu et al., 2022, https://arxiv.org/abs/2205.01447. A lifetime is one
meta-episode. In each of its steps both players choose a policy of the game by the two
policies just played, and are paid its exact payoff. The first player, `shaper`, is what
evolves. It sees how the opponent learns from what it plays, and can make it learn what
pays the shaper. The opponent is naive (gradient ascent), LOLA, another of
`metaevo.rl.game_players`, or a shaper itself.

    own, other = shaper(own, other), opponent(other, own)      # at the same time
    fitness = mean over steps and games of own payoff

Difference from the paper: the shaper evolves, where the paper trains it by PPO or a
genetic algorithm. As in its code the first pair of policies is random and pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.envs import matrix
from metaevo.errors import ConfigError
from metaevo.rl import config_checks, game_players, training
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        num_envs: E, games of one member, each against an opponent of its own.
        num_steps: steps of a meta-episode, a whole multiple of `num_segments`.
        num_segments: K, points on the curve.
    """

    num_envs: int = 16
    num_steps: int = 100
    num_segments: int = 100


class Meta(NamedTuple):
    """Slots of both players.

    A player is `(own logits [n], other's logits [n], context) -> own next logits [n]`,
    see `metaevo.rl.game_players`; None is the naive learner of its seat.

    Attributes:
        shaper: the first player.
        opponent: the second player.
        naive_share: share of games whose second player is the naive learner instead of
            `opponent`, in [0, 1]; drawn for each game at its start.
        start: mean of the first player's first logits, a number or [n].
        start_std: standard deviation of these logits.
        opponent_start: mean of the second player's first logits.
        opponent_start_std: standard deviation of those.
        opponent_answers: 1: the second player sees the policy that the first chooses
            in the same step, as a best response does in the paper's code; 0: the one
            before.

    `context.progress` is that of the meta-episode.
    """

    shaper: Slot | None = None
    opponent: Slot | None = None
    naive_share: slots.Share = 0.0
    start: Slot = 0.0
    start_std: slots.NotNegative = 1.0
    opponent_start: Slot = 0.0
    opponent_start_std: slots.NotNegative = 1.0
    opponent_answers: slots.Share = 0.0


class Agent(NamedTuple):
    age: jax.Array  # int32, steps of the meta-episode
    params: dict[str, jax.Array]  # logits [E, n] just played: "own", "other"


class Experience(NamedTuple):
    draw: jax.Array  # [E] in [0, 1): below naive_share the opponent is naive


def make(
    game: matrix.Game, config: Config = Config(), meta: Meta = Meta()
) -> InnerLoop:
    """Both players on `game`.

    Metrics of `train`, means over games and steps: `return` and `opponent_return`, the
    payoffs of a round; `shaper/SITUATION` and `opponent/SITUATION`, the probabilities
    of the first move. An episode is one step of one game.

    `evaluate` gives the payoffs of the last policies.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    config_checks.check_integers(config)
    if config.num_steps % config.num_segments:
        raise ConfigError(
            f"inner.num_steps={config.num_steps} must be a whole multiple of "
            f"inner.num_segments={config.num_segments}"
        )
    steps_per_segment = config.num_steps // config.num_segments
    naive = game_players.naive(game)
    naive_opponent = game_players.naive(matrix.swapped(game))
    shape = config.num_envs, game.num_situations

    def init(key, meta):
        keys = jax.random.split(key, 3)
        context = slots.Context()

        def first(key, mean, std):
            noise = jax.random.normal(key, shape)
            return slots.value(mean, context) + slots.value(std, context) * noise

        params = {
            "own": first(keys[0], meta.start, meta.start_std),
            "other": first(keys[1], meta.opponent_start, meta.opponent_start_std),
        }
        draw = jax.random.uniform(keys[2], (config.num_envs,))
        agent = Agent(jnp.int32(0), params)
        return InnerState(agent, Experience(draw), clock=training.start_clock())

    def players(meta, context):
        """One step of one game: `(own, other, naive?) -> (own, other)`."""
        shaper = naive if meta.shaper is None else meta.shaper

        def step(own, other, is_naive):
            chosen = shaper(own, other, context)
            after = naive_opponent(other, own, context)
            if meta.opponent is not None:
                answers = slots.value(meta.opponent_answers, context) > 0
                seen = jnp.where(answers, chosen, own)
                learned = meta.opponent(other, seen, context)
                after = jnp.where(is_naive, after, learned)
            return chosen, after

        return step

    def update(meta, state):
        """One step of the meta-episode in all games."""
        agent, experience, _, clock = state
        context = training.context(agent.age, config.num_steps)
        is_naive = experience.draw < slots.value(meta.naive_share, context)
        own, other = jax.vmap(players(meta, context))(
            agent.params["own"], agent.params["other"], is_naive
        )
        payoffs = jax.vmap(game.payoffs)(own, other).mean(0)
        metrics = {"return": payoffs[0], "opponent_return": payoffs[1]}
        for name, x in (("shaper", own), ("opponent", other)):
            moves = jax.nn.sigmoid(x).mean(0)
            metrics |= {
                f"{name}/{situation}": moves[i]
                for i, situation in enumerate(game.situations)
            }
        agent = Agent(agent.age + 1, {"own": own, "other": other})
        return InnerState(agent, experience, (), training.tick(clock)), metrics

    def train(key, meta, state):
        del key
        meta = slots.checked(meta)
        state, metrics = jax.lax.scan(
            lambda state, _: update(meta, state), state, None, steps_per_segment
        )
        metrics = jax.tree.map(jnp.mean, metrics)
        episodes = jnp.float32(config.num_envs * steps_per_segment)
        nothing = {"length": jnp.ones(()), "diverged": jnp.zeros(())}
        return state, {**metrics, "episodes": episodes, **nothing}

    def evaluate(key, meta, state):
        del key, meta
        payoffs = jax.vmap(game.payoffs)(*map(state.agent.params.get, ("own", "other")))
        return {"return": payoffs.mean(0)[0], "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        """The shaper's next logits [n]; `obs` [2, n] is own and other's logits."""
        del key, state, mask
        meta = slots.checked(meta)
        shaper = naive if meta.shaper is None else meta.shaper
        context = training.context(agent.age, config.num_steps)
        return shaper(obs[0], obs[1], context), carry

    return InnerLoop(
        meta=slots.checked(meta),
        init=lambda key, meta: init(key, slots.checked(meta)),
        train=train,
        evaluate=evaluate,
        num_segments=config.num_segments,
        act=act,
        frames_per_segment=config.num_envs * steps_per_segment,
        config=config,
        parts=game,
        baselines={
            "LOLA": {"shaper": game_players.lola(game)},
            **{
                name: {"shaper": game_players.static(p)}
                for name, p in game.fixed.items()
            },
        },
    )
