"""Evolve which transitions Ape-X samples.

A network that starts as |td error| gives the priority of a transition by its temporal
difference, age, visits, reward and end (`family=network`), or the exponents of
priorities and importance weights move alone (`family=exponents`), or both. OpenAI-ES
(Salimans et al., 2017) raises the final return.
"""

import metaevo
from inner_loops import apex
from metaevo import spaces
from metaevo.errors import ConfigError
from metaevo.learned import priorities
from searches import _one_slot


@_one_slot.search(
    apex,
    apex.Config(60_000, 1_000, 20_000, num_segments=5),
    apex.Meta(),
    sigma=0.2,
    learning_rate=0.1,
)
def search(family: str = "both", largest: float = 8.0) -> metaevo.Space:
    """
    Args:
        family: what moves: the `network` of priorities, the `exponents`, or `both`.
        largest: > 1, bound of the factor between a priority and |td error|.
    """
    network = spaces.replace(priority=priorities.network(largest=largest))
    exponents = spaces.tune(
        priority_exponent=spaces.log(), importance_exponent=spaces.logit()
    )
    families = {
        "network": network,
        "exponents": exponents,
        "both": spaces.combine(network, exponents),
    }
    if family not in families:
        raise ConfigError(f"family={family!r}: expected one of {', '.join(families)}")
    return families[family]


if __name__ == "__main__":
    metaevo.main(search)
