"""Evolve a player of the Coin Game that shapes a PPO agent: M-FOS (Lu et al., 2022).

The opponent learns from scratch in the 32 updates of a meta-episode, one episode of 16
steps in all games before each. The member is paid its mean reward a step.
"""

import optax

import metaevo
from inner_loops import partner, ppo
from metaevo import envs, fitness, spaces
from metaevo.envs import coin_game
from strategies.open_es import open_es


def search(
    population_size: int = 32,
    num_generations: int = 60,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    shaper: partner.Config = partner.Config(num_segments=32),
    inner: ppo.Config = ppo.Config(
        total_timesteps=16 * 16 * 32,
        num_envs=16,
        num_steps=16,
        num_segments=32,
        num_epochs=8,
        num_minibatches=2,
        features=(16,),
        anneal_lr=False,
    ),
    meta: ppo.Meta = ppo.Meta(lr=0.02, gamma=0.96, max_grad_norm=10.0),
) -> metaevo.Search:
    env = envs.make("coin_game/3x3")
    space = spaces.replace(player=partner.policy(env, shaper))
    loop = partner.make(
        ppo.make(env, inner, meta),
        shaper,
        partner.Meta(coin_game.greedy),
        {"considerate": {"player": coin_game.considerate}},
    )
    return metaevo.Search(
        inner_loop=loop,
        space=space,
        strategy=open_es(space, population_size, sigma, optax.adam(learning_rate)),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        chunk_size=population_size // 2,
    )


if __name__ == "__main__":
    metaevo.main(search)
