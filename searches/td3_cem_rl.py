"""CEM-RL (Pourchot and Sigaud, 2019): evolve TD3's actors, half of which also learn.

All members act, fill one replay buffer and train one critic. Then each is scored on
fresh episodes, and the cross-entropy method moves the distribution of actors towards
the best, learned or not; the solution is its mean. A generation is a segment of 200
frames of each, one critic step per frame.
"""

from typing import Any

import metaevo
from inner_loops import td3_shared
from metaevo import envs, fitness
from strategies.cem_rl import cem_rl


def search(
    env: str = "gymnax/Pendulum-v1",
    population_size: int = 10,
    sigma: float = 0.1,
    num_elites: int | None = None,
    num_learners: int | None = None,
    noise: float = 0.1,
    final_noise: float = 0.003,
    mirrored: bool = False,
    inner: td3_shared.Config = td3_shared.Config(
        5_000,
        learning_starts=200,
        num_steps=20,
        num_gradient_steps=200,
        batch_size=64,
        num_segments=24,
        features=(64, 64),
    ),
    meta: td3_shared.Meta = td3_shared.Meta(1e-3, 1e-3, exploration_noise=0.0),
) -> metaevo.Search:
    """
    Args:
        num_elites: members that make the next distribution; null: half of them.
        num_learners: members that learn; null: half of them.
        noise: standard deviation that updates add at first.
        final_noise: standard deviation that they add at last.
    """
    task = envs.make(env)
    space = td3_shared.policy_space(task, inner)
    options: dict[str, Any] = {"num_elites": num_elites, "num_learners": num_learners}
    options |= {"sigma": sigma, "noise": noise, "final_noise": final_noise}
    strategy = cem_rl(space, population_size, mirrored=mirrored, **options)
    return metaevo.Search(
        inner_loop=td3_shared.make(task, inner, meta),
        space=space,
        strategy=strategy,
        num_generations=inner.num_segments,
        fitness=fitness.final_return,
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
