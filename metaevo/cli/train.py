"""Training of an inner loop as a search: `python -m inner_loops.NAME key=value ...`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from metaevo.types import InnerLoop, Search

DEFAULT_ENV = "gymnax/CartPole-v1"


def as_search(make: Callable[..., InnerLoop]) -> Callable[..., Search]:
    """Return a search function that trains agents of an inner loop.

    Its parameters, types and module are such that `cli.config` and `cli.program` take
    it for a function of the file that `make` is in.
    """
    module = sys.modules[make.__module__]
    _, config, meta = inspect.signature(make).parameters.values()
    kinds = {
        "env": (str, DEFAULT_ENV),
        "num_seeds": (int, 3),
        "inner": (type(config.default), config.default),
        "meta": (type(meta.default), meta.default),
    }

    def search(env: str, num_seeds: int, inner, meta) -> Search:
        """Train agents.

        Args:
            num_seeds: agents that are trained, each with a seed of its own.
        """
        from metaevo import envs
        from metaevo.engine import training

        return training.as_search(make(envs.make(env), inner, meta), num_seeds)

    search.__annotations__ = {name: kind for name, (kind, _) in kinds.items()}
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    search.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, keyword, default=default)
            for name, (_, default) in kinds.items()
        ]
    )
    search.__dict__["__wrapped__"] = make
    search.__dict__["further_keys"] = {}  # nothing evolves, so it has no strategy
    search.__module__ = module.__name__
    return search
