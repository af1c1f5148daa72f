"""Evolve a schedule of SAC's target entropy, through knots from the paper's constant.

Generation 0 is SAC with a target of -1 per dimension of the action. OpenAI-ES (Salimans
et al., 2017) raises the final return.
"""

import metaevo
from inner_loops import sac
from metaevo import spaces
from searches import _one_slot


@_one_slot.search(
    sac,
    sac.Config(6_000, batch_size=64, features=(64, 64)),
    sac.Meta(1e-3, 1e-3, 1e-3),
    env="gymnax/Pendulum-v1",
    sigma=0.5,
    learning_rate=0.2,
)
def search(num_knots: int = 5) -> metaevo.Space:
    return spaces.schedule(num_knots=num_knots, target_entropy=spaces.linear())


if __name__ == "__main__":
    metaevo.main(search)
