"""Evolve messages that keep PPO from learning, though they are all that they change.

Adversarial Cheap Talk (Lu et al., 2023): each victim is a whole PPO run from scratch
that sees, beside its observation, two numbers that are a function of it. OpenAI-ES
(Salimans et al., 2017) lowers the return that victims end with.
"""

import optax

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, messages, rewards, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 64,
    num_generations: int = 30,
    num_seeds: int = 1,
    sigma: float = 0.3,
    learning_rate: float = 0.1,
    hidden: tuple[int, ...] = (32, 32),
    scale: float = 1.0,
    inner: ppo.Config = ppo.Config(
        32_768, 4, 256, num_segments=8, features=(32,), message_size=2
    ),
    meta: ppo.Meta = ppo.Meta(lr=2.5e-3),
) -> metaevo.Search:
    """
    Args:
        scale: bound of each number of a message.
    """
    task = envs.make(env)
    message = messages.network(rewards.units(task), inner.message_size, hidden, scale)
    space = spaces.replace(message=message)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=ppo.make(task, inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.minus(fitness.final_return),
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
