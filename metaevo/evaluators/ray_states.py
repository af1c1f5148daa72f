"""States of members that live on, in the object store of a Ray cluster.

A host returns the agents of a chunk as one object, and their experience as another.
Both stay where they were made until another host trains the chunk, or an agent that
descends from one of it. The driver fetches them for a checkpoint alone, and keeps that
copy. What is lost with a host is trained again from there: a generation is its key, its
proposal and the states before it, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import keys
from metaevo.evaluators import _arrays
from metaevo.evaluators.local import Healthy, Sources
from metaevo.types import InnerState, Key, Proposal, PyTree

__all__ = [
    "Kept",
    "Part",
    "States",
    "StatesLostError",
    "joined",
    "pack",
    "packed",
    "part",
    "unpacked",
]


class StatesLostError(Exception):
    """A host that had a part of the states is gone."""


class Kept(NamedTuple):
    """States of a chunk.

    Attributes:
        agent: Reference to the agents, a tuple over tasks, leaves [S, n, ...].
        experience: Reference to their experience, likewise.
        node: Name of the host that made them; None: the driver has them.
    """

    agent: Any
    experience: Any
    node: str | None


@dataclass(eq=False)
class States:
    """State of a population after a generation.

    Attributes:
        chunks: States by chunk; empty once a later generation took their place.
        width: Members of a chunk; of the last one perhaps fewer.
        common: Per task `shared` and `clock`.
        alive: Per task the members whose numbers are all finite.
        copy: The driver's own `chunks`; empty before a checkpoint.
        made_by: Key, proposal and former states of the generation that made them.
            None if the driver has a copy.
    """

    chunks: list[Kept]
    width: int
    common: Sequence[tuple[PyTree, PyTree]]
    alive: Sequence[Healthy]
    copy: list[Kept]
    made_by: tuple[Key, Proposal, States | None] | None


class Part(NamedTuple):
    """The states that the members of some chunks continue.

    Attributes:
        widths: Members of each chunk.
        sources: Per task the entries of `agents` and of `experience` that the members
            continue; None: what trains there is newborn.
        common: Per task `shared` and `clock`.
        agents: References to agents, each with the places in its chunk that are
            needed; the entries of all, one after the other, are counted.
        experience: References to the experience of the chunks.
    """

    widths: list[int]
    sources: Sequence[Sources | None]
    common: Sequence[tuple[PyTree, PyTree]]
    agents: list[tuple[Any, np.ndarray]]
    experience: list[Any]

    def fetched(self, get: Any) -> tuple[InnerState | None, ...]:
        """Return the state per task, None where all are newborn.

        Args:
            get: Returns the objects of references.
        """
        agents = get([reference for reference, _ in self.agents])
        places = [places for _, places in self.agents]
        experience = get(self.experience)
        states = []
        for task, (shared, clock) in enumerate(self.common):
            if self.sources[task] is None:
                states.append(None)
                continue
            parts = [
                _arrays.take(unpacked(x[task]), at, 1)
                for x, at in zip(agents, places, strict=True)
            ]
            lived = [unpacked(x[task]) for x in experience]
            here = joined(parts), joined(lived), unpacked(shared), unpacked(clock)
            states.append(InnerState(*here))
        return tuple(states)


def part(
    states: States | None,
    sources: Sequence[Sources | None],
    given: list[np.ndarray],
    node: str,
) -> tuple[Part, np.ndarray]:
    """Return what the members of some chunks continue.

    Args:
        states: States before the generation.
        sources: Per task those of the whole population.
        given: Members of the chunks.
        node: Name of the host that trains them.

    Returns:
        The part, and of how many members agents and experience come from elsewhere.
    """
    widths, far = [len(ids) for ids in given], np.zeros(2, int)
    if states is None or all(x is None for x in sources):
        nothing = [((), ())] * len(sources)
        return Part(widths, [None] * len(sources), nothing, [], []), far
    ids = np.concatenate(given)
    parents = np.stack([x.agent[ids] for x in sources if x is not None])
    needed = np.unique(parents[parents >= 0])
    local = [
        x
        and Sources(
            np.where(x.agent[ids] < 0, -1, np.searchsorted(needed, x.agent[ids])),
            np.where(x.experience[ids] < 0, -1, np.arange(len(ids))),
            x.moved[ids],
        )
        for x in sources
    ]
    at, size = needed // states.width, len(states.alive[0].agent)
    used = [np.unique(at), np.array([x[0] // states.width for x in given])]
    if not any((x.experience >= 0).any() for x in local if x):
        used[1] = used[1][:0]
    for kind, chunks in enumerate(used):
        for i in chunks:
            if states.chunks[i].node != node:
                far[kind] += min(states.width, size - i * states.width)
    agents = [
        (states.chunks[i].agent, needed[at == i] - i * states.width) for i in used[0]
    ]
    experience = [states.chunks[i].experience for i in used[1]]
    return Part(widths, local, states.common, agents, experience), far


# --- objects in the store -------------------------------------------------------------


class _Keys(NamedTuple):
    """Typed PRNG keys, which cannot be sent as they are."""

    data: np.ndarray
    impl: Any


def packed(tree: PyTree) -> PyTree:
    """Return numpy arrays for the leaves."""

    def pack(x):
        if keys.is_key(x):
            return _Keys(np.asarray(jax.random.key_data(x)), jax.random.key_impl(x))
        return np.asarray(x)

    return jax.tree.map(pack, tree)


def unpacked(tree: PyTree) -> PyTree:
    """Invert `packed`."""

    def unpack(x):
        if isinstance(x, _Keys):
            return jax.random.wrap_key_data(jnp.asarray(x.data), impl=x.impl)
        return x

    return jax.tree.map(unpack, tree, is_leaf=lambda x: isinstance(x, _Keys))


def pack(states: Sequence[InnerState], ids: np.ndarray) -> list[PyTree]:
    """Return the agents of some members, and their experience, as two objects."""
    return [
        packed(tuple(_arrays.take(state[i], ids, 1) for state in states))
        for i in range(2)
    ]


def joined(parts: list[PyTree]) -> PyTree:
    """Join leaves [S, n, ...] of several chunks."""
    if len(parts) < 2:
        return parts[0] if parts else None

    def join(*x):
        if isinstance(x[0], np.ndarray):
            return np.concatenate(x, 1)
        return jnp.concatenate(x, 1)

    return jax.tree.map(join, *parts)
