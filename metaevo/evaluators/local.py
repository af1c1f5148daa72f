"""Evaluation of a population on this machine's devices, or on those of several.

The population is trained in rounds, one chunk of members per device; see `layout`.
Coupled loops see the whole population in one round. In a jax.distributed job all
processes make the same calls, and each gets the whole result.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators import _arrays, stages
from metaevo.evaluators.layout import (
    ALL,
    MEMBERS,
    STATE,
    Layout,
    choose_layout,
    num_groups,
)
from metaevo.evaluators.lift import Outcome
from metaevo.evaluators.memory import MemoryNeed
from metaevo.evaluators.programs import (
    TaskPrograms,
    common_random_numbers,
    make_programs,
)
from metaevo.types import (
    Evaluated,
    InnerLoop,
    InnerState,
    Key,
    Metrics,
    Proposal,
    PyTree,
    Search,
    keep,
)


class Sources(NamedTuple):
    """Members whose state each member continues, [P]; -1 for a newborn.

    Attributes:
        agent: Member whose agent it continues: its parent.
        experience: Member whose experience it continues: itself.
        moved: Whether the agent came to another member's experience, [P].
    """

    agent: np.ndarray
    experience: np.ndarray
    moved: np.ndarray


class LocalEvaluator:
    """Evaluates proposals of one search; an `Evaluator`.

    Args:
        search: Search; `chunk_size` None means `layout.default_chunk_size`, and
            `seeds_at_once` None `layout.default_seeds`.
        devices: JAX devices to use; None: all of the default backend.
        evaluate: Run `InnerLoop.evaluate` even if the fitness does not need it.
        should_stop: Asked after each round; True abandons the generation.
        keep_agents: Return the trained agents even if they do not live on.

    Attributes:
        all_devices: Devices that may be used; a population fills `devices`.
        num_devices: Number of them.
        chunk_size: Members in one vmap; set when the programs are made.
        programs: Compiled functions by name and task, for counting compilations.
        announced: Bytes that a search needs; None until `chunking.plan` sets them.
    """

    layout: Layout
    chunk_size: int
    _programs: list[TaskPrograms]

    def __init__(
        self,
        search: Search,
        devices: list | None = None,
        evaluate: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        keep_agents: bool = False,
    ):
        self.search = search
        self.devices = self.all_devices = list(devices or jax.devices())
        self.num_devices = len(self.all_devices)
        self.evaluate = evaluate
        self.should_stop = should_stop
        self.keep_agents = keep_agents
        self.coupled = search.coupled
        self.programs: dict[str, Any] = {}
        self.announced: MemoryNeed | None = None
        self._made_for: tuple[int | None, bool] | None = None

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
        sources: Sequence[Sources | None] | None = None,
        groups: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Train and score every member of `proposal`.

        Args:
            key: Key of the generation; the key and the proposal determine the result.
            proposal: Members, [P, ...] per leaf.
            carried: Second result of the last call; None or () before the first.
            places: [P] places of the members in a population of which they are whole
                chunks; None: the members are the population.
            sources: Per task the entries of `carried` that the members continue, for
                a part of a population; None: the proposal's parents say it.
            groups: [P] group of seeds on which each member is trained, ascending; S is
                then the seeds of a group. None: all members are on all groups.

        Returns:
            The evaluation, and the state to be given to the next call: one InnerState
            per task if members live on (with `keep_agents` their agents), else ().

        Raises:
            InterruptedRunError: `should_stop` returned True; `carried` is unchanged.
        """
        self.prepare(proposal, places is not None)
        lives_on = self.search.segments_per_generation is not None
        results = []
        going_on = np.arange(population.size(proposal.params))
        for task in range(len(self.search.tasks)):
            old = carried[task] if carried and lives_on else None
            if self.search.stopping is not None:
                stage = partial(self._stage, task, key, proposal, places)
                result = stages.train(self.search, len(going_on), key, stage), None
            elif len(going_on) == population.size(proposal.params):
                given = None if sources is None else sources[task]
                result = self._train(task, key, proposal, old, places, given, groups)
            else:
                result = self._train_some(task, key, proposal, going_on, places)
            results.append(result)
            if task < len(self.search.hurdles):
                scores = np.asarray(result[0].fitness).mean(0)[going_on]
                going_on = going_on[scores >= self.search.hurdles[task]]
        outcomes = [outcome for outcome, _ in results]
        params = proposal.params
        if self.search.space.inherit is not keep:
            # There is one task and one seed.
            params = jax.tree.map(lambda x: x[0], outcomes[-1].inherited)
        evaluated = Evaluated(
            fitness=np.stack(jax.device_get([x.fitness for x in outcomes])),
            healthy=np.stack(jax.device_get([x.healthy for x in outcomes])),
            params=params,
            train=[x.train for x in outcomes],
            evaluation=[x.evaluation for x in outcomes],
        )
        return evaluated, tuple(state for _, state in results if state is not None)

    def score(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Sequence[Metrics], Sequence[PyTree]]:
        """Evaluate agents as they are, without training.

        Args:
            key: Key of the evaluation.
            proposal: Members, [P, ...] per leaf.
            carried: Second result of a call, if members live on: their agents are
                scored. Otherwise members newborn with `proposal.params` are: those of
                a space of policies.
            places: As in a call.

        Returns:
            One dict per task, [S, P] per metric of `InnerLoop.evaluate`; and the
            agents of each task, [S, P, ...] per leaf.
        """
        size = population.size(proposal.params)
        self.prepare(proposal, places is not None)
        scored, agents = [], []
        for task, programs in enumerate(self._programs):
            arguments = self.arguments(key, task, proposal, places)
            rounds, real = [], []
            for ids, whole in self.layout.rounds(*self._lanes(size)):
                args = arguments(ids)
                if carried:
                    agent = self.layout.put_members(carried[task].agent, ids)
                else:
                    agent = programs.members(*args).agent
                metrics = programs.evaluate(*args, InnerState(agent, ()))
                rounds.append(self.layout.gathered((metrics, agent)))
                real.append(whole)
            metrics, agent = self._folded(_arrays.join(rounds, real))
            scored.append(metrics)
            agents.append(agent)
        return scored, agents

    def collected(self, carried: PyTree) -> PyTree:
        """Return the arrays of what a call carries on: they are here."""
        return carried

    # --- shapes and sizes ---

    def template(self, proposal: Proposal) -> PyTree:
        """Return the shapes of what a call carries on, to restore a checkpoint."""
        if self.search.segments_per_generation is None:
            return ()
        return self._kept(proposal)

    def _kept(self, proposal: Proposal) -> PyTree:
        """Return the shapes of what is kept of all members, once they have trained."""
        lives_on = self.search.segments_per_generation is not None
        in_stages = self.search.stopping is not None
        if not lives_on and not in_stages:
            return ()
        size = population.size(proposal.params)
        args = self._round_shapes(proposal)

        def whole(x):
            return jax.ShapeDtypeStruct((x.shape[0], size, *x.shape[2:]), x.dtype)

        states = []
        for programs in self._programs:
            state = jax.eval_shape(programs.init, *args)
            if proposal.parents is None and not in_stages:
                state = state._replace(agent=(), experience=())
            states.append(
                state._replace(
                    agent=jax.tree.map(whole, state.agent),
                    experience=jax.tree.map(whole, state.experience),
                )
            )
        return tuple(states)

    def state_bytes(self, proposal: Proposal) -> int:
        """Return the bytes of a round's agents, environments and buffers."""
        args = self._round_shapes(proposal)
        states = [jax.eval_shape(p.init, *args) for p in self._programs]
        return max(_arrays.num_bytes((x.agent, x.experience, x.shared)) for x in states)

    def carried_bytes(self, proposal: Proposal) -> int:
        """Return the bytes that all members keep between generations, or stages.

        It is 0 if they are newborn and live whole lives.
        """
        return _arrays.num_bytes(self._kept(proposal))

    def largest(self, proposal: Proposal) -> int:
        """Return the bytes of the largest array that all members keep, or 0."""
        leaves = jax.tree.leaves(self._kept(proposal))
        return max(map(_arrays.num_bytes, leaves), default=0)

    def memory(self, proposal: Proposal) -> int:
        """Return the bytes that a round of training needs on all devices, as XLA says.

        The program is the one that trains; it is not compiled again.
        """
        args = self._round_shapes(proposal)
        return max(self._memory(programs, args) for programs in self._programs)

    def _memory(self, programs: TaskPrograms, args: tuple) -> int:
        state = jax.eval_shape(programs.init, *args)
        state = InnerState(*map(self.layout.put_shapes, state, STATE))
        used = programs.run.lower(*args, state).compile().memory_analysis()
        on_each_device = (
            used.argument_size_in_bytes
            + used.output_size_in_bytes
            + used.temp_size_in_bytes
            - used.alias_size_in_bytes
        )
        return on_each_device * len(self.devices)

    @property
    def sized(self) -> Search:
        """The search, with the members and the seeds in one vmap that it has here."""
        if self.coupled:
            return self.search._replace(chunk_size=None, seeds_at_once=None)
        return self.search._replace(
            chunk_size=self.chunk_size, seeds_at_once=self.layout.seeds
        )

    def with_chunk(self, chunk_size: int, seeds: int | None = None) -> LocalEvaluator:
        """Return an evaluator like this one, with other sizes of a vmap."""
        return LocalEvaluator(
            self.search._replace(chunk_size=chunk_size, seeds_at_once=seeds),
            self.all_devices,
            self.evaluate,
            self.should_stop,
            self.keep_agents,
        )

    def _round_shapes(self, proposal: Proposal) -> tuple:
        """Return the shapes of the arguments of `TaskPrograms.init` in a round.

        They lie where the arrays will, so that JAX traces the program once.
        """
        self.prepare(proposal)
        size = population.size(proposal.params)
        ids, _ = next(self.layout.rounds(size))
        num_keys = self.layout.seeds * self.layout.mesh.size
        args = jax.eval_shape(
            lambda params: (
                jax.random.split(jax.random.key(0), num_keys),
                jnp.asarray(ids),
                population.take(params, ids),
            ),
            proposal.params,
        )
        return self.layout.put_shapes(args, MEMBERS)

    # --- one generation ---

    def prepare(self, proposal: Proposal, part: bool = False) -> None:
        """Choose the layout and make the programs, at the first call."""
        size = population.size(proposal.params)
        asked = (None if part else size, proposal.parents is None)
        if self._made_for is not None:
            if asked != self._made_for:
                raise ValueError(f"the population changed: {self._made_for} -> {asked}")
            return
        self._made_for = asked
        search = self.search
        if search.space.inherit is not keep and (
            search.num_seeds > 1 or len(search.tasks) > 1
        ):
            raise ConfigError(
                "a Lamarckian space inherits from one agent: num_seeds and the number "
                f"of tasks must be 1, not {search.num_seeds} and {len(search.tasks)}"
            )
        if self.keep_agents:  # rounds of agents are joined as they come
            search = search._replace(seeds_at_once=search.num_seeds)
        self.layout = choose_layout(search, self.all_devices, size, part)
        self.devices = self.all_devices[: self.layout.mesh.size]
        self.chunk_size = self.layout.chunk_size
        shared_numbers = common_random_numbers(search, proposal)
        self._programs = [
            make_programs(search, loop, self.layout.mesh, shared_numbers, self.evaluate)
            for loop in search.tasks
        ]
        self.programs |= {
            f"{name}/{task}": program
            for task, programs in enumerate(self._programs)
            for name, program in programs._asdict().items()
        }

    def _train(
        self,
        task: int,
        key: Key,
        proposal: Proposal,
        old: InnerState | None,
        places: np.ndarray | None,
        sources: Sources | None = None,
        groups: np.ndarray | None = None,
    ) -> tuple[Outcome, InnerState | None]:
        """Train all members on one task, round by round.

        Returns:
            The outcome, and the state that is carried on; None if there is none.
        """
        size = population.size(proposal.params)
        arguments = self.arguments(key, task, proposal, places, groups)
        if old is not None and self.layout.exchange is None:
            old = self.layout.gathered(old)  # a restored state lies on a device
        if sources is None and old is not None:
            loop = self.search.tasks[task]
            sources = continued_sources(loop, proposal.parents, healthy(old, size))
        outcomes, real, kept = [], [], None
        lanes = self._lanes(size) if groups is None else (size, groups)
        for ids, whole in self.layout.rounds(*lanes):
            args = arguments(ids)
            start = self.start(task, args, ids, sources, old)
            state, outcome = self._programs[task].run(*args, start)
            # Waiting after each round bounds the memory and lets the caller stop.
            outcomes.append(self.layout.gathered(outcome))
            real.append(whole)
            if self.should_stop():
                raise InterruptedRunError
            carried = self._carried(state, proposal)
            del start, state  # the next round must not exist beside this one
            if carried is not None:
                carried = self.layout.gathered(carried, consume=True)
                agent, experience = (
                    _arrays.extend(kept[i] if kept else None, carried[i], ids[0], size)
                    for i in range(2)
                )
                kept = carried._replace(agent=agent, experience=experience)
                del carried, agent, experience
                gc.collect(0)  # JAX lets go of arrays that it has copied only then
        outcome = _arrays.join(outcomes, real)
        return outcome if groups is not None else self._folded(outcome), kept

    def _train_some(
        self,
        task: int,
        key: Key,
        proposal: Proposal,
        members: np.ndarray,
        places: np.ndarray | None,
    ) -> tuple[Outcome, InnerState | None]:
        """Train some of the members on one task, packed into fewer chunks.

        Returns:
            The outcome, NaN where others are; and None.
        """
        size = population.size(proposal.params)
        one = members if len(members) else np.zeros(1, int)  # for the shapes
        there = one if places is None else np.asarray(places)[one]
        some = Proposal(population.take(proposal.params, one))
        outcome, _ = self._train(task, key, some, None, there)
        return _arrays.scatter(jax.device_get(outcome), members, size), None

    def _stage(
        self,
        task: int,
        key: Key,
        proposal: Proposal,
        places: np.ndarray | None,
        members: np.ndarray,
        old: InnerState | None,
    ) -> tuple[Outcome, InnerState]:
        """Train some of the members for a stage of their lives.

        Args:
            task: Index of the task.
            key, proposal, places: As in a call.
            members: [M] those that train.
            old: Their states after the stage before, [S, M, ...]; None: newborn.

        Returns:
            The outcome and their states, [S, M, ...].
        """
        each = np.arange(len(members))
        sources = None
        if old is not None:
            sources = Sources(each, each, np.zeros(len(members), bool))
        there = members if places is None else np.asarray(places)[members]
        some = Proposal(population.take(proposal.params, members))
        outcome, state = self._train(task, key, some, old, there, sources)
        assert state is not None, "`_carried` keeps it"
        return outcome, state

    def _carried(self, state: InnerState, proposal: Proposal) -> InnerState | None:
        """Return the part of a trained state that outlives the generation, or stage."""
        if self.search.stopping is not None:
            return state
        if self.keep_agents:
            return state._replace(experience=())
        if self.search.segments_per_generation is None:
            return None
        if proposal.parents is None:
            return state._replace(agent=(), experience=())
        return state

    def _lanes(self, size: int) -> tuple[int, np.ndarray | None]:
        """Return the number of a population's lanes, and the group of each."""
        groups = self._num_groups
        if groups == 1:
            return size, None
        return size * groups, np.repeat(np.arange(groups), size)

    @property
    def _num_groups(self) -> int:
        return num_groups(self.search._replace(seeds_at_once=self.layout.seeds))

    def _folded(self, tree: PyTree) -> PyTree:
        """Return leaves [S, P, ...] of those of all lanes."""
        return _arrays.folded(tree, self._num_groups, self.search.num_seeds)

    def arguments(
        self,
        key: Key,
        task: int,
        proposal: Proposal,
        places: np.ndarray | None,
        groups: np.ndarray | None = None,
    ) -> Callable[[np.ndarray], tuple]:
        """Return a function from the ids of a round to the programs' arguments.

        Args:
            key, proposal, places: As in a call.
            task: Index of the task.
            groups: Group of each lane; None: those of all members on all groups.
        """
        put, mesh, width = self.layout.put, self.layout.mesh, self.layout.seeds
        size = population.size(proposal.params)
        seed_keys = jax.vmap(jax.random.fold_in, (None, 0))(
            jax.random.fold_in(key, task), jnp.arange(self.search.num_seeds)
        )
        if groups is None:
            groups = self._lanes(size)[1]

        def keys_of(groups: np.ndarray) -> Key:
            """Return the seeds' keys on the devices, of each device's group."""
            seeds = groups[:, None] * width + np.arange(width)
            return put(
                seed_keys[np.minimum(seeds, len(seed_keys) - 1).ravel()], MEMBERS
            )

        common = keys_of(np.zeros(mesh.size, int)) if groups is None else None

        def arguments(ids):
            members = ids % size
            taken = put(population.take(proposal.params, members), MEMBERS)
            there = members if places is None else places[members]
            of_seeds = common
            if groups is not None:
                of_seeds = keys_of(groups[ids[:: self.chunk_size]])
            return of_seeds, put(jnp.asarray(there), MEMBERS), taken

        return arguments

    def start(
        self,
        task: int,
        args: tuple,
        ids: np.ndarray,
        sources: Sources | None,
        old: InnerState | None,
    ) -> InnerState:
        """Return the state from which a round starts.

        Args:
            task: Index of the task.
            args: Arguments of the programs.
            ids: Members of the round.
            sources: Members whose state is continued; None: all are newborn.
            old: State of the last generation.
        """
        programs = self._programs[task]
        if sources is None or old is None:
            return programs.init(*args)
        here = Sources(*(source[ids] for source in sources))
        newborn = InnerState(None, None)
        if (here.agent < 0).any() or (here.experience < 0).any():
            newborn = programs.members(*args)
        # `run` consumes its input, and the carried state belongs to the caller.
        common = jax.tree.map(
            lambda x: x if isinstance(x, np.ndarray) else jnp.copy(x),
            (old.shared, old.clock),
        )
        shared, clock = self.layout.put(common, ALL)
        experience = self._continued(
            old.experience, here.experience, newborn.experience
        )
        if here.moved.any():
            moved = self.layout.put(jnp.asarray(here.moved), MEMBERS)
            after = self.search.tasks[task].for_new_agent(experience)
            experience = _arrays.where(moved, after, experience)
        return InnerState(
            agent=self._continued(old.agent, here.agent, newborn.agent),
            experience=experience,
            shared=shared,
            clock=clock,
        )

    def _continued(self, old: PyTree, sources: np.ndarray, newborn: PyTree) -> PyTree:
        """Return `old` of each member's source, or `newborn` where that is -1."""
        if (sources < 0).all():
            return newborn
        continued = self.layout.put_members(old, np.maximum(sources, 0))
        if (sources >= 0).all():
            return continued
        lives = self.layout.put(jnp.asarray(sources >= 0), MEMBERS)
        return _arrays.where(lives, continued, newborn)


class Healthy(NamedTuple):
    """Members of a state whose numbers are all finite, [P] each."""

    agent: np.ndarray
    experience: np.ndarray


def healthy(state: InnerState, size: int) -> Healthy:
    """Return the members of a state [S, P, ...] whose numbers are all finite."""
    return Healthy(*(_arrays.healthy(x, size) for x in state[:2]))


def continued_sources(
    loop: InnerLoop, parents: jax.Array | None, alive: Healthy
) -> Sources | None:
    """Return the members whose state each member continues.

    Agents follow their parents, and experience stays with the member. A state with a
    number that is not finite is not continued, because it would never recover.

    Args:
        loop: Inner loop of the task.
        parents: [P] as of a proposal.
        alive: Members of the last generation's state.

    Returns:
        The sources; None if all members, and what they share, are newborn.
    """
    size = len(alive.agent)
    agent = np.full(size, -1) if parents is None else np.asarray(parents)
    if not loop.coupled and (agent < 0).all():
        return None
    experience = np.where(agent < 0, -1, np.arange(size))
    if (agent >= 0).any():
        agent = np.where(alive.agent[agent], agent, -1)
        experience = np.where(alive.experience[experience], experience, -1)
    moved = (agent != experience) & (experience >= 0)
    return Sources(agent, experience, moved)
