"""Evolve PPO's drift over several environments: learned policy optimization.

D = ReLU(base(r, A) + f(x) - 1e-4), f a tanh network that starts at zero (Lu et al.,
2022); base is PPO's clip, DPO's drift or zero. form=free has no dead zone and starts at
base. OpenAI-ES raises the sum of the final returns' ranks over environments.
"""

from typing import Literal

import optax

import metaevo
from inner_loops import ppo
from metaevo import drifts, fitness, spaces
from metaevo.envs import make
from strategies.open_es import open_es


def search(
    envs: tuple[str, ...] = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1"),
    population_size: int = 32,
    num_generations: int = 100,
    num_seeds: int = 1,
    sigma: float = 0.1,
    learning_rate: float = 0.05,
    base: Literal["ppo_clip", "dpo", "zero"] = "ppo_clip",
    form: Literal["lpo", "free"] = "lpo",
    inner: ppo.Config = ppo.Config(65_536, num_steps=64, features=(32, 32)),
    meta: ppo.Meta = ppo.Meta(lr=1e-3),
) -> metaevo.Search:
    """
    Args:
        base: what is learned is added to: the drift of PPO or DPO, or none.
        form: `lpo`, with a dead zone; `free`, without one, which starts at base.
    """
    drift = drifts.lpo_network(base) if form == "lpo" else drifts.drift_network(base)
    space = spaces.replace(drift=drift)
    strategy = open_es(space, population_size, sigma, optax.adam(learning_rate))
    return metaevo.Search(
        inner_loop=[ppo.make(make(env), inner, meta) for env in envs],
        space=space,
        strategy=strategy,
        num_generations=num_generations,
        fitness=fitness.final_return,
        num_seeds=num_seeds,
        aggregate=fitness.rank_sum,
    )


if __name__ == "__main__":
    metaevo.main(search)
