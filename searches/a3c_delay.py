"""Evolve A3C's step size as a function of how far a worker is behind.

family=function is a small network of the delay, and family=number the c of
lr / (1 + c delay). The network starts at zero: generation 0 is A3C. OpenAI-ES
(Salimans et al., 2017) raises the final return. The step size is ten times A3C's: with
its own no delay matters on CartPole (docs/log/loops.md).
"""

from typing import Literal

import metaevo
from inner_loops import a2c
from metaevo import spaces
from searches import _one_slot


@_one_slot.search(
    a2c,
    a2c.Config(150_000, num_envs=16, num_workers=4, max_delay=16, num_segments=5),
    a2c.Meta(lr=7e-3),
    sigma=0.2,
    learning_rate=0.1,
)
def search(family: Literal["function", "number"] = "function") -> metaevo.Space:
    """
    Args:
        family: `function`, a small network of the delay, or `number`, the c of lr / (1
            + c delay).
    """
    if family == "function":
        return spaces.feedback({"delay": 8.0}, lr=spaces.log())
    return spaces.tune(delay_decay=spaces.log().starting_at(0.1))


if __name__ == "__main__":
    metaevo.main(search)
