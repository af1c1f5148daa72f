"""DvD (Parker-Holder et al., 2020): TD3 agents with one critic that differ on purpose.

Members live on. The gradient of each actor has a share that pushes members apart, whose
weight a bandit chooses for each generation of 200 frames. The result is the best agent.
"""

import metaevo
from inner_loops import td3_shared
from metaevo import envs, fitness, spaces
from strategies.dvd import dvd


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 5,
    coefficients: tuple[float, ...] = (0.0, 0.5),
    boundaries: tuple[float, ...] = (),
    inner: td3_shared.Config = td3_shared.Config(
        10_000,
        learning_starts=200,
        num_gradient_steps=10,
        batch_size=64,
        num_segments=49,
        features=(64, 64),
    ),
    meta: td3_shared.Meta = td3_shared.Meta(1e-3, 1e-3, diversity_coef=0.0),
) -> metaevo.Search:
    """
    Args:
        coefficients: weights of diversity, >= 0, among which a bandit chooses.
        boundaries: frames of all members after which the next coefficient holds; none:
            the bandit chooses. [0,0.3,0.5,0.2] and [50000,300000,700000] are
            fastpbrl's schedule.
    """
    warm_up = population_size * inner.learning_starts
    frames = population_size * inner.total_timesteps - warm_up
    switches = tuple((x - warm_up) / frames * inner.num_segments for x in boundaries)
    space = spaces.tune(diversity_coef=spaces.linear())
    strategy = dvd(space, population_size, coefficients, boundaries=switches)
    return metaevo.Search(
        inner_loop=td3_shared.make(envs.make(env), inner, meta),
        space=space,
        strategy=strategy,
        num_generations=inner.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
