"""The interfaces that everything in metaevo is made of.

Axis letters, everywhere: P population, S seeds, K segments, T time, E environments,
B batch. Fitness is *higher is better*, everywhere.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Key = jax.Array
PyTree = Any
Params = PyTree  # one member's evolved numbers: unconstrained float32
Population = PyTree  # Params with a leading axis P on every leaf
Fitness = jax.Array  # [P], higher is better
Metrics = Mapping[str, jax.Array]
StrategyState = PyTree


class InnerState(NamedTuple):
    """One member's training run between two segments.

    Lifted over seeds and members the leaves gain leading axes as noted.

    Attributes:
        agent: [S, P, ...] networks, optimizer state, normalizers. PBT copies it,
            export reads it.
        experience: [S, P, ...] environment states, last observations, an own replay
            buffer. Never copied between members.
        shared: [S, ...] what the population has in common (a CEM-RL critic, a common
            replay buffer). It has no P axis: a member-specific value that leaks into
            it raises at trace time. Only for loops with `coupled=True`.
        clock: [...] counters (updates done, buffer cursor). It has neither S nor P
            axis, so a `lax.cond` on it stays a cond under vmap.
    """

    agent: PyTree
    experience: PyTree
    shared: PyTree = ()
    clock: PyTree = ()


class InnerLoop(NamedTuple):
    """A whole RL training run of ONE member as pure functions.

    Attributes:
        meta: the default `Meta`: a NamedTuple of slots, see `metaevo.slots`.
        init: `(key, meta) -> InnerState`. Off-policy warm-up happens here. `shared`
            and `clock` are taken from a call with the default meta.
        train: `(key, meta, state) -> (state, metrics)`, ONE segment. `key` is the same
            for all segments of a generation: updates draw from
            `fold_in(key, clock.update)`, so two halves equal one whole. Do not derive
            from it what must stay the same for a whole life of members that live on.
            `metrics` are scalars and hold at least `episodes` (how many ended in the
            segment) and `return` (their mean return; if none ended, that of the last
            that did, NaN before the first).
        evaluate: `(key, meta, state) -> metrics` with scalars `return` and `length`
            of fresh episodes under the deterministic policy. Reads the agent alone.
        num_segments: segments in a lifetime.
        act: `(key, meta, agent, carry, obs, state=None, mask=None) -> (action,
            carry)`, deterministic: one environment, for evaluation, playing and
            export. `state` is the environment's, for algorithms that plan; `mask`
            [num_actions] bool its legal actions (`envs.legal_actions`), None: all.
            Both are given where there is an environment.
        initial_carry: `() -> carry`, `()` when feed-forward.
        coupled: True if the loop calls `population.mean`, `gather` or `index`.
        shared_slots: slots that act on what the population shares: no space may replace
            them, since members would differ in them.
        frames_per_segment: environment steps in one segment, for progress figures.
        steps_per_segment: steps of each of its environments in one segment, by which
            the engine knows whether an episode fits into a generation; 0: unknown.
        for_new_agent: `experience -> experience` of a member whose agent was replaced
            by another's: past returns are cleared. Elementwise: it is also given
            leaves with further leading axes.
        env: the `metaevo.envs.Env` it trains on, to play in; None if it has none.
        masks: True if it takes only legal actions where `env` has an `action_mask`.
            Others are refused there.
        tunable: the space of its hyperparameters, in which a hand-made baseline is
            tuned; one unit is a change that one sigma fits. None: it has none.
        config: the `Config` that it was made with: a dataclass of plain values, by
            which runs of different loops are told apart. None: it has none.
        parts: what else runs are told apart by, such as the loop that this one wraps
            and the game that it plays. None: nothing.
        on: `env -> InnerLoop`, the same loop on another `Env` with the same spaces,
            whose functions may close over traced values; see `on_any_env`. None: it
            cannot be put on another.
        baselines: name -> {slot: value}, further hand-made algorithms that the
            comparison on held-out seeds trains beside `meta`. The names are not
            those of its other candidates, and have no "/".
        choices: static settings that a rival may take, each `key=value` of a search
            or several joined by `;`. `metaevo compare rivals=all` tries them, and
            `metaevo tune choose=true`.
        hand_made: the loop that comparisons train as the hand-made algorithm, on the
            same environment, for as many segments and frames. Its static settings may
            be others. None: this one.
        outside: True if not JAX trains the member but a function of the user's, see
            `metaevo.optimize`. The loop then has slots alone: agents are not scored
            without training, and no simple functions are tried.
    """

    meta: Any
    init: Callable[[Key, Any], InnerState]
    train: Callable[[Key, Any, InnerState], tuple[InnerState, Metrics]]
    evaluate: Callable[[Key, Any, InnerState], Metrics]
    num_segments: int
    act: Callable[..., tuple[jax.Array, PyTree]]
    initial_carry: Callable[[], PyTree] = tuple
    coupled: bool = False
    shared_slots: tuple[str, ...] = ()
    frames_per_segment: int = 0
    steps_per_segment: int = 0
    for_new_agent: Callable[[PyTree], PyTree] = lambda experience: experience
    env: Any = None
    masks: bool = False
    tunable: Any = None
    config: Any = None
    parts: Any = None
    on: Callable[[Any], InnerLoop] | None = None
    baselines: Mapping[str, Mapping[str, Any]] = {}
    choices: tuple[str, ...] = ()
    hand_made: InnerLoop | None = None
    outside: bool = False


def on_any_env(make: Callable[..., InnerLoop]) -> Callable[..., InnerLoop]:
    """Decorates a function `make(env, ...)` that returns an inner loop.

    The loops get `on`, by which the engine puts them on the tasks that `Env.task`
    draws. Fields that are replaced in a loop afterwards are not in what `on` returns.
    """

    @functools.wraps(make)
    def made(env: Any, *args: Any, **options: Any) -> InnerLoop:
        loop = make(env, *args, **options)
        return loop._replace(on=lambda other: made(other, *args, **options))

    return made


def keep(params: Params, state: InnerState) -> Params:
    """Baldwinian inheritance: what an agent learns does not enter its genes."""
    del state
    return params


def multiply(params: Params, factors: Params) -> Params:
    """Each number times its factor."""
    return jax.tree.map(lambda x, factor: x * factor, params, factors)


class Genome(NamedTuple):
    """How params that are programs change, and what tells one program from another.

    A program is a list of instructions: numbers as arrays, but with no distance between
    them that means anything. So only strategies that mutate can search them.

    Attributes:
        mutate: `(key, params) -> params` with one instruction or constant changed.
        behaviour: `params -> [H]`, numbers by which two members are the same one; all
            0 of a member with which nothing is learned.
        length: `params -> int32`, operations that count.
        settled: `params -> (Space, params)`, one member as a formula that no longer
            changes, in the space in which it is kept, compared and exported. On
            concrete params.
        read: `text -> params` of a formula, where one slot evolves. Raises ConfigError.
    """

    mutate: Callable[[Key, Params], Params]
    behaviour: Callable[[Params], jax.Array]
    length: Callable[[Params], jax.Array]
    settled: Callable[[Params], tuple[Space, Params]]
    read: Callable[[str], Params]


class Space(NamedTuple):
    """Turns evolved numbers into replacements of slots.

    Attributes:
        init: `key -> Params`, the start of the search.
        bind: `(params, meta) -> meta` with slots replaced.
        inherit: `(params, state) -> params` after training; `keep` unless Lamarckian.
        spec: slot name -> description as plain data, enough to rebuild the slot from
            a saved artifact. See `metaevo.storage.artifacts`.
        starts_hand_made: True if `init` reproduces the hand-made algorithm.
        perturb: `(params, factors) -> params`, with what the numbers stand for times
            `factors`, a pytree of the same shapes, kept inside the space; PBT's step.
        programs: how params change that are programs; None: they are numbers.
    """

    init: Callable[[Key], Params]
    bind: Callable[[Params, Any], Any]
    inherit: Callable[[Params, InnerState], Params] = keep
    spec: Mapping[str, Any] = {}
    starts_hand_made: bool = False
    perturb: Callable[[Params, Params], Params] = multiply
    programs: Genome | None = None


class Proposal(NamedTuple):
    """A population that a strategy asks to be evaluated.

    Attributes:
        params: [P, ...] per leaf, or a `population.Rule` that computes members.
        parents: [P] int32, whose *agent* each member continues; -1 is a newborn.
            None (static): all are newborn.
    """

    params: Population
    parents: jax.Array | None = None


def no_metrics(state: StrategyState) -> Metrics:
    del state
    return {}


class Front(NamedTuple):
    """Members that a strategy keeps, with what it knows of them.

    Attributes:
        params: [M, ...].
        mean: [M] score, less the start's.
        error: [M] its standard error.
        looks: [M] int32, evaluations; 0: no member.
        length: [M] int32, operations.
        ancestors: [A, ...] of the solution, itself first.
        born: [A] int32, generation of the first evaluation; -1: no ancestor.
    """

    params: Population
    mean: jax.Array
    error: jax.Array
    looks: jax.Array
    length: jax.Array
    ancestors: Population
    born: jax.Array


class Strategy(NamedTuple):
    """An outer loop as pure functions; see `strategies/`.

    Attributes:
        init: `key -> state`.
        ask: `(key, state) -> (Proposal, state)`.
        tell: `(key, state, proposal, fitness [P]) -> state`; `fitness` is finite.
        solution: `state -> Params`, what the search reports: the mean of a
            distribution, never the luckiest member of a noisy generation.
        metrics: `state -> {name: scalar}` for the log.
        mirrored: True if member `i + P/2` is the mirror image of member `i`. A pair
            with a failed member, or one that was not scored, then gets equal fitness,
            so it moves nothing.
        persistent_agents: True if what it breeds are agents that live on and follow
            each other, as in PBT. The result is then the best of them, scored again,
            and the schedule of numbers along its line of ancestors.
        from_ranges: True if members are drawn from the ranges of `spaces.prior`, as in
            random search. In a space of another kind they would all be alike.
        remembers: True if it compares scores of several generations as they are. Ranks
            among the members of one, `fitness.rank_sum`, are then refused.
        mutates: True if it searches programs, `Space.programs`; others need numbers.
        front: `state -> Front`, the members that it keeps; None: it keeps none.
        adopt: `(state, params) -> (state, place)`: a member of the next proposal that
            somebody else wrote, and its place there; None: it takes none.
        most_adopted: members that it takes for one proposal.
        with_space: the same strategy with the same settings over another space, so
            that a baseline can be tuned as what it is compared with was; see
            `remakeable`.
        settings: the name and the arguments of the function that made it, the space
            aside; empty if it was not made by a `remakeable` function.
        defaults: the defaults of these arguments, of those that have one.
    """

    init: Callable[[Key], StrategyState]
    ask: Callable[[Key, StrategyState], tuple[Proposal, StrategyState]]
    tell: Callable[[Key, StrategyState, Proposal, Fitness], StrategyState]
    solution: Callable[[StrategyState], Params]
    metrics: Callable[[StrategyState], Metrics] = no_metrics
    mirrored: bool = False
    persistent_agents: bool = False
    from_ranges: bool = False
    remembers: bool = False
    mutates: bool = False
    front: Callable[[StrategyState], Front] | None = None
    adopt: Callable[[StrategyState, Params], tuple[StrategyState, int]] | None = None
    most_adopted: int = 0
    with_space: Callable[[Space], Strategy] | None = None
    settings: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}


def arguments(function: Callable) -> dict[str, Any]:
    """Return the defaults of a function's parameters, of those that have one.

    >>> arguments(lambda size, rate=0.1: None)
    {'rate': 0.1}
    """
    parameters = inspect.signature(function).parameters.values()
    return {x.name: x.default for x in parameters if x.default is not x.empty}


def remakeable(make: Callable[..., Strategy]) -> Callable[..., Strategy]:
    """Decorates a function `make(space, ...)` that returns a strategy.

    The strategies get `with_space`, and `settings`: `strategy`, the name of `make` as
    `module:function`, and its arguments by name, defaults included.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(space: Space, *args: Any, **options: Any) -> Strategy:
        def with_space(other: Space) -> Strategy:
            return made(other, *args, **options)

        strategy = make(space, *args, **options)
        bound = signature.bind(space, *args, **options)
        bound.apply_defaults()
        _, *given = bound.arguments.items()  # the first is the space
        name = f"{make.__module__}:{make.__qualname__}"
        return strategy._replace(
            with_space=with_space,
            settings={"strategy": name, **dict(given)},
            defaults=arguments(make),
        )

    return made


class FitnessFn(NamedTuple):
    """Fitness of one member's one training run.

    Attributes:
        score: `(train metrics, [K] per leaf; evaluation metrics or None) -> scalar`.
        needs_evaluation: whether `InnerLoop.evaluate` has to run for it.
        name: how reports call it.
    """

    score: Callable[[Metrics, Metrics | None], jax.Array]
    needs_evaluation: bool
    name: str


def mean(fitness: jax.Array) -> Fitness:
    """Mean over tasks and seeds: [tasks, S, P] -> [P]."""
    return fitness.mean((0, 1))


class Search(NamedTuple):
    """A search: inner loop(s), space, strategy, fitness and a horizon.

    Attributes:
        inner_loop: one, or several for several tasks. All must have the slots that
            `space` replaces.
        space: what may evolve.
        strategy: how it evolves.
        num_generations: horizon; a finished run may be asked for more.
        fitness: see `metaevo.fitness`.
        num_seeds: S, independent worlds per member.
        aggregate: [tasks, S, P] -> [P].
        segments_per_generation: None for whole lifetimes, else members live on over
            generations, through `Proposal.parents`.
        common_random_numbers: whether all members share the worlds. None: yes, iff
            members are newborn each generation or mirrored, and the loop not coupled.
        chunk_size: members in one vmap. None: 8 on CPU, on an accelerator as many as
            the devices divide the population into. The bits depend on it, so it is
            fixed before generation 0 and kept in the run's manifest.
        seeds_at_once: seeds of a member in one vmap. None: all, or, where there are
            more devices than chunks of members, so few that all devices have work.
            Fixed and kept like `chunk_size`.
        vary: a `spaces.prior` over numbers of the inner loop, drawn for each world and
            common to its members; their own params are bound after it. None: all
            worlds have the numbers of the loop.
        hurdles: fitness, a mean over seeds, that a member needs on the first, the
            second ... task to be trained on those after it. One that is stopped counts
            as the worst of the generation there.
        stopping: a `metaevo.Halving` by which members of a generation are stopped
            early; None: all live whole lives. `horizon` stages of equal length are a
            lifetime, and at each rung all wait: `wait` has no effect.
        world_per_member: True if each member is in a world of its own, as in the
            comparison on held-out seeds. It is then the member's place, too, that
            determines what `vary` and `Env.task` draw.
    """

    inner_loop: InnerLoop | Sequence[InnerLoop]
    space: Space
    strategy: Strategy
    num_generations: int
    fitness: FitnessFn
    num_seeds: int = 1
    aggregate: Callable[[jax.Array], Fitness] = mean
    segments_per_generation: int | None = None
    common_random_numbers: bool | None = None
    chunk_size: int | None = None
    seeds_at_once: int | None = None
    vary: Space | None = None
    hurdles: Sequence[float] = ()
    stopping: Any = None
    world_per_member: bool = False

    @property
    def tasks(self) -> tuple[InnerLoop, ...]:
        """The inner loops, one per task."""
        if isinstance(self.inner_loop, InnerLoop):
            return (self.inner_loop,)
        return tuple(self.inner_loop)

    @property
    def coupled(self) -> bool:
        """True if any of the inner loops is coupled: members cannot train alone."""
        return any(loop.coupled for loop in self.tasks)

    @property
    def seeds_alone(self) -> bool:
        """True if a member's seeds can train apart, and their scores join after it."""
        together = self.coupled or self.hurdles or self.segments_per_generation
        return not (together or self.stopping) and self.space.inherit is keep


class Evaluated(NamedTuple):
    """One generation's evaluation, complete and in the order of the proposal.

    Attributes:
        fitness: [tasks, S, P] raw scores; not finite if failed or not scored.
        healthy: [tasks, S, P] bool, whether the agent's numbers are all finite.
        params: [P, ...] after `Space.inherit`.
        train: one dict per task, [S, P, K] per metric; `return` is NaN where no
            episode ended.
        evaluation: one dict per task, [S, P] per metric; {} if not evaluated.
    """

    fitness: np.ndarray
    healthy: np.ndarray
    params: Population
    train: Sequence[Metrics]
    evaluation: Sequence[Metrics]


class Evaluator(Protocol):
    """Evaluates a proposal; see `metaevo.evaluators.choose`.

    `carried` holds agents that live on between generations and is opaque to the
    caller, who only keeps it, and checkpoints what `collected` makes of it.

    Attributes:
        num_devices: number of devices that members may be divided among.
    """

    num_devices: int

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Train and score; `places` as in `LocalEvaluator`."""
        ...

    def score(
        self, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[PyTree]]:
        """Evaluate agents as they are; see `LocalEvaluator.score`."""
        ...

    def collected(self, carried: PyTree) -> PyTree:
        """Arrays of `carried`, which a call takes in its place."""
        ...

    def template(self, proposal: Proposal) -> PyTree:
        """Shapes and dtypes of these arrays, to restore a checkpoint with."""
        ...

    def state_bytes(self, proposal: Proposal) -> int:
        """Bytes of the agents, environments and buffers that exist at a time."""
        ...
