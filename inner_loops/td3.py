"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477. The critics take
`policy_delay` steps for each of the actor's, in a loop of that length: no gradient is
computed to be thrown away. Time limits are bootstrapped from the true last observation.

With `shared_critic` all members of a population train one critic on one replay buffer,
as CEM-RL (Pourchot and Sigaud, 2019) and DvD (Parker-Holder et al., 2020) do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo import (
    envs,
    exploration,
    losses,
    optimizers,
    policies,
    population,
    rewards,
    slots,
    spaces,
)
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    diversity,
    evaluation,
    networks,
    normalization,
    replay,
    rollouts,
)
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState, Space


@dataclass(frozen=True)
class Config:
    """What is static: shapes and loop lengths.

    With `shared_critic` sizes are still those of one member: the population takes P
    times the frames, warm-up included, and its buffer holds P times `buffer_size`. One
    gradient step of the critic per frame is then U = P x E x T.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update.
        batch_size: B, transitions in a minibatch.
        policy_delay: steps of the critics for each of the actor's; divides U.
        num_segments: K, points on the learning curve.
        normalize_observation: by running statistics.
        features, activation: hidden layers of actor and critics.
        shared_critic: one critic and one replay buffer for the whole population, whose
            slots (`OF_CRITIC`) cannot evolve then, and whose age is the progress.
        num_diversity_states: observations in which members are told apart, at most B.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 1_000_000
    learning_starts: int = 1_000
    buffer_size: int = 1_000_000
    num_envs: int = 1
    num_steps: int = 2
    num_gradient_steps: int = 2
    batch_size: int = 256
    policy_delay: int = 2
    num_segments: int = 16
    normalize_observation: bool = False
    features: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    shared_critic: bool = False
    num_diversity_states: int = 20
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """What may evolve. Noise is in units of half the range of actions.

    Attributes:
        actor_lr, critic_lr: Adam's step sizes.
        gamma: discount, in [0, 1].
        tau: how far the target networks move at each step of the actor, in (0, 1].
        exploration_noise: standard deviation of the noise on actions taken.
        noise_correlation: of that noise, and of the warm-up's actions, from step to
            step, in [0, 1); 0 is white noise.
        smoothing_noise, noise_clip: of the noise on the target's actions.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        actor_loss: `(q, action, context) -> [...]` of the actor's own actions.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, what
            the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        actor: the actor's first parameters; None: random ones.
        learn: whether the actor learns: above 0.5. None: it does.
        diversity_coef: weight of the population's diversity in the actor's loss; only
            with `shared_critic`. None: no such term.
    """

    actor_lr: Slot = 3e-4
    critic_lr: Slot = 3e-4
    gamma: Slot = 0.99
    tau: Slot = 0.005
    exploration_noise: Slot = 0.1
    noise_correlation: Slot = 0.0
    smoothing_noise: Slot = 0.2
    noise_clip: Slot = 0.5
    td_loss: Slot = losses.td_square
    actor_loss: Slot = losses.minus_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    actor: Any = None
    learn: Slot | None = None
    diversity_coef: Slot | None = None


OF_CRITIC = ("critic_lr", "gamma", "tau", "smoothing_noise", "noise_clip")
OF_CRITIC += ("td_loss", "reward", "optimizer")
"""Slots that act on the critic."""


class Learner(NamedTuple):
    """A network, its slow copy and its optimizer's state."""

    params: Any
    target_params: Any
    opt_state: Any


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: Learner
    critic: Any  # Learner, or () if it is shared
    obs_stats: normalization.RunningStats


class Experience(NamedTuple):
    episodes: rollouts.Episodes
    noise: jax.Array  # [E, A], the last
    rows: Any  # of the replay buffer, or () if it is shared
    steps_since_birth: jax.Array  # int32, steps since birth, warm-up not counted


class Shared(NamedTuple):
    """What a population with `shared_critic` has in common."""

    critic: Learner
    rows: jax.Array


class Clock(NamedTuple):
    update: jax.Array  # int32, updates done


TUNABLE = spaces.tune(
    actor_lr=spaces.log(),
    critic_lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    tau=spaces.log(),
    exploration_noise=spaces.log(),
    smoothing_noise=spaces.log(),
    noise_clip=spaces.log(),
)
"""The hyperparameters that a baseline is tuned in."""


def policy_space(env: envs.Env, config: Config = Config()) -> Space:
    """The space of TD3's actors: params {"actor": parameters, "learn": number}.

    Lamarckian: an actor that learned goes back into the search as it is now.

    Raises:
        ConfigError: layers or actions that no policy has, or observations that are
            normalized, with which an actor is more than its parameters.
    """
    if config.normalize_observation:
        raise ConfigError(
            "inner.normalize_observation=true: a policy that evolves cannot take the "
            "statistics of its observations along; set it to false"
        )
    space = policies.space(env, config)
    learn = {"op": "number", "transform": "linear", "scale": 1.0}
    return Space(
        init=lambda key: space.init(key) | {"learn": jnp.ones(())},
        bind=space.bind,
        inherit=lambda params, state: params | {"actor": state.agent.actor.params},
        spec={**space.spec, "learn": learn},
    )


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """TD3 on `env`, whose actions are continuous and bounded.

    Metrics of `train`: those of `episodes.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`;
    with diversity also `log_volume`.

    Raises:
        ConfigError: sizes that do not fit each other, or other actions.
    """
    config_checks.positive(config)
    if not isinstance(env.action, envs.Box):
        raise ConfigError(f"env={env.name!r}: TD3 needs continuous actions; see dqn")
    if config.num_gradient_steps % config.policy_delay:
        raise ConfigError(
            f"inner.policy_delay={config.policy_delay} does not divide "
            f"inner.num_gradient_steps={config.num_gradient_steps}"
        )
    if meta.diversity_coef is not None and not config.shared_critic:
        raise ConfigError("meta.diversity_coef needs inner.shared_critic=true")
    if config.normalize_observation and config.shared_critic:
        raise ConfigError(
            "inner.normalize_observation=true: members with a shared critic would "
            "each show it other observations"
        )
    frames = config.num_envs * config.num_steps
    num_rows, num_warmup = config_checks.ring(config)
    num_updates, updates_per_segment = config_checks.lifetime(
        config, frames, num_warmup * config.num_envs
    )

    num_actions = env.action.shape[0]
    to_env, to_unit = envs.unit_box(env.action)
    obs_ndim = len(env.observation.shape)
    actor = networks.MLP(
        config.features, num_actions, 0.01, config.activation, obs_ndim
    )
    critic = networks.MLP(config.features, 1, 1.0, config.activation)

    def act_unit(params, obs):
        """Actions in [−1, 1]."""
        return jnp.tanh(actor.apply(params, obs))

    def q_values(params, obs, action):
        """Both critics', [2, ...]; actions in [−1, 1]."""
        flat = obs.reshape(*action.shape[:-1], -1)
        joined = jnp.concatenate([flat, action], -1)
        return jax.vmap(critic.apply, (0, None))(params, joined)[..., 0]

    def normalize_obs(agent, obs):
        """The observation as the networks see it."""
        if config.normalize_observation:
            return normalization.normalize(agent.obs_stats, obs)
        return obs

    def context_of(agent, clock):
        # What is shared is as old as the population, and so is the schedule for it.
        age = clock.update if config.shared_critic else agent.age
        return Context(progress=jnp.minimum(age / num_updates, 1.0))

    def buffer_of(num_envs):
        return replay.make(env, num_rows, num_envs, num_warmup, config.num_steps)

    # --- birth ------------------------------------------------------------------------

    def new_critic(key, meta):
        width = math.prod(env.observation.shape) + num_actions
        draw = jax.vmap(lambda key: critic.init(key, jnp.zeros(width)))
        params = draw(jax.random.split(key))
        return Learner(params, params, meta.optimizer.init(params))

    def draw_noise(key, meta, context, last, num_steps):
        white = jax.random.normal(key, (num_steps, *last.shape))
        rho = slots.value(meta.noise_correlation, context)
        return exploration.correlated(white, last, rho)

    def warm_up(key, meta, num_envs):
        """Uniform actions: -> (episodes, transitions [W, E, ...], last noise)."""
        env_key, first_key, noise_key, step_key = jax.random.split(key, 4)
        noise = draw_noise(
            noise_key,
            meta,
            Context(),
            jax.random.normal(first_key, (num_envs, num_actions)),
            num_warmup,
        )
        state, steps, _ = rollouts.collect(
            step_key,
            env,
            rollouts.start(env_key, env, num_envs),
            exploration.uniform(noise),
            lambda obs, noise: to_env(noise),
        )
        return state, steps, noise[-1]

    def init(key, meta):
        actor_key, critic_key, warmup_key = jax.random.split(key, 3)
        params = meta.actor
        if params is None:
            params = actor.init(actor_key, jnp.zeros(env.observation.shape))
        policy = Learner(params, params, meta.optimizer.init(params))
        obs_stats = normalization.init(env.observation.shape)
        clock = Clock(jnp.int32(0))
        if config.shared_critic:
            num_envs = config.num_envs * population.count()
            _, steps, _ = warm_up(warmup_key, meta, num_envs)
            rows = buffer_of(num_envs).start(steps)
            shared = Shared(new_critic(critic_key, meta), rows)
            mine = rollouts.start(warmup_key, env, config.num_envs)
            noise = jnp.zeros((config.num_envs, num_actions))
            agent = Agent(jnp.int32(0), policy, (), obs_stats)
            experience = Experience(mine, noise, (), jnp.int32(0))
            return InnerState(agent, experience, shared, clock)
        state, steps, noise = warm_up(warmup_key, meta, config.num_envs)
        if config.normalize_observation:
            obs_stats = normalization.update(obs_stats, steps.obs)
        agent = Agent(jnp.int32(0), policy, new_critic(critic_key, meta), obs_stats)
        rows = buffer_of(config.num_envs).start(steps)
        experience = Experience(state, noise, rows, jnp.int32(0))
        return InnerState(agent, experience, (), clock)

    # --- learning ---------------------------------------------------------------------

    def critic_loss(params, target, batch, meta, context):
        q = q_values(params, batch.obs, batch.action)
        td_error = target - q
        context = context._replace(return_std=target.std())
        total = meta.td_loss(td_error, q, target, context).mean(-1).sum()
        return total, {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
        }

    def critic_step(policy, critic, batch, noise, meta, context):
        clip = slots.value(meta.noise_clip, context)
        noise = jnp.clip(
            slots.value(meta.smoothing_noise, context) * noise, -clip, clip
        )
        next_action = act_unit(policy.target_params, batch.next_obs) + noise
        next_q = q_values(
            critic.target_params, batch.next_obs, jnp.clip(next_action, -1.0, 1.0)
        ).min(0)
        gamma = slots.value(meta.gamma, context)
        target = batch.reward + gamma * jnp.where(batch.terminated, 0.0, next_q)
        gradient, info = jax.grad(critic_loss, has_aux=True)(
            critic.params, target, batch, meta, context
        )
        if config.shared_critic:
            gradient = population.mean(gradient)
        params, opt_state = optimizers.step(
            meta.optimizer,
            gradient,
            critic.params,
            critic.opt_state,
            slots.value(meta.critic_lr, context),
            context,
        )
        return Learner(params, critic.target_params, opt_state), info

    def actor_loss(params, critic, obs, meta, context):
        action = act_unit(params, obs)
        q = q_values(critic.params, obs, action)[0]
        return meta.actor_loss(q, action, context).mean()

    def diversity_gradient(params, obs, limit):
        """Towards members that act unlike each other, no longer than `limit`."""
        # One member's observations for all: only so are actions comparable.
        obs = population.gather(obs[: config.num_diversity_states])[0]

        def loss(params):
            mine = act_unit(params, obs).reshape(-1)
            everybody = population.gather(mine).at[population.index()].set(mine)
            return -diversity.log_volume(everybody)

        value, gradient = jax.value_and_grad(loss)(params)
        return optimizers.clip_by_global_norm(gradient, limit), -value

    def actor_step(policy, critic, obs, meta, context):
        """One step of the actor, and of both target networks."""
        gradient = jax.grad(actor_loss)(policy.params, critic, obs, meta, context)
        info = {}
        if meta.diversity_coef is not None:
            coef = slots.value(meta.diversity_coef, context)
            apart, info["log_volume"] = diversity_gradient(
                policy.params, obs, optax.tree.norm(gradient)
            )
            gradient = jax.tree.map(lambda g, d: g + coef * d, gradient, apart)
        params, opt_state = optimizers.step(
            meta.optimizer,
            gradient,
            policy.params,
            policy.opt_state,
            slots.value(meta.actor_lr, context),
            context,
        )
        tau = slots.value(meta.tau, context)
        target = optax.incremental_update(params, policy.target_params, tau)
        learned = Learner(params, target, opt_state)
        if meta.learn is not None:
            learns = slots.value(meta.learn, context) > 0.5
            learned = jax.tree.map(
                lambda new, old: jnp.where(learns, new, old), learned, policy
            )
        target = optax.incremental_update(critic.params, critic.target_params, tau)
        return learned, critic._replace(target_params=target), info

    def learn(policy, critic, batches, noise, meta, context):
        """Minibatches [U / delay, delay, B, ...]: the actor takes U / delay steps."""

        def cycle(carry, drawn):
            policy, critic = carry

            def step(critic, drawn):
                return critic_step(policy, critic, *drawn, meta, context)

            critic, info = jax.lax.scan(step, critic, drawn)
            obs = drawn[0].obs[-1]
            policy, critic, more = actor_step(policy, critic, obs, meta, context)
            return (policy, critic), info | more

        (policy, critic), info = jax.lax.scan(cycle, (policy, critic), (batches, noise))
        return policy, critic, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps of the critics."""
        agent, experience, shared, clock = state
        noise_key, act_key, sample_key, smoothing_key = jax.random.split(
            jax.random.fold_in(key, clock.update), 4
        )
        context = context_of(agent, clock)
        sigma = slots.value(meta.exploration_noise, context)

        def explore(obs, noise):
            action = (
                act_unit(agent.actor.params, normalize_obs(agent, obs)) + sigma * noise
            )
            return to_env(jnp.clip(action, -1.0, 1.0))

        noise = draw_noise(noise_key, meta, context, experience.noise, config.num_steps)
        after, steps, finished = rollouts.collect(
            act_key, env, experience.episodes, noise, explore
        )
        if config.normalize_observation:
            stats = normalization.update(agent.obs_stats, steps.obs)
            agent = agent._replace(obs_stats=stats)

        steps_since_birth = experience.steps_since_birth + config.num_steps
        critic, rows, num_envs = agent.critic, experience.rows, config.num_envs
        if config.shared_critic:
            critic, rows = shared
            num_envs = config.num_envs * population.count()
            steps = jax.tree.map(concat_members, steps)
        buffer = buffer_of(num_envs)
        inserted = clock.update * config.num_steps
        rows = buffer.add(rows, inserted, steps)
        inserted += config.num_steps
        cycles = config.num_gradient_steps // config.policy_delay
        shape = (cycles, config.policy_delay, config.batch_size)
        # A shared buffer is as old as the population.
        age = inserted if config.shared_critic else steps_since_birth
        sampled = buffer.sample(sample_key, rows, inserted, age, shape)
        sampled = jax.tree.map(lambda x: x[0], sampled)
        batches = sampled._replace(
            obs=normalize_obs(agent, sampled.obs),
            action=to_unit(sampled.action),
            reward=learned_from(meta, sampled, context),
            next_obs=normalize_obs(agent, sampled.next_obs),
        )
        smoothing = jax.random.normal(smoothing_key, (*shape, num_actions))

        def improve(policy, critic, batches, noise):
            return learn(policy, critic, batches, noise, meta, context)

        if not config.shared_critic:
            improve = population.phase(improve)
        policy, critic, info = improve(agent.actor, critic, batches, smoothing)
        if config.shared_critic:
            shared, critic, rows = Shared(critic, rows), (), ()
        agent = Agent(agent.age + 1, policy, critic, agent.obs_stats)
        experience = Experience(after, noise[-1], rows, steps_since_birth)
        state = InnerState(agent, experience, shared, Clock(clock.update + 1))
        return state, info | {"totals": rollouts.totals(finished)}

    def concat_members(x):
        """Every member's [T, E, ...] as environments of one, [T, P x E, ...]."""
        x = jnp.moveaxis(population.gather(x), 0, 1)
        return x.reshape(x.shape[0], -1, *x.shape[3:])

    # --- the interface ----------------------------------------------------------------

    def train(key, meta, state):
        def step(state, _):
            return update(key, meta, state)

        state, info = jax.lax.scan(step, state, None, length=updates_per_segment)
        totals = info.pop("totals")
        info = jax.tree.map(jnp.mean, info)
        return state, {
            **rollouts.metrics(state.experience.episodes, totals),
            "value_error_mean": info.pop("error"),
            "value_error_rms": jnp.sqrt(info.pop("squared")),
            **info,
        }

    def act(key, meta, agent, carry, obs):
        del key, meta
        return to_env(act_unit(agent.actor.params, normalize_obs(agent, obs))), carry

    return InnerLoop(
        meta=meta,
        init=init,
        train=train,
        evaluate=evaluation.of_agent(env, act, config.num_eval_envs),
        num_segments=config.num_segments,
        act=act,
        coupled=config.shared_critic,
        shared_slots=OF_CRITIC if config.shared_critic else (),
        frames_per_segment=updates_per_segment * frames,
        env=env,
        tunable=None if config.shared_critic else TUNABLE,
    )
