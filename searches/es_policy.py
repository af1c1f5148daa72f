"""Evolve a policy directly, without learning, by OpenAI-ES (Salimans et al., 2017).

Members are parameters of a small network. A member's fitness is the mean return of its
episodes, the same worlds for all; the solution is the mean of the distribution.
"""

import optax

import metaevo
from inner_loops import policy_es
from metaevo import envs, fitness
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 256,
    num_generations: int = 50,
    num_seeds: int = 1,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    inner: policy_es.Config = policy_es.Config(),
    meta: policy_es.Meta = policy_es.Meta(),
) -> metaevo.Search:
    task = envs.make(env)
    space = policy_es.policies(task, inner)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    loop = policy_es.make(task, inner, meta)
    score = fitness.last_segments(inner.num_segments)
    return metaevo.Search(loop, space, strategy, num_generations, score, num_seeds)


if __name__ == "__main__":
    metaevo.main(search)
