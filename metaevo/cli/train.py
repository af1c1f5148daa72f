"""An inner loop as a search: `python -m inner_loops.NAME key=value ...`."""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaevo.cli import config, strategies
from metaevo.errors import ConfigError
from metaevo.types import InnerLoop, Search, mean

DEFAULT_ENV = "gymnax/CartPole-v1"
TUNED_FRAMES = 65_536
"""Frames of a lifetime in `metaevo tune` by default, where an algorithm's are more."""


def as_search(make: Callable[..., InnerLoop]) -> Callable[..., Search]:
    """Return a search function that trains agents of an inner loop."""

    def search(env: str, num_seeds: int, inner, meta) -> Search:
        """Train agents.

        Args:
            num_seeds: agents that are trained, each with a seed of its own.
        """
        from metaevo import envs
        from metaevo.engine import training

        return training.as_search(make(envs.make(env), inner, meta), num_seeds)

    made = of_loop(make, search, {"num_seeds": (int, 3)})
    made.__dict__["further_keys"] = {}  # nothing evolves, so it has no strategy
    return made


def as_tuning(make: Callable[..., InnerLoop]) -> Callable[..., Search]:
    """Return a search function that tunes the numbers of an inner loop."""

    def search(
        env: str,
        more_envs: tuple[str, ...],
        population_size: int,
        num_generations: int,
        num_seeds: int,
        sigma: float,
        choices: str | None,
        inner,
        meta,
    ) -> Search:
        """Tune the numbers of an algorithm.

        Args:
            more_envs: environments that the numbers are to suit as well. Members are
                then ranked on each, and fitness is the sum of the ranks.
            sigma: standard deviation of the first members around the algorithm's own
                numbers, on the scale of each number.
            choices: static settings under which the numbers are tuned,
                KEY=VALUE;KEY=VALUE. The comparison is with the algorithm without them.
        """
        from metaevo import envs, fitness

        def on(env: envs.Env) -> InnerLoop:
            usual = make(env, inner, meta)
            if choices is None:
                return usual
            chosen = _changed(search, inner, meta, choices.split(";"))
            taken = set(choices.split(";"))
            left = tuple(x for x in usual.choices if not set(x.split(";")) <= taken)
            made = make(env, *chosen)
            return made._replace(hand_made=usual, on=on, choices=left)

        for name in more_envs:
            if (env, *more_envs).count(name) > 1:
                raise ConfigError(f"more_envs: {name} is given twice")
        loops = [on(envs.make(name)) for name in (env, *more_envs)]
        numbers = loops[0].tunable
        if numbers is None:
            name = make.__module__.rpartition(".")[2]
            raise ConfigError(f"tune {name}: this algorithm names no numbers")
        return Search(
            inner_loop=loops if more_envs else loops[0],
            space=numbers,
            strategy=strategies.named("snes")(numbers, population_size, sigma),
            num_generations=num_generations,
            fitness=fitness.area_under_curve,
            num_seeds=num_seeds,
            aggregate=fitness.rank_sum if more_envs else mean,
        )

    own = {
        "more_envs": (tuple[str, ...], ()),
        "population_size": (int, 16),
        "num_generations": (int, 20),
        "num_seeds": (int, 2),
        "sigma": (float, 1.0),  # `benchmarks/outer_loops.py` measures it
        "choices": (str | None, None),
    }
    return of_loop(make, search, own, TUNED_FRAMES)


def _changed(
    search: Callable[..., Search], inner: Any, meta: Any, changes: Sequence[str]
) -> tuple[Any, Any]:
    """Return a loop's `Config` and `Meta` with other `key=value`.

    Raises:
        ConfigError: one is no key of theirs, or its value is wrong.
    """
    try:
        given = config.parse_into(search, {"inner": inner, "meta": meta}, changes)
    except ConfigError as error:
        raise ConfigError(f"choices: {error}") from None
    for key, text in config.named_functions(given).items():
        if ":" not in text:  # so an import that a stranger's run is checked for
            raise ConfigError(
                f"choices: {key}={text}: expected package.module:function"
            )
    return given["inner"], config.with_functions("meta", given["meta"])


def of_loop(
    make: Callable[..., InnerLoop],
    search: Callable[..., Search],
    own: Mapping[str, tuple[type, Any]],
    most_frames: float = math.inf,
) -> Callable[..., Search]:
    """Return a function as a search function of an inner loop.

    Its parameters, types and module are such that `cli.config` and `cli.program` take
    it for a function of the file that `make` is in.

    Args:
        make: the inner loop.
        search: `(env, *own, inner, meta) -> Search`; it is changed.
        own: type and default of each of its own keys.
        most_frames: of a lifetime by default.
    """
    module = sys.modules[make.__module__]
    _, first, meta, *_ = inspect.signature(make).parameters.values()
    inner = first.default
    if (getattr(inner, "total_timesteps", None) or 0) > most_frames:
        inner = dataclasses.replace(inner, total_timesteps=most_frames)
    kinds = {
        "env": (str, DEFAULT_ENV),
        **own,
        "inner": (type(inner), inner),
        "meta": (type(meta.default), meta.default),
    }
    search.__annotations__ = {name: kind for name, (kind, _) in kinds.items()}
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    search.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, keyword, default=default)
            for name, (_, default) in kinds.items()
        ]
    )
    search.__dict__["__wrapped__"] = make
    search.__module__ = module.__name__
    return search
