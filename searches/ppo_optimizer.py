"""Evolve PPO's optimizer, from Adam: its six numbers, or a recurrent network over it.

kind=adam_numbers has step size, decays, epsilon, weight decay and clip, each from the
start to the end of a lifetime; kind=recurrent has a GRU for every number of an agent
(OPEN, Goldie et al., 2024). Generation 0 is Adam. OpenAI-ES raises the final return.
"""

from typing import Literal

import metaevo
from inner_loops import ppo
from metaevo import spaces
from metaevo.learned import optimizers
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(65_536, num_steps=64, features=(32, 32)),
    ppo.Meta(lr=1e-3),
    population_size=32,
    num_generations=100,
    sigma=0.1,
    learning_rate=0.05,
)
def search(
    kind: Literal["adam_numbers", "recurrent"] = "adam_numbers",
) -> metaevo.Space:
    """
    Args:
        kind: `adam_numbers`, six numbers of Adam, or `recurrent`, a GRU for every
            number of an agent.
    """
    return spaces.replace(optimizer=getattr(optimizers, kind)(temporal=True))


if __name__ == "__main__":
    metaevo.main(search)
