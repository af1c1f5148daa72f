"""Every inner loop with small sizes, for tests that hold for all of them."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from inner_loops import (
    a2c,
    alphazero,
    apex,
    apex_ddpg,
    dqn,
    fixed_policy,
    gorila,
    gumbel_alphazero,
    impala,
    opponents,
    partner,
    ppo,
    ppo_rnn,
    pqn,
    qtopt,
    r2d2,
    r2d3,
    sac,
    td3,
    td3_shared,
)
from metaevo import (
    activations,
    advantages,
    drifts,
    envs,
    losses,
    optimizers,
    slots,
)
from metaevo.envs import coin_game, matrix
from metaevo.population import DEVICES, MEMBERS
from metaevo.rl import demonstrations, game_players
from metaevo.types import InnerLoop

SGD = optimizers.from_optax(optax.identity())


class Small(NamedTuple):
    """A loop that compiles in seconds and lives for four updates.

    Attributes:
        config: its sizes but `num_segments`; total_timesteps is a lifetime.
        meta: with a learning rate whose effect one update shows.
        changes: slot -> another value, for every slot.
        rewritten: function slot -> its default, by other operations.
        tuned: a number slot with a default in (0, 1).
        learns: False if its result is its returns alone.
        world: makes what it is played in from `env`.

    A coupled loop is in `COUPLED`, one without an `Env` in `GAMES`, one around another
    loop in `PARTNERS`.
    """

    module: ModuleType
    env: str
    config: Mapping[str, Any]
    meta: Any
    changes: Mapping[str, Any]
    rewritten: Mapping[str, Any]
    tuned: str = "gamma"
    learns: bool = True
    world: Callable[[str], Any] = envs.make

    def make(self, meta=None, env=None, **config):
        config = self.module.Config(**{**self.config, "num_segments": 1, **config})
        env = env or _made(self.world, self.env)
        return self.module.make(env, config, self.meta if meta is None else meta)


@functools.cache
def _made(world, name):
    """An environment; the same object each time, so that its programs are too."""
    return world(name)


def alone(loop: InnerLoop) -> InnerLoop:
    """A coupled loop in a population of one, which can be called without a search."""
    if not loop.coupled:
        return loop

    def lifted(function):
        def call(*args):
            one = jax.vmap(lambda _: function(*args), axis_name=MEMBERS)
            out = jax.vmap(one, axis_name=DEVICES)(jnp.zeros((1, 1)))
            return jax.tree.map(lambda x: x[0, 0], out)

        return call

    return loop._replace(init=lifted(loop.init), train=lifted(loop.train))


@slots.function
def _late(context):
    return 1e-2 * (1 + context.progress)


@slots.function
def _other_reward(obs, action, reward, next_obs, terminated, context=None):
    return 3.0 * reward + obs[0] + jnp.float32(terminated)


@slots.function
def _same_reward(obs, action, reward, next_obs, terminated, context=None):
    return reward * 1.0


@slots.function
def _same_td_loss(td_error, q, target, context):
    return 0.5 * (target - q) * td_error


@slots.function
def _dqn_reg(td_error, q, target, context):
    return td_error**2 + 0.1 * q


@slots.function
def _softmax(q, epsilon, context):
    return jnp.exp(q / 0.1 - (q / 0.1).max(-1, keepdims=True))


@slots.function
def _same_exploration(q, epsilon, context):
    best = q.argmax(-1)[..., None] == jnp.arange(q.shape[-1])
    return jnp.where(best, 1 - epsilon + epsilon / q.shape[-1], epsilon / q.shape[-1])


@slots.function
def _same_epsilon(context):
    return 1.0 + (0.05 - 1.0) * jnp.clip(2 * context.progress, 0.0, 1.0)


@slots.function
def _same_constant(context):
    return 0.9 + 0.0 * context.progress


@slots.function
def _by_age(td_error, age, visits, reward, terminated, context):
    return jnp.where(age > 0.1, 100.0, 0.01) + 0.0 * visits


@slots.function
def _same_priority(td_error, age, visits, reward, terminated, context):
    return jnp.maximum(td_error, -td_error)


@slots.function
def _other_rescale(x, context):
    return 0.3 * x


@slots.function
def _same_rescale(x, context):
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + 1e-3 * x


@slots.function
def _half_drift(log_ratio, advantage, clip_eps, context):
    return 0.5 * drifts.ppo_clip(log_ratio, advantage, clip_eps, context)


@slots.function
def _same_drift(log_ratio, advantage, clip_eps, context):
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return ratio * advantage - jnp.minimum(ratio * advantage, clipped * advantage)


@slots.function
def _same_value_loss(value, target, old_value, context):
    eps = context.stats["clip_eps"]
    clipped = jnp.clip(value, old_value - eps, old_value + eps)
    return 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2)


@slots.function
def _same_square(value, target, old_value, context):
    return 0.5 * (target - value) ** 2


@slots.function
def _fourth_power(value, target, old_value, context):
    return (value - target) ** 4


@slots.function
def _same_q(q, context):
    return 1.0 - (1.0 - q)


@slots.function
def _other_q(q, context):
    return 0.2 * q


@slots.function
def _entropy_again(log_prob, log_ratio, advantage, entropy, context):
    return -0.1 * entropy * (1 + context.progress)


@slots.function
def _two_components(obs, context):
    return obs[..., :2] * (2 - context.progress)


@slots.function
def _silence(obs, context):
    """`messages.silent` of two numbers, as the others are."""
    return jnp.zeros((*obs.shape[:-1], 2))


@slots.function
def _same_silence(obs, context):
    return 0.0 * obs[..., :2]


@slots.function
def _squared_q(q, action, context):
    return -q + (action**2).sum(-1)


@slots.function
def _same_actor_loss(q, action, context):
    return -1.0 * q


@slots.function
def _mean_q(q, context):
    return q.mean(0)


@slots.function
def _same_aggregation(q, context):
    return jnp.minimum(q[0], q[1])


@slots.function
def _same_mean_q(q, context):
    return 0.5 * (q[0] + q[1])


@slots.function
def _root(log_ratio, context):
    return jnp.exp(0.5 * advantages.clipped(log_ratio) - 0.5)


@slots.function
def _same_correction(log_ratio, context):
    return jnp.minimum(jnp.exp(log_ratio), 1.0)


@slots.function
def _a_tenth(context):
    return 0.1 + 0.0 * context.progress


class Demonstrated(Small):
    """A loop that is given demonstrations: the first legal action, always."""

    def make(self, meta=None, env=None, **config):
        given = _recorded(self.world, self.env) if env is None else _demonstrated(env)
        env = env or _made(self.world, self.env)
        config = self.module.Config(**{**self.config, "num_segments": 1, **config})
        return self.module.make(env, config, self.meta if meta is None else meta, given)


@functools.cache
def _recorded(world, name):
    return _demonstrated(_made(world, name))


def _demonstrated(env):
    if not isinstance(env.action, envs.Discrete):
        return None
    return demonstrations.record(env, lambda obs, state: _legal(env, state), 3)


def _legal(env, state):
    mask = envs.legal_actions(env, state)
    return 0 if mask is None else mask.argmax()


TWO_EPISODES = "gymnax/CartPole-v1"
# Of two actions a search scales the values to 0 and 1, whatever they are.
FIVE_ACTIONS = "grid/random_mdp"
OFF_POLICY = {"learning_starts": 64, "buffer_size": 128, "batch_size": 16}
ON_POLICY = {"total_timesteps": 1280, "num_envs": 4, "num_steps": 80}
ON_POLICY |= {"features": (16,)}
CHANGES = {"gamma": 0.8, "reward": _other_reward, "optimizer": SGD}
"""Of most loops."""
POLICY_CHANGES = CHANGES | {
    "lr": _late,
    "gae_lambda": 0.5,
    "ent_coef": 0.1,
    "vf_coef": 2.0,
    "max_grad_norm": 0.01,
    "policy_loss": _entropy_again,
    "activation": activations.relu,
    "advantage": advantages.discounted_return,
}
PPO_CHANGES = POLICY_CHANGES | {
    "clip_eps": 0.01,
    "drift": _half_drift,
    "value_loss": losses.square,
    "message": _two_components,
}
POLICY_REWRITTEN = {"activation": activations.tanh, "reward": _same_reward}
PPO_REWRITTEN = POLICY_REWRITTEN | {
    "message": _same_silence,
    "drift": _same_drift,
    "value_loss": _same_value_loss,
}
ACTOR_CRITIC = ON_POLICY | {"max_delay": 2}
ACTOR_CRITIC_CHANGES = POLICY_CHANGES | {"delay": 0.0, "value_loss": losses.zero}
ACTOR_CRITIC_REWRITTEN = POLICY_REWRITTEN | {"value_loss": _same_square}
DQN_CONFIG = {"total_timesteps": 128, "num_envs": 4, "num_steps": 4}
DQN_CONFIG |= {"features": (16,), "target_period": 2, "num_gradient_steps": 2}
DQN_CONFIG |= OFF_POLICY
VALUE_CHANGES = CHANGES | {
    "lr": _late,
    "epsilon": 0.0,
    "exploration": _softmax,
    "td_loss": _dqn_reg,
    "max_grad_norm": 0.01,
}
DQN_CHANGES = VALUE_CHANGES | {"target_rate": 0.5}
CRITIC_REWRITTEN = {"td_loss": _same_td_loss, "reward": _same_reward}
DQN_REWRITTEN = CRITIC_REWRITTEN | {
    "exploration": _same_exploration,
    "epsilon": _same_epsilon,
}
# Of less to compile; the loops' own tests have the rest.
PLAIN = {"dueling": False, "num_step_return": 2}
R2D2_CONFIG = {"total_timesteps": 128, "num_envs": 4, "num_steps": 4, "period": 2}
R2D2_CONFIG |= {"features": (16,), "hidden": 8, "target_period": 2}
R2D2_CONFIG |= {"num_gradient_steps": 2, **PLAIN}
R2D2_CONFIG |= {"burn_in": 2, "sequence_length": 3, **OFF_POLICY, "batch_size": 8}
R2D2_META = {"lr": 1e-2, "epsilon": 0.9, "epsilon_exponent": 1.0}
R2D2_META |= {"importance_exponent": 0.1}
R2D2_CHANGES = DQN_CHANGES | {
    "epsilon_exponent": 9.0,
    "rescale": _other_rescale,
    "stored_memory": 0.0,
    "priority": _by_age,
    "priority_max": 0.0,
    "priority_exponent": 3.0,
    "importance_exponent": 0.9,
}
R2D2_REWRITTEN = {k: x for k, x in DQN_REWRITTEN.items() if k != "epsilon"} | {
    "priority": _same_priority,
    "epsilon": _same_constant,
    "rescale": _same_rescale,
}
CONTINUOUS = {"total_timesteps": 96, "num_envs": 2, "num_steps": 4, "features": (16,)}
CONTINUOUS |= OFF_POLICY
TD3_CONFIG = CONTINUOUS | {"num_gradient_steps": 4}
CONTINUOUS_CHANGES = CHANGES | {
    "tau": 0.5,
    "noise_correlation": 0.9,
    "reward_scale": 0.1,
    "td_loss": _dqn_reg,
}
TD3_CHANGES = CONTINUOUS_CHANGES | {
    "actor_lr": _late,
    "critic_lr": 1e-3,
    "exploration_noise": 0.9,
    "smoothing_noise": 0.01,
    "noise_clip": 0.01,
    "actor_loss": _squared_q,
}
TD3_REWRITTEN = CRITIC_REWRITTEN | {"actor_loss": _same_actor_loss}
PLANNING_CONFIG = {"total_timesteps": 272, "num_envs": 2, "num_steps": 34}
PLANNING_CONFIG |= {"num_epochs": 2, "num_minibatches": 4, "features": (16,)}
PLANNING_CONFIG |= {"num_simulations": 6, "num_eval_envs": 2}
PLANNING_CHANGES = {
    "lr": _late,
    "gamma": 0.8,
    "value_mix": 0.1,
    "vf_coef": 3.0,
    "l2": 0.3,
    "max_grad_norm": 0.01,
    "q_transform": _other_q,
    "value_loss": _fourth_power,
    "optimizer": SGD,
}
PLANNING_REWRITTEN = {"q_transform": _same_q, "value_loss": _same_square}
SMALL = {
    "alphazero": Small(
        alphazero,
        FIVE_ACTIONS,
        PLANNING_CONFIG,
        alphazero.Meta(lr=1e-2, gamma=0.99),
        PLANNING_CHANGES
        | {"c_init": 5.0, "c_base": 1.0, "dirichlet_alpha": 3.0}
        | {"dirichlet_fraction": 0.9, "temperature": 0.1},
        PLANNING_REWRITTEN,
    ),
    "gumbel_alphazero": Small(
        gumbel_alphazero,
        FIVE_ACTIONS,
        PLANNING_CONFIG,
        gumbel_alphazero.Meta(lr=1e-2, gamma=0.99),
        PLANNING_CHANGES | {"q_scale": 2.0, "q_visits": 1.0, "gumbel_scale": 0.1},
        PLANNING_REWRITTEN,
    ),
    "ppo": Small(
        ppo,
        TWO_EPISODES,
        ON_POLICY | {"num_epochs": 2, "message_size": 2},
        ppo.Meta(lr=1e-2, message=_silence),
        PPO_CHANGES,
        PPO_REWRITTEN,
    ),
    "ppo_rnn": Small(
        ppo_rnn,
        TWO_EPISODES,
        ON_POLICY
        | {"num_epochs": 2, "hidden": 8, "message_size": 2}
        | {"normalize_observation": True, "normalize_reward": True},
        ppo_rnn.Meta(lr=1e-2, message=_silence),
        PPO_CHANGES,
        PPO_REWRITTEN,
    ),
    "a2c": Small(
        a2c,
        TWO_EPISODES,
        ACTOR_CRITIC | {"num_workers": 2},
        a2c.Meta(lr=1e-2),
        ACTOR_CRITIC_CHANGES | {"delay_decay": 1.0, "entropy_spread": 4.0},
        ACTOR_CRITIC_REWRITTEN,
    ),
    "impala": Small(
        impala,
        TWO_EPISODES,
        ACTOR_CRITIC,
        # At less, actors that are behind are hardly another policy.
        impala.Meta(lr=0.05),
        ACTOR_CRITIC_CHANGES
        | {"rho_clip": 0.5, "c_clip": 0.5, "pg_clip": 0.5, "leak": 1.0}
        | {"correction": _root},
        ACTOR_CRITIC_REWRITTEN | {"correction": _same_correction},
    ),
    "dqn": Small(
        dqn,
        TWO_EPISODES,
        DQN_CONFIG,
        dqn.Meta(lr=1e-2),
        DQN_CHANGES,
        DQN_REWRITTEN,
    ),
    "gorila": Small(
        gorila,
        TWO_EPISODES,
        DQN_CONFIG | {"num_learners": 2, "max_delay": 2, "drop_after": 1},
        gorila.Meta(lr=1e-2),
        DQN_CHANGES
        | {"epsilon_spread": 0.2, "delay": 0.0, "delay_decay": 9.0}
        | {"drop_delay": 1.0, "drop_deviation": 0.1},
        DQN_REWRITTEN,
    ),
    "apex": Small(
        apex,
        TWO_EPISODES,
        DQN_CONFIG | PLAIN,
        # Priorities matter where importance weights do not undo them, exploration where
        # there is much.
        apex.Meta(lr=1e-2, epsilon=0.9, epsilon_exponent=1.0, importance_exponent=0.1),
        DQN_CHANGES
        | {"epsilon_exponent": 9.0, "priority": _by_age, "priority_exponent": 3.0}
        | {"importance_exponent": 0.9},
        {k: x for k, x in DQN_REWRITTEN.items() if k != "epsilon"}
        | {"priority": _same_priority, "epsilon": _same_constant},
    ),
    "r2d2": Small(
        r2d2,
        TWO_EPISODES,
        R2D2_CONFIG,
        r2d2.Meta(**R2D2_META),
        R2D2_CHANGES,
        R2D2_REWRITTEN,
    ),
    "r2d3": Demonstrated(
        r2d3,
        TWO_EPISODES,
        R2D2_CONFIG,
        r2d3.Meta(**R2D2_META),
        R2D2_CHANGES | {"demo_ratio": 0.9},
        R2D2_REWRITTEN,
    ),
    "pqn": Small(
        pqn,
        TWO_EPISODES,
        ON_POLICY | {"num_epochs": 2},
        pqn.Meta(lr=1e-2),
        VALUE_CHANGES | {"q_lambda": 0.1},
        DQN_REWRITTEN,
    ),
    "td3": Small(
        td3,
        "gymnax/Pendulum-v1",
        TD3_CONFIG | {"normalize_observation": True},
        td3.Meta(actor_lr=1e-2, critic_lr=1e-2),
        TD3_CHANGES | {"policy_delay": 1.0},
        TD3_REWRITTEN,
    ),
    "apex_ddpg": Small(
        apex_ddpg,
        "gymnax/Pendulum-v1",
        TD3_CONFIG | {"num_step_return": 2},
        apex_ddpg.Meta(actor_lr=1e-2, critic_lr=1e-2, importance_exponent=0.1),
        {
            k: x
            for k, x in TD3_CHANGES.items()
            if k not in ("smoothing_noise", "noise_clip")
        }
        | {"noise_exponent": 0.0, "priority": _by_age, "priority_exponent": 3.0}
        | {"importance_exponent": 0.9},
        TD3_REWRITTEN | {"priority": _same_priority},
    ),
    "sac": Small(
        sac,
        "gymnax/Pendulum-v1",
        TD3_CONFIG | {"normalize_observation": True},
        sac.Meta(1e-2, 1e-2, 1e-2, target_entropy=-1.0),
        CONTINUOUS_CHANGES
        | {"actor_lr": _late, "critic_lr": 1e-3, "temperature_lr": 1e-3}
        | {"target_entropy": -3.0, "q_aggregation": _mean_q},
        CRITIC_REWRITTEN | {"q_aggregation": _same_aggregation},
    ),
    "qtopt": Small(
        qtopt,
        "gymnax/Pendulum-v1",
        CONTINUOUS
        | {"num_gradient_steps": 2, "normalize_observation": True}
        | {"num_samples": 4, "max_lag": 2, "num_copies": 2},
        # Values fall here, so the least of the two would be that of the first.
        qtopt.Meta(lr=1e-2, tau=0.3, num_elites=2.0, q_aggregation=_mean_q),
        CONTINUOUS_CHANGES
        | {"lr": _late, "tau": 0.03, "lag": 0.0, "q_aggregation": losses.least_q}
        | {"num_elites": 3.5, "elite_sharpness": 5.0}
        | {"start_std": 0.3, "least_std": 0.5}
        | {"epsilon": 0.9, "exploration_noise": 0.9, "fit_noise": 2.0},
        CRITIC_REWRITTEN | {"q_aggregation": _same_mean_q},
    ),
    "fixed_policy": Small(
        fixed_policy,
        TWO_EPISODES,
        ON_POLICY,
        fixed_policy.Meta(action_noise=0.1),
        {"action_noise": 0.9},
        {"action_noise": _a_tenth},
        tuned="action_noise",
        learns=False,
    ),
}
COUPLED = {
    "td3_shared": Small(
        td3_shared,
        "gymnax/Pendulum-v1",
        TD3_CONFIG,
        td3_shared.Meta(actor_lr=1e-2, critic_lr=1e-2),
        TD3_CHANGES | {"learn": 0.0},
        TD3_REWRITTEN | {"learn": 1.0},
    ),
}
EVERY = SMALL | COUPLED


def _same_naive(own, other, context):
    def payoff(own):
        return DILEMMA.payoffs(own, other)[0]

    return own + jax.grad(payoff)(own) / DILEMMA.unit


DILEMMA = matrix.make("prisoners_dilemma")
GAMES = {
    "opponents": Small(
        opponents,
        "prisoners_dilemma",
        {"num_envs": 32, "num_steps": 4},
        opponents.Meta(
            game_players.naive(DILEMMA),
            game_players.naive(matrix.swapped(DILEMMA), 0.5),
            naive_share=0.5,
        ),
        {
            "shaper": game_players.static(DILEMMA.fixed["extortion"]),
            "opponent": game_players.static(DILEMMA.fixed["always defect"]),
            "naive_share": 1.0,
            "start": 1.0,
            "start_std": 0.5,
            "opponent_start": 1.0,
            "opponent_start_std": 0.5,
            "opponent_answers": 1.0,
        },
        {"shaper": slots.function(_same_naive)},
        tuned="naive_share",
        world=matrix.make,
    ),
}


class Partner(Small):
    """A loop around another, of four segments, which has the sizes."""

    def make(self, meta=None, env=None, **config):
        learner = ppo.make(env or self.world(self.env), ppo.Config(**self.config))
        config = partner.Config(**{"num_segments": 1, **config})
        return partner.make(learner, config, self.meta if meta is None else meta)


PARTNERS = {
    "partner": Partner(
        partner,
        "coin_game/3x3",
        {"total_timesteps": 256, "num_envs": 4, "num_steps": 16, "features": (8,)}
        | {"num_segments": 4},
        partner.Meta(slots.function(coin_game.greedy)),
        {"player": slots.function(coin_game.considerate)},
        {},
        learns=False,
    ),
}
ALL = EVERY | GAMES | PARTNERS
OFF_POLICY_LOOPS = ("dqn", "gorila", "apex", "r2d2", "r2d3")
OFF_POLICY_LOOPS += ("td3", "apex_ddpg", "sac", "qtopt")

FOUND = sorted(
    path.stem for path in (Path(__file__).parents[2] / "inner_loops").glob("[a-z]*.py")
)
