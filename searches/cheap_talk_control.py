"""Evolve messages that make PPO steerable, and the messages that then steer it.

Adversarial Cheap Talk at test time (Lu et al., 2023): victims learn their own task
beside the messages of one network and are frozen. Another network, which sees a random
goal, then sends messages that are to bring the victim there. OpenAI-ES (Salimans et
al., 2017) evolves both networks together, for the mean reward of the goal.
"""

import optax

import metaevo
from inner_loops import ppo
from metaevo import envs, messages, rewards, spaces
from metaevo.envs import goals
from metaevo.rl import steering
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 64,
    num_generations: int = 70,
    num_seeds: int = 1,
    sigma: float = 0.3,
    learning_rate: float = 0.1,
    hidden: tuple[int, ...] = (16,),
    scale: float = 1.0,
    exploiter_scale: float = 1.0,
    inner: ppo.Config = ppo.Config(
        32_768, 4, 256, num_segments=8, features=(32,), num_eval_envs=64, message_size=2
    ),
    meta: ppo.Meta = ppo.Meta(lr=2.5e-3),
) -> metaevo.Search:
    """
    Args:
        scale: bound of each number of a message while victims learn.
        exploiter_scale: bound of each number of a message that steers them.
    """
    task = envs.make(env)
    units = rewards.units(task)
    observed = [*units, *goals.of(task).units]
    inner_loop = steering.steered(ppo.make(task, inner, meta))
    size = inner.message_size
    space = spaces.replace(
        message=messages.network(units, size, hidden, scale),
        exploiter=messages.network(observed, size, hidden, exploiter_scale),
    )
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=inner_loop,
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=steering.goal_reward(inner_loop),
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
