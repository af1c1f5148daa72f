"""Evolve a player of the Coin Game that shapes a PPO agent: M-FOS (Lu et al., 2022).

The opponent learns from scratch in the 16 updates of a meta-episode, one episode of 15
moves in all games before each, by the authors' settings but for fewer games, 64 in
place of 512, and units. The member is paid its mean reward a step.
"""

import optax

import metaevo
from inner_loops import partner, ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.envs import coin_game
from strategies.open_es import open_es


def search(
    population_size: int = 32,
    num_generations: int = 60,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    shaper: partner.Config = partner.Config(num_segments=16),
    inner: ppo.Config = ppo.Config(
        total_timesteps=64 * 15 * 16,
        num_envs=64,
        num_steps=15,
        num_segments=16,
        num_epochs=80,
        num_minibatches=1,
        features=(16,),
        anneal_lr=False,
    ),
    meta: ppo.Meta = ppo.Meta(
        lr=0.005,
        gamma=0.96,
        gae_lambda=1.0,
        max_grad_norm=10.0,
        value_loss=losses.square,
    ),
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
