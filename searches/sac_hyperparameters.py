"""Evolve SAC's step sizes, discount, target rate, target entropy and reward scale.

Each is searched on its own scale around the published default, where generation 0
starts. OpenAI-ES (Salimans et al., 2017) raises the final return.
"""

import metaevo
from inner_loops import sac
from metaevo import spaces
from searches import _one_slot


@_one_slot.search(
    sac,
    sac.Config(6_000, batch_size=64, features=(64, 64)),
    sac.Meta(),
    env="gymnax/Pendulum-v1",
    sigma=0.3,
    learning_rate=0.2,
)
def search() -> metaevo.Space:
    positive = ("actor_lr", "critic_lr", "temperature_lr", "tau", "reward_scale")
    numbers = dict.fromkeys(positive, spaces.log())
    numbers |= {"gamma": spaces.one_minus_log(), "target_entropy": spaces.linear()}
    return spaces.tune(**numbers)


if __name__ == "__main__":
    metaevo.main(search)
