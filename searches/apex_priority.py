"""Evolve which transitions Ape-X samples.

A network that starts as |td error| gives the priority of a transition by its temporal
difference, age, visits, reward and end (`family=network`), or the exponents of
priorities and importance weights move alone (`family=exponents`), or both. OpenAI-ES
(Salimans et al., 2017) raises the final return.
"""

import optax

import metaevo
from inner_loops import apex
from metaevo import envs, fitness, spaces
from metaevo.errors import ConfigError
from metaevo.learned import priorities
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.2,
    learning_rate: float = 0.1,
    family: str = "both",
    largest: float = 8.0,
    inner: apex.Config = apex.Config(60_000, 1_000, 20_000, num_segments=5),
    meta: apex.Meta = apex.Meta(),
) -> metaevo.Search:
    """
    Args:
        family: what moves: the `network` of priorities, the `exponents`, or `both`.
        largest: > 1, bound of the factor between a priority and |td error|.
    """
    network = spaces.replace(priority=priorities.network(largest=largest))
    exponents = spaces.tune(
        priority_exponent=spaces.log(), importance_exponent=spaces.logit()
    )
    families = {
        "network": network,
        "exponents": exponents,
        "both": spaces.combine(network, exponents),
    }
    if family not in families:
        raise ConfigError(f"family={family!r}: expected one of {', '.join(families)}")
    space = families[family]
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=apex.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
