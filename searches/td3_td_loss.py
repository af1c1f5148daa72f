"""Evolve the loss of TD3's critics, as the square + f(-delta) + w Q.

f is a small tanh network and w a number, both of which start at zero: generation 0 is
TD3. family=weighted is the square with a bounded weight, with which no critic runs
away, and family=convex its convex members. OpenAI-ES (Salimans et al., 2017) raises the
final return.
"""

from typing import Literal

import metaevo
from inner_loops import td3
from metaevo import critic_losses, losses, spaces
from searches import _one_slot


@_one_slot.search(
    td3,
    td3.Config(6_000, batch_size=64, features=(64, 64)),
    td3.Meta(1e-3, 1e-3),
    env="gymnax/Pendulum-v1",
    sigma=0.1,
    learning_rate=0.05,
)
def search(
    hidden: int = 16, family: Literal["network", "weighted", "convex"] = "network"
) -> metaevo.Space:
    """
    Args:
        family: `network`, the square + f + w Q; `weighted`, the square with a bounded
            weight; or `convex`, its convex members.
    """
    loss = losses.td_network(features=(hidden,))
    if family != "network":
        loss = critic_losses.td_weighted_square((hidden,), family == "convex")
    return spaces.replace(td_loss=loss)


if __name__ == "__main__":
    metaevo.main(search)
