"""Common parts of R2D2 and R2D3: the loss, the buffer of sequences, updates.

Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX. Network and
targets are in `metaevo/rl/recurrent_q.py`.

Axes: W steps of a sequence, of which L are learned from; B sequences of a minibatch; U
minibatches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inner_loops import _dqn
from inner_loops._dqn import Seen
from metaevo import envs, exploration, losses, optimizers, population, rewards, slots
from metaevo.envs import last_step
from metaevo.errors import ConfigError
from metaevo.learned import rescalings
from metaevo.learned.priorities import absolute
from metaevo.rl import (
    config_checks,
    networks,
    normalization,
    off_policy,
    packing,
    priorities,
    q_learning,
    recurrent_q,
    replay,
    rollouts,
    training,
)
from metaevo.rl.recurrent_q import Memory, RecurrentNetwork, Sequences
from metaevo.slots import Slot

__all__ = ["Agent", "Experience", "R2d2Parts", "SequenceLearning", "learner", "parts"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions; at least three
            sequences of each environment.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member: actors.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update, drawn at once.
        batch_size: B, sequences in a minibatch.
        burn_in: steps of a sequence that warm the memory up; may be 0.
        sequence_length: steps of a sequence that are learned from.
        period: steps between the starts of sequences; divides `num_steps`.
        target_period: updates between those of the target network.
        num_segments: K, points on the learning curve.
        double: let one network choose the next action, and the other value it.
        dueling: give value and advantages a head each.
        num_step_return: n, steps before the bootstrap.
        normalize_observation: by running statistics.
        normalize_reward: give discounted returns deviation 1, by running statistics.
        torso: before that layer: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        hidden: units of the GRU, and of the layer before it.
        features: units of each hidden layer after it.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    learning_starts: int = 2_000
    buffer_size: int = 100_000
    num_envs: int = 16
    num_steps: int = 10
    num_gradient_steps: int = 2
    batch_size: int = 32
    burn_in: int = 10
    sequence_length: int = 20
    period: int = 10
    target_period: int = 20
    num_segments: int = 16
    double: bool = True
    dueling: bool = True
    num_step_return: int = 5
    normalize_observation: bool = False
    normalize_reward: bool = False
    torso: networks.Torso = "mlp"
    hidden: int = 64
    features: tuple[int, ...] = (64,)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of R2D2, and of R2D3 beside its own.

    Attributes:
        lr: Adam's step size.
        gamma: discount, in [0, 1].
        epsilon: share of random actions of the first environment, in [0, 1].
        epsilon_exponent: >= 0; that of environment i of E is
            epsilon^(1 + epsilon_exponent i / (E − 1)).
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        target_rate: τ, how far the target network moves to the online one every
            `target_period` updates, in (0, 1].
        rescale: `(x, context) -> h(x) [...]`, increasing, of returns; see
            `metaevo.learned.rescalings`.
        stored_memory: factor of the stored memory with which a sequence begins, in
            [0, 1]; 1: as the agent had it, 0: none.
        priority: `(td_error, age, visits, reward, terminated, context) -> p [...]`, of
            each step of a sequence, see `metaevo.learned.priorities`.
        priority_max: η in [0, 1]: the priority of a sequence is η times the greatest
            of its steps' and 1 − η times their mean.
        priority_exponent: α >= 0: sequences are drawn in proportion to p^α.
        importance_exponent: β in [0, 1]: of the importance weights; 1 corrects in full.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q, of
            rescaled values.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        max_grad_norm: global norm that gradients are clipped to; None: no clip.
    """

    lr: Slot = 5e-4
    gamma: Slot = 0.99
    epsilon: slots.Share = 0.4
    epsilon_exponent: slots.NotNegative = 7.0
    exploration: Slot = exploration.epsilon_greedy
    target_rate: slots.Rate = 1.0
    rescale: Slot = rescalings.signed_root
    stored_memory: slots.Share = 1.0
    priority: Slot = absolute
    priority_max: slots.Share = 0.9
    priority_exponent: slots.NotNegative = 0.9
    importance_exponent: slots.Share = 0.6
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    max_grad_norm: slots.Positive | None = 40.0


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    target_params: Any
    opt_state: Any
    return_std: jax.Array  # of the last minibatch's targets
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


class Experience(NamedTuple):
    """The member's environments and buffer."""

    episodes: rollouts.Episodes  # of environments `with_last_step`
    hidden: jax.Array  # [E, hidden], zero where an episode begins
    rows: packing.Packed  # of the replay buffer
    starts: packing.Packed  # memories at the rows where sequences start
    priorities: priorities.Priorities  # of the sequences
    steps_since_birth: jax.Array  # int32, warm-up not counted
    discounted_return: jax.Array  # of the learner's reward, for its normalization
    demonstrations: Any = ()  # `priorities.Priorities` of those of R2D3


# --- learning -------------------------------------------------------------------------


class SequenceLearning(NamedTuple):
    """Learning from sequences as pure functions.

    Attributes:
        first_seen: `(params, sequences, meta, context) -> Seen` by the actors, leaves
            [L, B].
        first_mass: `(seen, std, meta, context) -> (p^α [B], std)`, which actors give;
            `std` is the deviation of a minibatch's targets, None: theirs.
        gradient: `(params, target_params, sequences, weights [B], meta, context) ->
            (gradient, info, Seen)`, clipped; `info` has scalars, `Seen` leaves [L, B].
        improve: `(agent, sequences, drawn, clock, meta, context) -> (agent, mass [U,
            B], info)`: a gradient step on each of U minibatches, leaves [W, U, B, ...]
            and [U, B, ...], then the target network's. `drawn` is `(mass, age,
            visits)`, [U, B] each.
    """

    first_seen: Callable[..., Seen]
    first_mass: Callable[..., tuple[jax.Array, jax.Array]]
    gradient: Callable[..., tuple[Any, dict[str, jax.Array], Seen]]
    improve: Callable[..., tuple[Agent, jax.Array, dict[str, jax.Array]]]


def learner(
    net: RecurrentNetwork, config: Any, scale: Callable[[jax.Array], jax.Array]
) -> SequenceLearning:
    """The learner for a Config with the fields of R2D2's, of scaled rewards."""
    size = recurrent_q.sequence_length(config)

    def targets(*args):
        return recurrent_q.targets(net, size, config.double, *args, scale=scale)

    # --- the loss ---------------------------------------------------------------------

    def loss(params, sequences, found, weights, meta, context):
        """Of a minibatch; gradients go back in time to the end of the burn-in."""
        steps, last = size.of_learned((sequences.steps, found.last))
        x = net.inputs(params, steps.obs, *last)
        memories = recurrent_q.unroll(net, params, found.hidden, x, steps.done)
        q = q_learning.of_action(net.values(params, memories), steps.action)
        td_error = found.target - q
        losses = meta.td_loss(td_error, q, found.target, context)
        info = {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
            "return_std": context.return_std,
            "importance": weights.mean(),
        }
        return (weights * losses).mean(), (info, td_error)

    def gradient(params, target_params, sequences, weights, meta, context):
        found = targets(params, target_params, sequences, meta, context)
        in_loss = context._replace(return_std=found.target.std())
        slope, (info, td_error) = jax.grad(loss, has_aux=True)(
            params, sequences, found, weights, meta, in_loss
        )
        if meta.max_grad_norm is not None:
            max_norm = slots.value(meta.max_grad_norm, context)
            slope = optimizers.clip_by_global_norm(slope, max_norm)
        return slope, info, Seen(td_error, *found[:3])

    # --- priorities -------------------------------------------------------------------

    def mass_of(seen, age, visits, std, meta, context):
        """p^α [B], p = η maxₜ pₜ + (1 − η) meanₜ pₜ."""
        age, visits = (jnp.broadcast_to(x, seen.td_error.shape) for x in (age, visits))
        in_priority = context._replace(return_std=std)
        p = meta.priority(
            seen.td_error, age, visits, seen.reward, seen.terminated, in_priority
        )
        p, greatest = jnp.maximum(p, 0.0), slots.value(meta.priority_max, context)
        p = greatest * p.max(0) + (1 - greatest) * p.mean(0)
        return priorities.mass(p, slots.value(meta.priority_exponent, context))

    def first_seen(params, sequences, meta, context):
        # By the parameters that act, in the place of the target network, too.
        found = targets(params, params, sequences, meta, context)
        memories, action = size.of_learned((found.memories, sequences.steps.action))
        q = q_learning.of_action(net.values(params, memories), action)
        return Seen(found.target - q, *found[:3])

    def first_mass(seen, std, meta, context):
        std = seen.target.std() if std is None else std
        return mass_of(seen, 0.0, 0.0, std, meta, context), std

    # --- gradient steps ---------------------------------------------------------------

    def learn(params, target_params, opt_state, sequences, drawn, meta, context):
        """One gradient step on each of the minibatches, leaves [U, W, B, ...]."""
        lr = slots.value(meta.lr, context)
        beta = slots.value(meta.importance_exponent, context)

        def step(carry, at):
            (params, opt_state), (sequences, (mass, age, visits)) = carry, at
            weights = priorities.weights(mass, beta)
            slope, info, seen = gradient(
                params, target_params, sequences, weights, meta, context
            )
            params, opt_state = optimizers.step(
                meta.optimizer, slope, params, opt_state, lr, context
            )
            std = info["return_std"]
            mass = mass_of(seen, age, visits + 1.0, std, meta, context)
            return (params, opt_state), (mass, info)

        (params, opt_state), (mass, info) = jax.lax.scan(
            step, (params, opt_state), (sequences, drawn)
        )
        std = info["return_std"][-1]
        return params, opt_state, std, mass, jax.tree.map(jnp.mean, info)

    def improve(agent, sequences, drawn, clock, meta, context):
        steps = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), sequences.steps)

        phase = population.phase(partial(learn, meta=meta, context=context))
        params, opt_state, std, mass, info = phase(
            *(agent.params, agent.target_params, agent.opt_state),
            *(sequences._replace(steps=steps), drawn),
        )
        target_params = _dqn.target_copy(
            params, agent.target_params, clock, config, meta, context
        )
        agent = Agent(
            *(agent.age + 1, params, target_params, opt_state, std),
            *(agent.obs_stats, agent.return_stats),
        )
        return agent, mass, info

    return SequenceLearning(first_seen, first_mass, gradient, improve)


# --- experience -----------------------------------------------------------------------


class R2d2Parts(NamedTuple):
    """Parts that follow from an environment and a Config.

    Attributes:
        env: with the last action and reward in its states.
        sizes: of the lifetime and the buffer.
        network: the network, of normalized observations.
        learner: `Agent -> SequenceLearning`, by its statistics.
        windows: priorities of the sequences.
        born: `(key, meta) -> (Agent, Experience)`, after the warm-up.
        collect: `(key, agent, experience, clock, meta, context) -> (agent, experience,
            finished)`: T steps of the environments, stored with their priorities, and
            the agent with them in its statistics.
        draw: `(key, experience, clock) -> priorities.Drawn`, leaves [U, B].
        read: `(experience, indices [W, ...]) -> Sequences`.
        act: `InnerLoop.act`.
    """

    env: envs.Env
    sizes: off_policy.Sizes
    network: RecurrentNetwork
    learner: Callable[[Agent], SequenceLearning]
    windows: priorities.Prioritized
    born: Callable[..., tuple[Agent, Experience]]
    collect: Callable[..., tuple[Agent, Experience, rollouts.Finished]]
    draw: Callable[..., priorities.Drawn]
    read: Callable[..., Sequences]
    act: Callable[..., tuple[jax.Array, jax.Array]]


def parts(env: envs.Env, config: Any, algorithm: str) -> R2d2Parts:
    """The parts for a Config with the fields of R2D2's.

    Args:
        algorithm: its name, for errors.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, or several
            players.
    """
    num_actions = config_checks.require_discrete(env, algorithm).num
    config_checks.check_positive(config, ("burn_in",))
    if config.num_steps % config.period:
        raise ConfigError(
            f"inner.period={config.period} does not divide inner.num_steps="
            f"{config.num_steps}"
        )
    env = last_step.with_last_step(env)
    net = recurrent_q.network(env, config, algorithm)
    normalize = normalization.observations(config.normalize_observation)
    scale = normalization.rewards(config.normalize_reward)
    size = recurrent_q.sequence_length(config)
    sizes = off_policy.sizes(config, size.total)
    buffer = sizes.buffer(env, config.num_envs)
    windows = sizes.priorities(config.num_envs, config.period)
    starts = replay.make(
        Memory(jnp.zeros(config.hidden), jnp.int32(0), jnp.float32(0)),
        sizes.num_rows // config.period,
        config.num_envs,
        sizes.num_warmup // config.period,
        config.num_steps // config.period,
    )

    def read(experience, indices):
        row, place = indices[0] // config.num_envs, indices[0] % config.num_envs
        start = row // config.period * config.num_envs + place
        return Sequences(
            off_policy.read(buffer, experience.rows, indices),
            starts.read(experience.starts, start),
        )

    def seeing(obs_stats):
        return recurrent_q.seeing(net, partial(normalize.apply, obs_stats))

    def learner_of(agent):
        scaled = partial(scale.apply, agent.return_stats)
        return learner(seeing(agent.obs_stats), config, scaled)

    def first_mass(agent, experience, indices, std, meta, context):
        """Masses [n, E] of windows [W, n, E]."""
        mine = learner_of(agent)

        def seen_in(indices):
            given = read(experience, indices)
            return mine.first_seen(agent.params, given, meta, context)

        seen = priorities.map_windows(seen_in, indices, config.batch_size)
        mass, std = mine.first_mass(seen, std, meta, context)
        return mass.reshape(indices.shape[1:]), std

    def at_starts(memories):
        return jax.tree.map(lambda x: x[:: config.period], memories)

    def noise(key, num_steps):
        return jax.random.gumbel(key, (num_steps, config.num_envs, num_actions))

    # --- birth ------------------------------------------------------------------------

    def born(key, meta):
        network_key, env_key, noise_key, warmup_key = jax.random.split(key, 4)
        params = net.init(network_key)
        context = training.context(jnp.int32(0), sizes.lifetime.num_updates)
        episodes, hidden, steps, _, memories = rollouts.collect(
            warmup_key,
            env,
            rollouts.start(env_key, env, config.num_envs),
            noise(noise_key, sizes.num_warmup),
            recurrent_q.remembering(
                net, params, lambda q, noise, mask: q_learning.best_action(noise, mask)
            ),
            jnp.zeros((config.num_envs, config.hidden)),
        )
        nothing = windows.start(jnp.zeros(windows.first().shape[1:]))
        stats = normalization.init(env.observation.shape), normalization.init(())
        stats, discounted_return = normalization.after_rollout(
            config, stats, jnp.zeros(config.num_envs), steps, meta, context
        )
        experience = Experience(
            *(episodes, hidden, buffer.start(steps), starts.start(at_starts(memories))),
            *(nothing, jnp.int32(0), discounted_return),
        )
        opt_state, std = meta.optimizer.init(params), jnp.zeros(())
        agent = Agent(jnp.int32(0), params, params, opt_state, std, *stats)
        mass, std = first_mass(agent, experience, windows.first(), None, meta, context)
        experience = experience._replace(priorities=windows.start(mass))
        return agent._replace(return_std=std), experience

    # --- experience -------------------------------------------------------------------

    def collect(key, agent, experience, clock, meta, context):
        noise_key, act_key = jax.random.split(key)
        epsilon = q_learning.ladder(
            slots.value(meta.epsilon, context),
            slots.value(meta.epsilon_exponent, context),
            config.num_envs,
        )
        in_act = meta._replace(epsilon=epsilon[:, None])

        def explore(q, noise, mask):
            choose = q_learning.explorer(lambda _: q, in_act, context)
            return choose((), None, noise, None, mask)[1]

        after, hidden, steps, finished, memories = rollouts.collect(
            *(act_key, env, experience.episodes, noise(noise_key, config.num_steps)),
            recurrent_q.remembering(seeing(agent.obs_stats), agent.params, explore),
            experience.hidden,
        )
        stats, discounted_return = normalization.after_rollout(
            *(config, (agent.obs_stats, agent.return_stats)),
            *(experience.discounted_return, steps, meta, context),
        )
        agent = agent._replace(obs_stats=stats[0], return_stats=stats[1])
        own = experience.steps_since_birth + config.num_steps
        before = clock.update * config.num_steps
        experience = experience._replace(
            episodes=after,
            hidden=hidden,
            rows=buffer.add(experience.rows, before, steps),
            starts=starts.add(
                experience.starts, before // config.period, at_starts(memories)
            ),
            steps_since_birth=own,
            discounted_return=discounted_return,
        )
        mass, _ = first_mass(
            *(agent, experience, windows.newest(before)),
            *(agent.return_std, meta, context),
        )
        kept = windows.add(experience.priorities, before, own, mass)
        return agent, experience._replace(priorities=kept), finished

    def draw(key, experience, clock):
        inserted = (clock.update + 1) * config.num_steps
        shape = (config.num_gradient_steps, config.batch_size)
        return windows.draw(
            key, experience.priorities, inserted, experience.steps_since_birth, shape
        )

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta
        if state is None:
            raise ValueError(
                f"{algorithm} sees its last action and reward in the environment's "
                "state: call `act` with the states of `InnerLoop.env`"
            )
        obs = normalize.apply(agent.obs_stats, obs)
        x = net.inputs(agent.params, obs, state.action, state.reward)
        hidden = net.remember(agent.params, carry, x)
        q = net.values(agent.params, hidden)
        return q_learning.best_action(q, mask), hidden

    functions = born, collect, draw, read, act
    return R2d2Parts(env, sizes, net, learner_of, windows, *functions)
