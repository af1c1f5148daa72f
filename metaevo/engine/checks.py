"""Checks of a search before anything compiles, and its size in frames."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from metaevo import fitness, population, slots, spaces
from metaevo.config import Stop
from metaevo.engine import elements
from metaevo.errors import ArtifactError, ConfigError
from metaevo.evaluators import stages
from metaevo.rl import config_checks
from metaevo.storage import artifacts
from metaevo.types import InnerLoop, Params, Proposal, Search, Space, Strategy, keep


def frames_per_generation(search: Search, population_size: int) -> int:
    """Return the frames of all members, seeds and tasks in one generation."""
    per_member = sum(
        loop.frames_per_segment * (search.segments_per_generation or loop.num_segments)
        for loop in search.tasks
    )
    if search.stopping is None:
        return per_member * population_size * search.num_seeds
    trained = sum(stages.lengths(search, population_size))
    return per_member // search.stopping.horizon * trained * search.num_seeds


def proposal_shapes(strategy: Strategy) -> Proposal:
    """Return shapes and dtypes of a proposal."""
    key = jax.random.key(0)
    return jax.eval_shape(strategy.ask, key, jax.eval_shape(strategy.init, key))[0]


def starting_from(search: Search, path: str) -> Search:
    """Return `search` with the artifact at `path` as its start.

    Args:
        path: an artifact, or the directory of a finished run.

    Raises:
        ConfigError: there is no artifact, it is of another space, or the strategy
            cannot start elsewhere.
    """
    try:
        params = artifacts.params(path)
    except ArtifactError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise ConfigError(f"run.start_from={path}: {said}") from None
    shapes = jax.eval_shape(search.space.init, jax.random.key(0))
    described = [
        {p: (x.shape, str(x.dtype)) for p, x in jax.tree_util.tree_leaves_with_path(t)}
        for t in (params, shapes)
    ]
    if described[0] != described[1]:
        raise ConfigError(
            f"run.start_from={path}: it holds {sorted(params)} of other shapes than "
            f"this search's space, {sorted(shapes)}"
        )
    if search.strategy.with_space is None:
        raise ConfigError(
            "run.start_from: this search's strategy cannot start elsewhere"
        )
    params = jax.tree.map(jnp.asarray, params)
    space = search.space._replace(init=lambda key: params, starts_hand_made=False)
    return search._replace(space=space, strategy=search.strategy.with_space(space))


def check_stop(search: Search, stop: Stop) -> None:
    """Check that the condition that ends a run reads a metric that its records have.

    Raises:
        ConfigError: they have none of this name; names those that they have.
    """
    names = [f"fitness_{name}" for name in ("best", "mean", "median", "sd", "worst")]
    state = jax.eval_shape(search.strategy.init, jax.random.key(0))
    names += jax.eval_shape(search.strategy.metrics, state)
    for i, loop in enumerate(search.tasks):
        prefix = f"task{i}/" if len(search.tasks) > 1 else ""
        names += [f"{prefix}train/{name}" for name in _train_metrics(loop)]
        if search.fitness.needs_evaluation:
            names += [f"{prefix}evaluation/{name}" for name in ("return", "length")]
    names += ["frames", "seconds", "frames_per_second", "failed", "not_scored"]
    if stop.key(names) is None:
        near = difflib.get_close_matches(stop.metric, _short(names), 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"run.stop: no metric {stop.metric!r}.{hint} There are "
            f"{', '.join(_short(names))}"
        )


def _short(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.removeprefix("train/") for name in names))


def _train_metrics(loop: InnerLoop) -> list[str]:
    """Return the names of the metrics of training, of a coupled loop too."""

    def train(key):
        return loop.train(key, loop.meta, loop.init(key, loop.meta))[1]

    alone = jax.vmap(
        jax.vmap(train, axis_name=population.MEMBERS), axis_name=population.DEVICES
    )
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (1, 1)))
    return list(jax.eval_shape(alone, keys))


def _check_hand_made(loop: InnerLoop) -> None:
    """Check that a loop lives as long as the one that it is compared with.

    Raises:
        ConfigError: it does not, or is on another environment.
    """

    def facts(x: InnerLoop) -> tuple:
        name = None if x.env is None else x.env.name
        return name, x.num_segments, x.frames_per_segment

    if loop.hand_made is not None and facts(loop) != facts(loop.hand_made):
        raise ConfigError(
            "a loop and its hand_made are compared, so environment, segments and their "
            f"frames have to agree: {facts(loop)} is not {facts(loop.hand_made)}"
        )


def check(search: Search) -> Proposal:
    """Check that a search can run, before anything compiles.

    Returns:
        shapes and dtypes of a proposal of its strategy.

    Raises:
        ConfigError: it is no search, a size is out of range, an inner loop ignores its
            environment's action mask, the space does not fit the inner loops, the
            strategy's optimizer steps away from its gradient, the strategy does not fit
            `segments_per_generation`, members would outlive the annealing of their step
            size, or newborn ones be scored by episodes of which the longest do not end,
            or a loop lives longer than its `hand_made`.
    """
    if not isinstance(search, Search):
        raise ConfigError(
            f"expected a metaevo.Search, as a search function returns; got {search!r}"
        )
    for key in ("num_generations", "num_seeds"):
        if getattr(search, key) < 1:
            raise ConfigError(f"{key}={getattr(search, key)} must be at least 1")
    if search.chunk_size is not None and search.chunk_size < 1:
        raise ConfigError(f"chunk_size={search.chunk_size} must be at least 1")
    seeds = search.seeds_at_once
    if seeds is not None and not 1 <= seeds <= search.num_seeds:
        raise ConfigError(
            f"seeds_at_once={seeds}: expected 1 to num_seeds, {search.num_seeds}"
        )
    if seeds not in (None, search.num_seeds) and not search.seeds_alone:
        raise ConfigError(
            f"seeds_at_once={seeds}: the seeds of a member can train apart only where "
            "members are newborn, not coupled and not Lamarckian, and none is stopped, "
            "by hurdles or early; leave it None"
        )
    per = search.segments_per_generation
    for loop in search.tasks:
        _check_hand_made(loop)
        if loop.env is not None:
            config_checks.check_masks(loop.env, loop.masks)
        if per is not None and not 1 <= per <= loop.num_segments:
            raise ConfigError(
                f"segments_per_generation={per} must be in [1, {loop.num_segments}], "
                "the segments of a lifetime"
            )
        elements.check(loop.meta, loop.env)
        _check_worlds(search, loop)
        params = jax.eval_shape(search.space.init, jax.random.key(0))
        jax.eval_shape(partial(_bound, search.space, loop), params)
    default = search.tasks[0].meta
    kept = search.space
    if (programs := search.space.programs) is not None:
        start = jax.jit(search.space.init)(jax.random.key(0))
        kept, params = programs.settled(start)
    if not search.strategy.mutates:
        spaces.require_numbers(search.space, _name(search.strategy))
    spec = artifacts.complete(kept.spec, default, default)
    artifacts.check(params, spec)
    elements.check_own(spec, params, search.tasks[0].env)
    _check_optimizer(search.strategy)
    _check_hurdles(search)
    _check_stopping(search)
    proposal = proposal_shapes(search.strategy)
    _check_aggregate(search, population.size(proposal.params))
    if proposal.parents is not None and per is None:
        raise ConfigError(
            "this strategy continues agents (parents): set segments_per_generation"
        )
    if proposal.parents is None and per is not None and not search.coupled:
        raise ConfigError(
            f"segments_per_generation={per}: with this strategy members are newborn in "
            "each generation and would never live a whole lifetime; leave it out"
        )
    if proposal.parents is not None and per is not None:
        _check_lives_fit(search, per)
    if proposal.parents is None and not search.fitness.needs_evaluation:
        for loop in search.tasks:
            check_episodes_fit(loop, per)
    return proposal


def _check_stopping(search: Search) -> None:
    """Check that members of a generation can be stopped early.

    Raises:
        ConfigError: they cannot, or not at such ages.
    """
    rule = search.stopping
    if rule is None:
        return
    rule.check()
    alone = search.segments_per_generation is None and not search.coupled
    if not alone or search.space.inherit is not keep or search.hurdles:
        raise ConfigError(
            f"stopping (halving={rule.horizon}): only newborn members are stopped "
            "early, which neither train together nor inherit, and without hurdles"
        )
    if search.fitness.needs_evaluation:
        raise ConfigError(
            f"stopping (halving={rule.horizon}): {search.fitness.name} is known at the "
            "end of a life alone; give a fitness of training, such as "
            "fitness.area_under_curve"
        )
    for loop in search.tasks:
        if loop.num_segments % rule.horizon:
            raise ConfigError(
                f"stopping (halving={rule.horizon}): the horizon must divide the "
                f"{loop.num_segments} segments of a lifetime"
            )
        check_episodes_fit(loop, loop.num_segments // rule.horizon * rule.ages[0])


def _check_hurdles(search: Search) -> None:
    """Check the hurdles between tasks.

    Raises:
        ConfigError: there are too many, or members live on or inherit.
    """
    hurdles = search.hurdles
    if not hurdles:
        return
    if len(hurdles) >= len(search.tasks):
        raise ConfigError(
            f"hurdles={tuple(hurdles)}: {len(search.tasks)} tasks have at most "
            f"{len(search.tasks) - 1} hurdles between them"
        )
    if not all(np.isfinite(x) for x in hurdles):
        raise ConfigError(f"hurdles={tuple(hurdles)}: expected finite scores")
    if search.segments_per_generation is not None or search.coupled:
        raise ConfigError(
            "hurdles: members that live on, or train together, take part in all tasks; "
            "leave them out"
        )


def _check_optimizer(strategy: Strategy) -> None:
    """Check that the first step of a strategy's optax optimizer is one to descend by.

    Raises:
        ConfigError: it ascends, as with a negative learning rate, or is not finite.
    """
    optimizer = strategy.settings.get("optimizer")
    if not isinstance(optimizer, optax.GradientTransformation):
        return

    def first_step():
        ones = jnp.ones(2)
        return optimizer.update(ones, optimizer.init(ones), ones)[0]

    try:
        jax.eval_shape(first_step)
    except (TypeError, ValueError, AttributeError, KeyError):
        return  # it takes parameters of one structure, such as labelled groups
    step = float(jnp.sum(jax.jit(first_step)()))
    if not -np.inf < step <= 0:
        name = strategy.settings.get("strategy", "strategy").rpartition(":")[2]
        raise ConfigError(
            f"optimizer of {name}: with a gradient of 1 its first step is "
            f"{step / 2:g}; expected a finite step against the gradient, so a "
            "learning_rate that is finite and at least 0"
        )


def _name(strategy: Strategy) -> str:
    return strategy.settings.get("strategy", "this strategy").rpartition(":")[2]


def _check_aggregate(search: Search, size: int) -> None:
    """Check that `Search.aggregate` gives what the strategy compares, one a member."""
    ranks = getattr(search.aggregate, "func", search.aggregate) is fitness.rank_sum
    if ranks and search.strategy.remembers:
        raise ConfigError(
            f"strategy={_name(search.strategy)} compares scores of several "
            "generations, and aggregate=rank_sum ranks the members of one: expected "
            "another strategy, such as snes, or another aggregate, such as normalized"
        )
    shape = len(search.tasks), search.num_seeds, size
    try:
        # On shapes: a population may be too large for this machine's memory.
        given = jax.ShapeDtypeStruct(shape, jnp.float32)
        found = np.shape(jax.eval_shape(search.aggregate, given))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):  # written in numpy
        found = np.shape(search.aggregate(jnp.zeros(shape)))
    if found != (size,):
        raise ConfigError(
            f"aggregate={search.aggregate} gives {list(found)} for fitness of shape "
            f"{list(shape)}, [tasks, seeds, members]; expected [{size}], one a member"
        )


def _check_worlds(search: Search, loop: InnerLoop) -> None:
    """Check what is drawn for each world: `Search.vary` and `Env.task`."""
    per = search.segments_per_generation
    if loop.env is not None and loop.env.task is not None:
        name = loop.env.name or "this environment"
        if loop.on is None:
            raise ConfigError(
                f"env={name!r} draws a task for each lifetime, and this inner loop "
                "cannot be put on it: decorate its `make` with types.on_any_env"
            )
        if per is not None and search.space.spec == {}:
            raise ConfigError(
                f"env={name!r} draws a task for each lifetime, and agents that are "
                "trained segment by segment would get another in each; take an "
                "environment without tasks"
            )
        if per is not None:
            raise ConfigError(
                f"env={name!r} draws a task for each lifetime, and members that live "
                f"on (segments_per_generation={per}) would get another in each "
                "generation; take an environment without tasks"
            )
    vary = search.vary
    if vary is None:
        return
    names = spaces.of_prior(vary, "Search.vary")
    if per is not None:
        raise ConfigError(
            f"Search.vary draws {', '.join(names)} for each lifetime, and members that "
            f"live on (segments_per_generation={per}) would get others in each "
            "generation; leave it out"
        )
    for name in names:
        if "prior" in search.space.spec.get(name, {}):
            raise ConfigError(
                f"slot {name!r} is drawn for each world by Search.vary and for each "
                "member by the space; take it out of one of them"
            )
    params = jax.eval_shape(vary.init, jax.random.key(0))
    jax.eval_shape(lambda params: vary.bind(params, loop.meta), params)


def _check_lives_fit(search: Search, segments: int) -> None:
    """Check that no member lives on when its annealed step size has come to 0."""
    settings = search.strategy.settings
    persistent = search.strategy.persistent_agents
    name = "num_generations" if persistent else "horizon"
    generations = search.num_generations if persistent else settings.get(name, 0)
    for loop in search.tasks:
        annealed = getattr(loop.config, "anneal_lr", False)
        if annealed and generations * segments > loop.num_segments:
            raise ConfigError(
                f"{name}={generations} x segments_per_generation={segments} is more "
                f"than inner.num_segments={loop.num_segments}: members that live "
                "longer than a lifetime would go on with a step size of 0; raise "
                "inner.num_segments and inner.total_timesteps, or set "
                "inner.anneal_lr=false"
            )


def check_episodes_fit(loop: InnerLoop, segments: int | None) -> None:
    """Check that in a generation each environment can end the longest episode.

    Otherwise returns of training would be those of short episodes alone, and a search
    for members that survive would select against them.
    """
    steps = loop.steps_per_segment * (segments or loop.num_segments)
    if loop.env is None or not 0 < steps < loop.env.max_steps:
        return
    remedy = "raise inner.total_timesteps or lower inner.num_envs"
    if segments is not None:
        remedy += " or inner.num_segments"
    raise ConfigError(
        f"a generation is {steps} steps of each environment, and an episode of "
        f"{loop.env.name or 'this environment'} may take {loop.env.max_steps}, so that "
        f"the members with the longest episodes would have no score: {remedy}, or "
        "score the agents afterwards, by fitness.final_return"
    )


def _bound(space: Space, loop: InnerLoop, params: Params) -> Any:
    """Call `Space.bind` for its errors, and check that no shared slot is replaced."""
    meta = slots.checked(space.bind(params, loop.meta))
    for name in loop.shared_slots:
        if getattr(meta, name) is not getattr(loop.meta, name):
            raise ConfigError(
                f"slot {name!r} cannot evolve here: it acts on what all members share, "
                f"as do {', '.join(loop.shared_slots)}; take it out of the space"
            )
    return meta
