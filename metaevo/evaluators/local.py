"""Evaluates a population on this machine's devices, or on those of several.

The population is cut into chunks of `chunk_size` members; a round gives each device
one chunk. A chunk's program does not depend on the number of devices, so neither do
the bits. Coupled loops see the whole population and are never cut: one vmap per
device. In a jax.distributed job all processes make the same calls; each ends with the
whole result.

The programs (newborn init, one round of training) are compiled once each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from metaevo import population
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators import _arrays, distributed
from metaevo.evaluators.lift import lift
from metaevo.population import DEVICES
from metaevo.types import (
    Evaluated,
    InnerLoop,
    InnerState,
    Key,
    Proposal,
    PyTree,
    Search,
    keep,
)

CPU_CHUNK = 8  # members per vmap; measured flat between 4 and 16 on CPU

_MEMBERS = PartitionSpec(DEVICES)
_SEEDS_MEMBERS = PartitionSpec(None, DEVICES)
_ALL = PartitionSpec()
_STATE = InnerState(_SEEDS_MEMBERS, _SEEDS_MEMBERS, _ALL, _ALL)


def default_chunk_size(
    population_size: int, num_devices: int, platform: str | None = None
) -> int:
    """Members in one vmap: at most 8 on CPU, all of a device's on an accelerator."""
    per_device = -(-population_size // num_devices)
    platform = platform or jax.default_backend()
    return min(CPU_CHUNK, per_device) if platform == "cpu" else per_device


def common_random_numbers(search: Search, proposal: Proposal) -> bool:
    """Whether members share their worlds: as asked, else iff newborn and uncoupled."""
    if search.common_random_numbers is not None:
        return search.common_random_numbers
    coupled = any(loop.coupled for loop in search.tasks)
    return proposal.parents is None and not coupled


class LocalEvaluator:
    """Evaluates proposals of one search; an `Evaluator`.

    Args:
        search: `search.chunk_size` None means `default_chunk_size`.
        devices: the JAX devices to use; None: all of the default backend.
        evaluate: run `InnerLoop.evaluate` even if the fitness does not need it.
        should_stop: asked after each round; True abandons the generation.
        keep_agents: return the trained agents even if they do not live on.

    Attributes:
        all_devices: those it may use; `devices` are those that a population fills.
        programs: compiled functions by name and task, for counting compilations.
    """

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
        self.evaluate = evaluate
        self.should_stop = should_stop
        self.keep_agents = keep_agents
        self.coupled = any(loop.coupled for loop in search.tasks)
        self.across = len({d.process_index for d in self.devices}) > 1
        self.programs: dict[str, Any] = {}
        self._layout: tuple | None = None

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Trains and scores every member of `proposal`.

        Args:
            key: the generation's key; with it and the proposal all is determined.
            carried: what the last call returned; None or () before the first.
            places: [P] where the members are in the population that they are a part
                of, whole chunks of newborn ones; None: they are all there are.

        Returns:
            the evaluation, and what must be handed to the next call: one InnerState
            per task if members live on (with `keep_agents` their agents), else ().

        Raises:
            InterruptedRunError: `should_stop` said so; `carried` is as it was.
        """
        size = population.size(proposal.params)
        self._compile(size, proposal, places is not None)
        lives_on = self.search.segments_per_generation is not None
        fitness, healthy, train, evaluation, states = [], [], [], [], []
        inherited = proposal.params
        for task, loop in enumerate(self.search.tasks):
            args_of = self._arguments(key, task, proposal.params, places)
            old = carried[task] if carried and lives_on else None
            sources = _sources(loop, proposal.parents, old, size)
            outcomes, kept = [], []
            for ids in self._rounds(size):
                args = args_of(ids)
                state = self._start(task, args, ids, sources, old)
                state, outcome = self.programs[f"run/{task}"](*args, state)
                # One round at a time: in memory, and for whoever wants to stop.
                outcomes.append(self._gathered(outcome))
                if self.should_stop():
                    raise InterruptedRunError
                if self.keep_agents:
                    kept.append(self._gathered(state._replace(experience=())))
                elif lives_on and proposal.parents is None:
                    common = state._replace(agent=(), experience=())
                    kept.append(self._gathered(common))
                elif lives_on:
                    kept.append(self._gathered(state))
            outcome = _arrays.join(outcomes, size)
            fitness.append(outcome.fitness)
            healthy.append(outcome.healthy)
            train.append(outcome.train)
            evaluation.append(outcome.evaluation)
            if kept:
                states.append(
                    InnerState(
                        agent=_arrays.join([s.agent for s in kept], size),
                        experience=_arrays.join([s.experience for s in kept], size),
                        shared=kept[-1].shared,
                        clock=kept[-1].clock,
                    )
                )
            if self.search.space.inherit is not keep:
                inherited = jax.tree.map(lambda x: x[0], outcome.inherited)
        fitness, healthy = (np.stack(jax.device_get(x)) for x in (fitness, healthy))
        evaluated = Evaluated(fitness, healthy, inherited, train, evaluation)
        return evaluated, tuple(states)

    def score(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[list[dict[str, np.ndarray]], list[PyTree]]:
        """Evaluates agents as they are, without training.

        Args:
            carried: what a call returned, if members live on: their agents are
                scored. Else members newborn with `proposal.params`: what a space of
                policies proposes.
            places: as in a call.

        Returns:
            one dict per task, [S, P] per metric of `InnerLoop.evaluate`; and the
            agents of each task, [S, P, ...] per leaf.
        """
        size = population.size(proposal.params)
        self._compile(size, proposal, places is not None)
        scored, agents = [], []
        for task in range(len(self.search.tasks)):
            args_of = self._arguments(key, task, proposal.params, places)
            rounds = []
            for ids in self._rounds(size):
                args = args_of(ids)
                if carried:
                    agent = self._put(
                        _arrays.take(carried[task].agent, ids, 1), _SEEDS_MEMBERS
                    )
                else:
                    agent = self.programs[f"members/{task}"](*args).agent
                state = InnerState(agent, ())
                metrics = self.programs[f"evaluate/{task}"](*args, state)
                rounds.append(self._gathered((metrics, agent)))
            metrics, agent = _arrays.join(rounds, size)
            scored.append(metrics)
            agents.append(agent)
        return scored, agents

    def template(self, proposal: Proposal) -> PyTree:
        """Shapes and dtypes of what a call carries on, for restoring a checkpoint."""
        if self.search.segments_per_generation is None:
            return ()
        size = population.size(proposal.params)
        args = self._a_round(proposal)

        def whole(x):
            shape = (x.shape[0], size, *x.shape[2:])
            return jax.ShapeDtypeStruct(shape, x.dtype)

        states = []
        for task in range(len(self.search.tasks)):
            state = jax.eval_shape(self.programs[f"init/{task}"], *args)
            if proposal.parents is None:
                state = state._replace(agent=(), experience=())
            states.append(
                state._replace(
                    agent=jax.tree.map(whole, state.agent),
                    experience=jax.tree.map(whole, state.experience),
                )
            )
        return tuple(states)

    def state_bytes(self, proposal: Proposal) -> int:
        """Bytes of a round's agents, environments and buffers, on all devices."""
        args = self._a_round(proposal)
        sizes = []
        for task in range(len(self.search.tasks)):
            state = jax.eval_shape(self.programs[f"init/{task}"], *args)
            leaves = jax.tree.leaves((state.agent, state.experience, state.shared))
            sizes.append(sum(x.size * x.dtype.itemsize for x in leaves))
        return max(sizes)

    def carried_bytes(self, proposal: Proposal) -> int:
        """Bytes of what is kept between generations, of all members; 0 if newborn."""
        leaves = jax.tree.leaves(self.template(proposal))
        return sum(x.size * x.dtype.itemsize for x in leaves)

    def with_chunk(self, chunk_size: int) -> LocalEvaluator:
        """An evaluator like this one that trains `chunk_size` members at once."""
        return LocalEvaluator(
            self.search._replace(chunk_size=chunk_size),
            self.all_devices,
            self.evaluate,
            self.should_stop,
            self.keep_agents,
        )

    def memory(self, proposal: Proposal) -> int:
        """Bytes that a round of training needs on all devices, as XLA says.

        The program is the one that trains: it is not compiled again.
        """
        args = self._a_round(proposal)
        seed_keys, ids, params = args
        args = (
            self._placed(seed_keys, None),
            self._placed(ids, _MEMBERS),
            self._placed(params, _MEMBERS),
        )
        most = 0
        for task in range(len(self.search.tasks)):
            state = jax.eval_shape(self.programs[f"init/{task}"], *args)
            state = InnerState(*map(self._placed, state, _STATE))
            run = self.programs[f"run/{task}"].lower(*args, state).compile()
            used = run.memory_analysis()
            each = (
                used.argument_size_in_bytes
                + used.output_size_in_bytes
                + used.temp_size_in_bytes
                - used.alias_size_in_bytes
            )
            most = max(most, each * len(self.devices))
        return most

    def _placed(self, shapes: PyTree, spec: PartitionSpec | None) -> PyTree:
        """Shapes with the devices that `_put` would give their arrays."""
        if spec is None:
            return shapes
        if len(self.devices) == 1:
            spec = _ALL
        sharding = NamedSharding(self.mesh, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
        )

    def _a_round(self, proposal: Proposal) -> tuple:
        """Shapes of what `init` takes in a round."""
        size = population.size(proposal.params)
        self._compile(size, proposal)
        ids = next(self._rounds(size))
        return jax.eval_shape(
            lambda params: (
                jax.random.split(jax.random.key(0), self.search.num_seeds),
                jnp.asarray(ids),
                population.take(params, ids),
            ),
            proposal.params,
        )

    def _compile(self, size: int, proposal: Proposal, part: bool = False) -> None:
        """Chooses chunks and devices, and makes the programs, once."""
        layout = (None if part else size, proposal.parents is None)
        if self._layout is not None:
            if layout != self._layout:
                raise ValueError(f"the population changed: {self._layout} -> {layout}")
            return
        self._layout = layout
        search = self.search
        if search.space.inherit is not keep and (
            search.num_seeds > 1 or len(search.tasks) > 1
        ):
            raise ConfigError(
                "a Lamarckian space inherits from one agent: num_seeds and the number "
                f"of tasks must be 1, not {search.num_seeds} and {len(search.tasks)}"
            )
        if self.coupled:
            # One vmap per device over equal parts.
            divisor = _arrays.largest_divisor(size, len(self.devices))
            if self.across and divisor < len(self.devices):
                raise ConfigError(
                    f"population_size={size} must be a multiple of the "
                    f"{len(self.devices)} devices of all processes: this loop is "
                    "coupled, and every device takes an equal part"
                )
            self.devices = self.devices[:divisor]
            self.chunk_size = size // len(self.devices)
            if search.chunk_size not in (None, size):
                raise ConfigError(
                    f"chunk_size={search.chunk_size}: a coupled loop sees its whole "
                    "population and cannot be cut into chunks; leave it None"
                )
        else:
            self.chunk_size = search.chunk_size or default_chunk_size(
                size, len(self.devices)
            )
            num_chunks = -(-size // self.chunk_size)
            if not part and not self.across:
                self.devices = self.devices[: min(len(self.devices), num_chunks)]
        self.mesh = jax.make_mesh(
            (len(self.devices),),
            (DEVICES,),
            axis_types=(AxisType.Auto,),
            devices=self.devices,
        )
        everywhere = NamedSharding(self.mesh, _ALL)
        self._exchange = jax.jit(_arrays.identity, out_shardings=everywhere)
        shared_worlds = common_random_numbers(search, proposal)
        for task, loop in enumerate(search.tasks):
            lifted = lift(
                loop,
                search.space,
                search.fitness,
                search.segments_per_generation or loop.num_segments,
                shared_worlds,
                self.evaluate,
            )
            inputs = (_ALL, _MEMBERS, _MEMBERS)
            self.programs |= {
                f"init/{task}": self._program(lifted.init, inputs, _STATE),
                f"members/{task}": self._program(lifted.members, inputs, _STATE),
                f"run/{task}": self._program(
                    lifted.run, (*inputs, _STATE), (_STATE, _SEEDS_MEMBERS), donate=(3,)
                ),
                f"evaluate/{task}": self._program(
                    lifted.evaluate, (*inputs, _STATE), _SEEDS_MEMBERS
                ),
            }

    def _program(self, fn, in_specs, out_specs, donate=()):
        # Constant scan carries inside the environments fail the varying-axes check.
        fn = jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
        return jax.jit(fn, donate_argnums=donate)

    def _arguments(
        self, key: Key, task: int, params: PyTree, places: np.ndarray | None
    ) -> Callable:
        """What the programs take in a round, from its members' ids."""
        seed_keys = jax.vmap(jax.random.fold_in, (None, 0))(
            jax.random.fold_in(key, task), jnp.arange(self.search.num_seeds)
        )

        if self.across:
            seed_keys = self._put(seed_keys, _ALL)

        def of(ids):
            taken = self._put(population.take(params, ids), _MEMBERS)
            there = ids if places is None else places[ids]
            return seed_keys, self._put(jnp.asarray(there), _MEMBERS), taken

        return of

    def _rounds(self, size: int):
        """Yields the members' ids of each round; the last is padded by repetition."""
        width = self.chunk_size * len(self.devices)
        for first in range(0, size, width):
            yield np.minimum(np.arange(first, first + width), size - 1)

    def _follow(self, old: PyTree, sources: np.ndarray, newborn: PyTree) -> PyTree:
        """Per member `old` of its source, or the newborn where that is -1."""
        if (sources < 0).all():
            return newborn
        followed = self._put(
            _arrays.take(old, np.maximum(sources, 0), 1), _SEEDS_MEMBERS
        )
        if (sources >= 0).all():
            return followed
        lives = self._put(jnp.asarray(sources >= 0), _MEMBERS)
        return _arrays.where(lives, followed, newborn)

    def _put(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        if len(self.devices) == 1:
            # As programs return it: another spec of one device compiles once more.
            spec = _ALL
        sharding = NamedSharding(self.mesh, spec)
        if self.across:
            return jax.tree.map(partial(_arrays.spread, sharding), tree)
        return jax.device_put(tree, sharding)

    def _gathered(self, tree: PyTree) -> PyTree:
        """Waits for `tree`; from CPUs, or from other processes, brings it to the host.

        Indexing an array that lies on several CPU devices is a collective, and
        collectives that overlap can wait for each other for ever where there are few
        cores. On an accelerator arrays stay where they are.
        """
        if self.across:
            # Waiting inside a collective has a limit of its own; compiling may not.
            jax.block_until_ready(tree)
            distributed.meet()
            tree = self._exchange(tree)
        elif jax.default_backend() != "cpu":
            return jax.block_until_ready(tree)
        return jax.tree.map(_arrays.on_host, tree)

    def _start(self, task, args, ids, sources, old):
        """The state a round starts from: newborn, or agents that live on."""
        if sources is None:
            return self.programs[f"init/{task}"](*args)
        parent, own = (source[ids] for source in sources)
        newborn = None
        if (parent < 0).any() or (own < 0).any():
            newborn = self.programs[f"members/{task}"](*args)
        state = InnerState(
            agent=self._follow(old.agent, parent, newborn and newborn.agent),
            experience=self._follow(
                old.experience, own, newborn and newborn.experience
            ),
            shared=old.shared,
            clock=old.clock,
        )
        # The round's program consumes its input; what is carried is not ours to give.
        common = jax.tree.map(jnp.copy, (state.shared, state.clock))
        shared, clock = self._put(common, _ALL)
        return state._replace(shared=shared, clock=clock)


def _sources(
    loop: InnerLoop, parents: jax.Array | None, old: InnerState | None, size: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Whose agent and whose experience each member continues, [P]; -1 is a newborn.

    Agents follow their parents, experience stays with the member. What is not finite is
    born anew: it would never recover. None: everything starts anew.
    """
    parent = np.full(size, -1) if parents is None else np.asarray(parents)
    if old is None or (not loop.coupled and (parent < 0).all()):
        return None
    own = np.where(parent < 0, -1, np.arange(size))
    if (parent >= 0).any():
        parent = np.where(_arrays.healthy(old.agent, size)[parent], parent, -1)
        own = np.where(_arrays.healthy(old.experience, size)[own], own, -1)
    return parent, own
