"""The work that follows the last generation of a search, before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metaevo import envs
from metaevo.analysis import holdout, results, rivals
from metaevo.analysis.independent import judge
from metaevo.config import RunConfig
from metaevo.engine import checks
from metaevo.errors import ConfigError
from metaevo.learned import operations
from metaevo.types import InnerLoop, Search

__all__ = [
    "compared",
    "compares",
    "compares_start",
    "frames_compared",
    "frames_judged",
    "generations_after",
    "lifetimes_compared",
    "milestone_seeds",
    "milestones",
    "num_candidates",
    "num_choices",
    "num_scorings",
    "scores_agents",
    "task_names",
    "trains",
]


def trains(search: Search) -> bool:
    """Return True if nothing evolves in a search: its members are trained as they are.

    >>> trains(Search((), holdout.HAND_MADE, None, 1, None))
    True
    """
    return search.space is holdout.HAND_MADE


def compares(search: Search) -> bool:
    """Return True if candidates are trained on held-out seeds after the search."""
    alone = search.coupled or results.breeds_policies(search)
    return not (alone or trains(search))


def scores_agents(search: Search) -> bool:
    """Return True if agents are scored as they are after the search."""
    if any(loop.outside for loop in search.tasks):
        return False
    return search.strategy.persistent_agents or results.breeds_policies(search)


def compared(search: Search, config: RunConfig) -> Search:
    """Return what is compared after a search: it, and `run.held_out_tasks`.

    Raises:
        ConfigError: there is no such environment, the search has it already, its inner
            loop does not fit there, or nothing is compared after it.
    """
    if not config.held_out_tasks:
        return search
    first, seen = search.tasks[0], task_names(search)
    if trains(search):
        raise ConfigError("run.held_out_tasks: nothing evolves in a training run")
    if not compares(search):
        raise ConfigError(
            "run.held_out_tasks: nothing is compared after this search, whose members "
            "are coupled or are policies"
        )
    if first.on is None:
        raise ConfigError(
            "run.held_out_tasks: this inner loop cannot be put on another environment; "
            "its InnerLoop has no `on`"
        )
    others = []
    for name in config.held_out_tasks:
        given = f"run.held_out_tasks: {name}"
        if name in seen:
            raise ConfigError(f"{given} is no other task than the search's")
        try:
            others.append(first.on(envs.make(name)))
            if not search.fitness.needs_evaluation:
                checks.check_episodes_fit(others[-1], None)
        except ConfigError as error:
            raise ConfigError(f"{given}: {error}") from None
        seen.append(name)
    return search._replace(inner_loop=(*search.tasks, *others))


def task_names(search: Search) -> list[str]:
    """Return the names of the environments of a search's tasks."""
    return [loop.env.name if loop.env is not None else "" for loop in search.tasks]


def compares_start(search: Search) -> bool:
    """Return True if what a search starts from is a candidate of its comparison.

    It is none for agents that live on, and where it is surely the hand-made algorithm:
    each number at its default, each function as the one that the loop has.
    """
    return not (search.strategy.persistent_agents or _starts_hand_made(search))


def _starts_hand_made(search: Search) -> bool:
    if not search.space.starts_hand_made:
        return False  # a space whose functions start as *their* hand-made ones does
    if any(loop.hand_made for loop in search.tasks):
        return False
    for slot, op in search.space.spec.items():
        if op["op"] == "number":
            continue
        start = operations.get(op["op"]).start(op)
        own = [getattr(loop.meta, slot) for loop in search.tasks]
        if start is None or any(_function(x) is not _function(start) for x in own):
            return False
    return True


def _function(value: Any) -> Any:
    """The function of a slot's value, which may be wrapped to be a pytree."""
    return getattr(value, "func", value)


def num_candidates(search: Search) -> int:
    """Return the number of candidates of a comparison.

    The solution, the hand-made algorithm and the other baselines of the inner loop, the
    start if it is neither, and the best simple function if any were tried.
    """
    more = compares_start(search) + bool(rivals.num_tried(search))
    return 2 + len(holdout.baselines(search)) + more


def num_programs(search: Search, config: RunConfig) -> int:
    """Return the programs that a comparison compiles.

    One for the hand-made algorithm, one for what the search found, and one for the
    simple functions of each slot that has some.
    """
    if not frames_compared(search, config):
        return 0
    return 2 + len(rivals.of(search))


def num_choices(search: Search, config: RunConfig) -> int:
    """Return the lifetimes of a task in which the best simple function is chosen."""
    return rivals.num_tried(search) * rivals.choosing_seeds(config.held_out_seeds)


def milestones(search: Search, config: RunConfig) -> tuple[int, ...]:
    """Return the generations whose solution is kept and scored on held-out seeds.

    At most four, evenly spaced, without the first and the last; none for agents that
    live on, and if nothing is compared.
    """
    if search.strategy.persistent_agents or not config.held_out_seeds:
        return ()
    if not compares(search):
        return ()
    num = search.num_generations
    return tuple(sorted({num * i // 5 for i in range(1, 5)} - {0, num}))


def milestone_seeds(config: RunConfig) -> int:
    """Return the number of held-out seeds on which earlier solutions are scored."""
    return max(2, config.held_out_seeds // 4)


def lifetimes_compared(search: Search, config: RunConfig) -> int:
    """Return the training runs of the comparison on held-out seeds."""
    earlier = len(milestones(search, config)) * milestone_seeds(config)
    own = num_candidates(search) * config.held_out_seeds
    return own + earlier + num_choices(search, config)


def frames_compared(search: Search, config: RunConfig) -> int:
    """Return the frames of the comparison on held-out seeds; 0 without one."""
    if not compares(search):
        return 0
    tasks = compared(search, config).tasks
    lifetimes = [loop.frames_per_segment * loop.num_segments for loop in tasks]
    frames = num_candidates(search) * config.held_out_seeds * sum(lifetimes)
    earlier = len(milestones(search, config)) * milestone_seeds(config)
    more = earlier + num_choices(search, config)
    return frames + more * sum(lifetimes[: len(search.tasks)])


def frames_judged(search: Search, config: RunConfig) -> int:
    """Return the frames of an independent agent; 0 if it does not judge.

    Raises:
        ConfigError: it is asked to, and none has the slots of the search.
    """
    if not config.independent:
        return 0
    return judge.frames(search, config.held_out_seeds)


def num_scorings(search: Search, config: RunConfig) -> int:
    """Return how often the agents of a population are scored after the search."""
    if not config.held_out_seeds or not scores_agents(search):
        return 0
    return 2 * max(1, config.held_out_seeds // 4)


def num_repeats(search: Search, config: RunConfig) -> int:
    """Return how often a population is evaluated again, for the noise.

    Where members have several seeds these tell the noise.
    """
    measured = compares(search) and search.segments_per_generation is None
    if seeds_tell_noise(search):
        return 0
    return 2 if measured and config.held_out_seeds else 0


def seeds_tell_noise(search: Search) -> bool:
    """Return True if the seeds of members tell these from noise."""
    return search.num_seeds > 1 and len(search.tasks) == 1 and not search.stopping


def generations_after(
    search: Search,
    config: RunConfig,
    population_size: int,
    num_devices: int,
    platform: str,
) -> float:
    """Estimate what follows the last generation, in units of a generation's time.

    A CPU needs time in proportion to frames. An accelerator needs it in proportion to
    rounds, whatever their width. The scoring of policies counts as much as their
    generation, and that of agents that live on, which is short, as nothing.

    Args:
        search: the search, its chunk size chosen.
        population_size: P.
        num_devices: number of devices among which members are divided.
        platform: `cpu`, `gpu` or `tpu`.
    """
    other = float(num_repeats(search, config))
    if results.breeds_policies(search):
        other += num_scorings(search, config)
    frames = frames_compared(search, config) + frames_judged(search, config)
    if not frames:
        return other
    if platform == "cpu":
        return other + frames / checks.frames_per_generation(search, population_size)
    width = (search.chunk_size or population_size) * num_devices
    segments = sum(
        search.segments_per_generation or loop.num_segments for loop in search.tasks
    )

    def rounds(num_seeds: int, tasks: Sequence[InnerLoop]) -> int:
        return -(-num_seeds // width) * sum(loop.num_segments for loop in tasks)

    later = num_candidates(search) * rounds(
        config.held_out_seeds, compared(search, config).tasks
    )
    later += len(milestones(search, config)) * rounds(
        milestone_seeds(config), search.tasks
    )
    later += rivals.num_tried(search) * rounds(
        rivals.choosing_seeds(config.held_out_seeds), search.tasks
    )
    return other + later / (-(-population_size // width) * segments)
