"""Evolve how IMPALA corrects for actors that are behind, under several delays at once.

OpenAI-ES (Salimans et al., 2017) raises the mean final return over the delays, each a
task. The step size is ten times IMPALA's: with its own the policies of actors and
learner are so near that on CartPole no correction matters (docs/log/loops.md).
"""

from typing import Literal

import optax

import metaevo
from inner_loops import impala
from metaevo import advantages, envs, fitness, spaces
from strategies.open_es import open_es


def search(
    env: str = "gymnax/CartPole-v1",
    delays: tuple[int, ...] = (0, 4, 16),
    population_size: int = 16,
    num_generations: int = 20,
    num_seeds: int = 2,
    sigma: float = 0.2,
    learning_rate: float = 0.1,
    family: Literal["clips", "correction", "advantage"] = "clips",
    inner: impala.Config = impala.Config(150_000, max_delay=16, num_segments=5),
    meta: impala.Meta = impala.Meta(lr=2e-2),
) -> metaevo.Search:
    """
    Args:
        delays: updates that actors are behind, each a task.
        family: `clips`, the places where V-trace truncates its weights; `correction`,
            the weight of a ratio; `advantage`, a GRU over V-trace's advantage.
    """
    space = {
        "clips": lambda: spaces.tune(
            rho_clip=spaces.log(), c_clip=spaces.log(), pg_clip=spaces.log()
        ),
        "correction": lambda: spaces.replace(
            correction=advantages.monotone_correction()
        ),
        "advantage": lambda: spaces.replace(advantage=advantages.recurrent("vtrace")),
    }[family]()
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    world = envs.make(env)
    return metaevo.Search(
        inner_loop=[
            impala.make(world, inner, meta._replace(delay=float(d))) for d in delays
        ],
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
    )


if __name__ == "__main__":
    metaevo.main(search)
