"""Evolve a policy directly, without learning, by OpenAI-ES (Salimans et al., 2017).

Members are parameters of a small network. A member's fitness is the mean return of its
episodes, the same worlds for all; the solution is the mean of the distribution.
"""

import optax

import metaevo
from inner_loops import fixed_policy
from metaevo import envs, fitness
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 256,
    num_generations: int = 50,
    num_seeds: int = 1,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    inner: fixed_policy.Config = fixed_policy.Config(),
    meta: fixed_policy.Meta = fixed_policy.Meta(),
) -> metaevo.Search:
    task = envs.make(env)
    space = fixed_policy.policy_space(task, inner)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=fixed_policy.make(task, inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.last_segments(inner.num_segments),
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
