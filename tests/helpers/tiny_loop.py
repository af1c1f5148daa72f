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


def make(
    env: envs.Env, config: Config = Config(), meta: toys.Meta = toys.Meta()
) -> InnerLoop:
    loop = toys.quadratic(config.num_segments)
    tunable = toys.space() if config.tuned else None
    return loop._replace(env=env, meta=meta, tunable=tunable)
