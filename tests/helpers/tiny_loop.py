"""An inner loop with numbers to tune that takes moments: `metaevo tune FILE.py`."""

from dataclasses import dataclass

import toys

from metaevo import envs
from metaevo.types import InnerLoop


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        num_segments: points on the learning curve.
        tuned: whether it names its numbers.
    """

    num_segments: int = 4
    tuned: bool = True


CHOICES = (
    *("meta.lr=0.2", "meta.lr=0.01", "inner.tuned=true", "inner.none=1"),
    "meta.target=1.2;inner.num_segments=4",
)
"""One that helps, one that harms, one that is the default, one of an unknown key, and
one that helps less than the first."""


def make(
    env: envs.Env, config: Config = Config(), meta: toys.Meta = toys.Meta()
) -> InnerLoop:
    loop = toys.quadratic(config.num_segments)
    tunable = toys.space() if config.tuned else None
    return loop._replace(env=env, meta=meta, tunable=tunable, choices=CHOICES)
