"""Evolve DQN's loss of the temporal difference over many agents and two tasks.

A loss that evolves in one agent is good for that agent's step size, length of life and
task. Here each world draws its step size, discount and target rate, and CartPole, where
steps are paid, is ranked beside Acrobot, where they cost. The loss is the square with a
bounded weight, and without a bias unless max_bias allows one. SNES (Schaul et al.,
2011) raises the sum of the ranks of the mean returns over a lifetime.
"""

import metaevo
from inner_loops import dqn
from metaevo import critic_losses, fitness, spaces
from metaevo.envs import make
from strategies.snes import snes


def search(
    envs: tuple[str, ...] = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1"),
    population_size: int = 32,
    num_generations: int = 30,
    num_seeds: int = 2,
    sigma: float = 0.3,
    hidden: int = 16,
    convex: bool = False,
    max_weight: float = 4.0,
    max_bias: float = 0.0,
    inner: dqn.Config = dqn.Config(32_000, 1_000, num_steps=4),
    meta: dqn.Meta = dqn.Meta(lr=1e-3),
) -> metaevo.Search:
    loss = critic_losses.td_weighted_square((hidden,), convex, max_weight, max_bias)
    space = spaces.replace(td_loss=loss)
    vary = spaces.prior(
        lr=spaces.log_uniform(meta.lr / 4, meta.lr * 4),
        gamma=spaces.horizon_uniform(0.97, 0.995),
        target_rate=spaces.uniform(0.9, 1.0),
    )
    return metaevo.Search(
        inner_loop=[dqn.make(make(env), inner, meta) for env in envs],
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
        aggregate=fitness.rank_sum,
        vary=vary,
    )


if __name__ == "__main__":
    metaevo.main(search)
