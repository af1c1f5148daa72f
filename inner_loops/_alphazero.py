"""AlphaZero as a frame around a tree search: self-play and what is learned from it.

An agent plays against itself. Each move is planned by a search in the true simulator,
guided by a network of a policy and a value; the network learns the search's policy and
the outcome. Games have two players who take turns, or one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, exploration, losses, optimizers, population, slots
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    matches,
    minibatches,
    networks,
    normalization,
    planning,
    returns,
    rollouts,
    training,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, Space


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: moves in a lifetime, rounded down to whole segments.
        num_envs: E, games of one member.
        num_steps: T, moves of a rollout. An update takes E x T moves.
        num_epochs: passes over a rollout.
        num_minibatches: gradient steps in a pass.
        num_segments: K, points on the learning curve.
        num_simulations: simulations of a search, in training and evaluation.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation: by running statistics.
        normalize_reward: give discounted returns deviation 1, by running statistics;
            without effect in games of two, whose outcomes are in [-1, 1].
        torso: before the hidden layers: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        features: units of each hidden layer, which policy and value share.
        activation: function of these layers.
        opponent: whom `evaluate` plays: `random`; `rollouts-N`, a tree search of N
            simulations that plays on at random; `minimax`, perfect play, in
            tic-tac-toe alone.
        num_eval_envs: games, or episodes, that `evaluate` averages over.
    """

    total_timesteps: int = 200_000
    num_envs: int = 128
    num_steps: int = 16
    num_epochs: int = 4
    num_minibatches: int = 8
    num_segments: int = 16
    num_simulations: int = 32
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool = False
    torso: networks.Torso = "mlp"
    features: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    opponent: str = "random"
    num_eval_envs: int = 128


class Meta(NamedTuple):
    """Slots that all searches have.

    Attributes:
        lr: Adam's step size, before annealing.
        gamma: discount, in [0, 1]; None: 1 in games of two and 0.997 for one player,
            where a time limit is bootstrapped and 1 would leave values without bound.
        value_mix: λ of the value target: 1 is the outcome, 0 the search's value of the
            next position.
        vf_coef: weight of the value loss.
        l2: weight of half the sum of squares of all parameters.
        max_grad_norm: global norm that gradients are clipped to.
        q_transform: `(q, context) -> q`, increasing, from [0, 1] to [0, 1]: what the
            search does with values of moves, which it scales to their range.
        value_loss: `(value, target, old_value, context) -> [...]`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 3e-3
    gamma: Slot | None = None
    value_mix: slots.Share = 1.0
    vf_coef: Slot = 1.0
    l2: Slot = 1e-5
    max_grad_norm: slots.Positive = 1.0
    q_transform: Slot = exploration.unchanged
    value_loss: Slot = losses.square
    optimizer: Slot = optimizers.adam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


class Experience(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    episodes: rollouts.Episodes
    discounted_return: jax.Array  # for the normalization of rewards


class Samples(NamedTuple):
    """Samples to learn from; leaves [T, E, ...].

    Attributes:
        obs: observations of the player to move.
        mask: [A] bool, the legal moves; None: all are.
        policy: [A] probabilities that the search gave.
        target: of the value, for the player to move.
        old_value: of the network that searched.
    """

    obs: jax.Array
    mask: jax.Array | None
    policy: jax.Array
    target: jax.Array
    old_value: jax.Array


def gamma_of(env: envs.Env) -> float:
    """The default discount; that of one player is MuZero's."""
    return 1.0 if env.player is not None else 0.997


def make(
    env: envs.Env, config: Any, meta: Any, plan: planning.Plan, tunable: Space
) -> InnerLoop:
    """The inner loop of a search.

    Metrics of `train`: those of `rollouts.metrics`, where the return of a game of two
    is what the players got for their moves; and on the minibatches `policy_loss` and
    mean and root mean square of value − target, `value_error_mean` and `_rms`. Of
    `evaluate`: `return` and `length`; in a game of two `return` is the mean result
    against `config.opponent` over both seats, a win 1 and a loss -1, beside the shares
    `wins`, `draws`, `losses`.

    Args:
        plan: the search; its keyword `explore` is given here.
        tunable: field of the `InnerLoop`.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, no such
            opponent, or a slot of `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    num_actions = config_checks.require_discrete(env, "AlphaZero").num
    if env.num_players > 1:
        raise ConfigError(
            f"env={env.name!r}: {env.num_players} players act at once there, and a "
            "search plans for one at a time"
        )
    batch_size = config_checks.minibatched(config)
    lifetime = config_checks.lifetime(config, batch_size)
    network = networks.mlp(
        config.features,
        num_actions + 1,
        0.01,
        activation=config.activation,
        torso=networks.torso(config.torso, env.observation),
    )
    meta = meta if meta.gamma is not None else meta._replace(gamma=gamma_of(env))
    # Outcomes of games are in [-1, 1].
    squashed = jnp.tanh if env.player is not None else lambda value: value

    normalize = normalization.observations(config.normalize_observation)
    scaled = config.normalize_reward and env.player is None
    scale = normalization.rewards(scaled)

    def seen(params, obs):
        """Logits [..., A] and values [...] of normalized observations."""
        out = network.apply(params, envs.unpacked(obs))
        return out[..., :-1], squashed(out[..., -1])

    def searched(key, agent, meta, context, state, obs, mask, move, explore):
        """A search from each of several states, leaves [B, ...]."""

        def look(obs):
            return seen(agent.params, normalize.apply(agent.obs_stats, obs))

        model = planning.model(
            env,
            lambda keys, obs, state: look(obs),
            slots.value(meta.gamma, context),
            partial(scale.apply, agent.return_stats),
        )
        root = planning.Root(*look(obs), state, mask, move)
        return plan(key, model, root, meta, context, explore=explore)

    # --- the loss ---------------------------------------------------------------------

    def targets(params, steps, found, movers, last_mover, meta, context):
        """Values [T, E] for who is to move, and those before learning.

        Returns are taken from the first player's side: what is good for one player is
        as bad for the other.
        """
        sign = 1.0 - 2.0 * movers
        following = jnp.concatenate([movers[1:], last_mover[None]])
        other = movers if env.player is None else 1.0 - movers
        after = jnp.where(steps.done, other, following)
        _, beyond = seen(params, steps.next_obs)
        cut = steps.done.at[-1].set(True)
        next_value = jnp.where(cut, beyond, jnp.roll(found.value, -1, 0))
        target = returns.lambda_return(
            sign * steps.reward,
            (1.0 - 2.0 * after) * next_value,
            steps.terminated,
            steps.done,
            slots.value(meta.gamma, context),
            slots.value(meta.value_mix, context),
        )
        return sign * target

    def loss(params, batch, meta, context):
        """`context.return_std` is the deviation of the rollout's targets."""
        logits, value = seen(params, batch.obs)
        logits = planning.legal(logits, batch.mask)
        policy_loss = -(batch.policy * jax.nn.log_softmax(logits)).sum(-1).mean()
        value_loss = meta.value_loss(value, batch.target, batch.old_value, context)
        squares = sum((x**2).sum() for x in jax.tree.leaves(params))
        total = (
            policy_loss
            + slots.value(meta.vf_coef, context) * value_loss.mean()
            + slots.value(meta.l2, context) * 0.5 * squares
        )
        error = value - batch.target
        return total, {
            "policy_loss": policy_loss,
            "error": error.mean(),
            "squared": (error**2).mean(),
            "return_std": context.return_std,
        }

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        network_key, env_key = jax.random.split(key)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        opt_state = meta.optimizer.init(params)
        stats = normalization.init(env.observation.shape), normalization.init(())
        agent = Agent(jnp.int32(0), params, opt_state, *stats)
        experience = Experience(
            rollouts.start(env_key, env, config.num_envs), jnp.zeros(config.num_envs)
        )
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def movers_of(state):
        """The players to move in states with leaves [E, ...], as float32."""
        if env.player is None:
            return jnp.zeros(config.num_envs)
        return jax.vmap(env.player)(state).astype(jnp.float32)

    def update(key, meta, state):
        """One rollout of self-play and the gradient steps on it."""
        agent, experience, clock = state.agent, state.experience, state.clock
        search_key, act_key, order_key = training.keys(key, clock, 3)
        context = training.context(agent.age, lifetime.num_updates)

        def choose(move, obs, keys, env_state, mask):
            found = searched(
                *(keys[0], agent, meta, context),
                *(env_state, obs, mask, move, True),
            )
            return move + 1, found.action, (found, movers_of(env_state))

        keys = jax.random.split(search_key, (config.num_steps, config.num_envs))
        before = experience.episodes
        after, _, steps, finished, (found, movers) = rollouts.collect(
            act_key, env, before, keys, choose, before.episode_length
        )
        last_mover = movers_of(after.env_state)
        obs_stats = normalize.update(agent.obs_stats, envs.unpacked(steps.obs))
        return_stats, last = agent.return_stats, experience.discounted_return
        if scaled:
            gamma = slots.value(meta.gamma, context)
            last, discounted = returns.discounted_so_far(
                steps.reward, steps.done, gamma, last
            )
            return_stats = scale.update(return_stats, discounted)
        # Observations as the search saw them.
        steps = steps._replace(
            reward=scale.apply(return_stats, steps.reward),
            obs=normalize.apply(agent.obs_stats, steps.obs),
            next_obs=normalize.apply(agent.obs_stats, steps.next_obs),
        )
        order = minibatches.orders(
            order_key, config.num_epochs, config.num_minibatches, batch_size
        )

        @population.phase
        def improve(params, opt_state, steps, found, movers, last_mover, order):
            target = targets(params, steps, found, movers, last_mover, meta, context)
            now = context._replace(return_std=target.std())
            samples = Samples(
                steps.obs, steps.mask, found.policy, target, found.old_value
            )
            samples = jax.tree.map(
                lambda x: x.reshape(batch_size, *x.shape[2:]), samples
            )
            lr = training.learning_rate(meta, context, config.anneal_lr)
            return minibatches.descend(
                loss,
                order,
                lambda chosen: jax.tree.map(lambda x: x[chosen], samples),
                params,
                opt_state,
                lr,
                meta,
                now,
            )

        params, opt_state, info = improve(
            agent.params, agent.opt_state, steps, found, movers, last_mover, order
        )
        agent = Agent(agent.age + 1, params, opt_state, obs_stats, return_stats)
        state = InnerState(agent, Experience(after, last), (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def unthought():
        return planning.Thought(jnp.zeros(num_actions))

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        """The best move of a search; the network's where there is no state."""
        del carry
        if state is None:
            logits, _ = seen(agent.params, normalize.apply(agent.obs_stats, obs))
            return jnp.argmax(planning.legal(logits, mask), -1), unthought()
        context = training.context(agent.age, lifetime.num_updates)
        state, obs, mask = jax.tree.map(lambda x: x[None], (state, obs, mask))
        found = searched(
            *(key, agent, meta, context),
            *(state, obs, mask, None, False),
        )
        return found.action[0], planning.Thought(found.visits[0])

    loop = training.inner_loop(
        env,
        config,
        meta,
        lifetime,
        init,
        update,
        act,
        tunable=tunable,
        masks=True,
        takes_turns=True,
        initial_carry=unthought,
    )
    if env.player is None:
        return loop
    opponent = matches.player(env, config.opponent)

    def evaluate(key, meta, state):
        def agent(key, obs, env_state, mask):
            return loop.act(key, meta, state.agent, (), obs, env_state, mask)[0]

        results = matches.play(key, env, agent, opponent, config.num_eval_envs)
        return matches.metrics(results)

    return loop._replace(evaluate=evaluate)
