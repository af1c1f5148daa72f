"""Evolve what GORILA does with gradients that are stale or of an outlying loss.

The step size becomes a function of the delay, and three numbers move: from which loss
on a gradient is dropped, how much the learners' exploration differs, and the rate of
the target network. OpenAI-ES (Salimans et al., 2017) raises the final return.
"""

import optax

import metaevo
from inner_loops import gorila
from metaevo import envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    population_size: int = 12,
    num_generations: int = 12,
    num_seeds: int = 2,
    sigma: float = 0.2,
    learning_rate: float = 0.1,
    inner: gorila.Config = gorila.Config(40_000, 1_000, max_delay=16, num_segments=5),
    meta: gorila.Meta = gorila.Meta(lr=1e-3, target_rate=0.9),
) -> metaevo.Search:
    space = spaces.combine(
        spaces.feedback({"delay": 8.0}, lr=spaces.log()),
        spaces.tune(
            drop_deviation=spaces.log(),
            epsilon_spread=spaces.log(),
            target_rate=spaces.logit(),
        ),
    )
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=gorila.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
