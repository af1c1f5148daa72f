"""Evolve PPO's drift over many agents and three tasks, or tune PPO's clip there.

A drift that evolves in one agent is good for that agent's step size and task. Here each
world draws its step size, and CartPole, Acrobot and a maze with a key and a door are
ranked beside each other. SNES (Schaul et al., 2011) raises the sum of the ranks of the
mean returns over a lifetime. `python -m benchmarks.drifts_for_many` compares what
evolves with tuned clips, on tasks that no search saw.
"""

from typing import Literal

import metaevo
from inner_loops import ppo
from metaevo import drifts, fitness, spaces
from metaevo.envs import make
from strategies.snes import snes


def search(
    envs: tuple[str, ...] = (
        "gymnax/CartPole-v1",
        "gymnax/Acrobot-v1",
        "grid/key_door",
    ),
    evolve: Literal["drift", "network", "clip", "clip_and_lr"] = "drift",
    population_size: int = 24,
    num_generations: int = 20,
    num_seeds: int = 1,
    sigma: float = 0.5,
    inner: ppo.Config = ppo.Config(49_152, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        evolve: `drift`, the two constants of DPO's (Lu et al., 2022); `network`, one
            of LPO's form that starts at PPO's (a `sigma` of 0.2 suits it); `clip`,
            PPO's clip_eps; `clip_and_lr`, that and the step size, which is then not
            drawn.
    """
    space = {
        "drift": spaces.replace(drift=drifts.dpo_constants()),
        "network": spaces.replace(drift=drifts.lpo_network(features=(16,))),
        "clip": spaces.tune(clip_eps=spaces.log()),
        "clip_and_lr": spaces.tune(clip_eps=spaces.log(), lr=spaces.log()),
    }[evolve]
    drawn = spaces.prior(lr=spaces.log_uniform(meta.lr / 4, meta.lr * 4))
    return metaevo.Search(
        inner_loop=[ppo.make(make(env), inner, meta) for env in envs],
        space=space,
        strategy=snes(space, population_size, sigma),
        num_generations=num_generations,
        fitness=fitness.area_under_curve,
        num_seeds=num_seeds,
        aggregate=fitness.rank_sum,
        vary=None if evolve == "clip_and_lr" else drawn,
    )


if __name__ == "__main__":
    metaevo.main(search)
