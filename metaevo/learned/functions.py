"""Learned functions and their building blocks, in plain jnp.

An artifact is rebuilt from these, so they need neither flax nor optax.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo.errors import ConfigError
from metaevo.slots import Context
from metaevo.types import Key, Params

__all__ = [
    "Cell",
    "Learned",
    "LearnedGenome",
    "LearnedNetwork",
    "above_one",
    "gru",
    "inputs",
    "largest",
    "layers",
    "name_of",
    "network",
    "positive",
    "progress",
    "return_std",
    "softsign",
    "whole",
]


SMALLEST_STD = 1e-8  # of targets that are all equal: errors are divided by it


class LearnedGenome(NamedTuple):
    """Of a function whose params are programs: as `types.Genome`, of these alone.

    Attributes:
        mutate, behaviour, length: as of `types.Genome`.
        settled: `params -> (Learned, params)`.
        read: `text -> params` of a formula.
    """

    mutate: Callable[[Key, Params], Params]
    behaviour: Callable[[Params], jax.Array]
    length: Callable[[Params], jax.Array]
    settled: Callable[[Params], tuple[Learned, Params]]
    read: Callable[[str], Params]


class Learned(NamedTuple):
    """A function with parameters, to be put into a slot by `spaces.replace`.

    Attributes:
        init: `key -> params`.
        apply: `(params, *inputs, context) -> output`.
        spec: plain data from which `metaevo.storage.artifacts` rebuilds it. A builder
            under `operations.operation` may leave it out.
        starts_hand_made: True if it starts as its hand-made counterpart.
        programs: how its params change if they are programs; None: they are numbers.
    """

    init: Callable[[Key], Params]
    apply: Callable
    spec: Mapping[str, Any] = MappingProxyType({})
    starts_hand_made: bool = False
    programs: LearnedGenome | None = None

    def bind(self, params: Params) -> Partial:
        """The slot value for these parameters."""
        return Partial(self.apply, params)


class LearnedNetwork(NamedTuple):
    """A multilayer perceptron.

    Attributes:
        init: `key -> params`.
        apply: `(params, x [..., num_inputs]) -> [..., num_outputs]`.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, jax.Array], jax.Array]


def network(
    num_inputs: int, features: Sequence[int], num_outputs: int = 1, bias: bool = True
) -> LearnedNetwork:
    """A tanh network that starts at exactly zero.

    Hidden weights start random and the last layer at zero, so that members mirrored
    about the start differ (an all-zero tanh network without biases is an even function
    of its parameters: mirrored members would be equal and ES see no gradient).

    Args:
        features: hidden layer sizes, 1 to 8 of 1 to 4096 units.
        bias: without biases it is zero where its inputs are.
    """
    sizes = (num_inputs, *layers(features), num_outputs)
    last = len(sizes) - 2

    def init(key):
        keys = jax.random.split(key, last + 1)
        params = {}
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            weight = jax.random.normal(keys[i], (fan_in, fan_out)) / math.sqrt(fan_in)
            params[f"w{i}"] = jnp.zeros_like(weight) if i == last else weight
            if bias:
                params[f"b{i}"] = jnp.zeros(fan_out)
        return params

    def apply(params, x):
        for i in range(last + 1):
            x = x @ params[f"w{i}"]
            x = x + params[f"b{i}"] if bias else x
            x = jnp.tanh(x) if i < last else x
        return x

    return LearnedNetwork(init, apply)


class Cell(NamedTuple):
    """One step of a recurrent network.

    Attributes:
        init: `keys -> params`, of four keys.
        apply: `(params, x [..., num_inputs], memory [..., hidden]) -> memory`.
    """

    init: Callable[[Sequence[Key] | jax.Array], Params]
    apply: Callable[[Params, jax.Array, jax.Array], jax.Array]


def gru(num_inputs: int, hidden: int) -> Cell:
    """A gated recurrent unit with random weights; `init` takes four keys.

    References:
        Cho et al., 2014, https://arxiv.org/abs/1406.1078.
    """

    def init(keys):
        shapes = {
            "gates_x": (num_inputs, 2 * hidden),
            "gates_h": (hidden, 2 * hidden),
            "new_x": (num_inputs, hidden),
            "new_h": (hidden, hidden),
        }
        weights = {
            name: jax.random.normal(k, shape) / math.sqrt(shape[0])
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return weights | {"gates_b": jnp.zeros(2 * hidden), "new_b": jnp.zeros(hidden)}

    def apply(params, x, memory):
        gates = x @ params["gates_x"] + memory @ params["gates_h"] + params["gates_b"]
        keep, reset = jnp.split(jax.nn.sigmoid(gates), 2, -1)
        seen = x @ params["new_x"] + (reset * memory) @ params["new_h"]
        return keep * memory + (1 - keep) * jnp.tanh(seen + params["new_b"])

    return Cell(init, apply)


def largest(params: Params) -> float:
    """The bound |n(x)| <= Σ |w| + |b| of a `network` of one output, whatever x.

    >>> largest({"w0": [[9.0]], "b0": [9.0], "w1": [[-2.0]], "b1": [0.5]})
    2.5
    """
    last = max(int(name[1:]) for name in params)
    return sum(
        float(np.abs(np.float64(params[name])).sum())
        for name in (f"w{last}", f"b{last}")
        if name in params
    )


def inputs(
    features: Sequence[jax.Array], temporal: bool, context: Context | None
) -> jax.Array:
    """Features of one shape, [...] each, side by side, [..., n].

    Args:
        temporal: True appends `context.progress`.

    Raises:
        ValueError: it is temporal, and there is no context.
    """
    if temporal:
        features = [*features, progress(context)]
    return jnp.stack(jnp.broadcast_arrays(*features), -1)


def progress(context: Context | None) -> jax.Array:
    """`context.progress`.

    Raises:
        ValueError: there is no context.
    """
    if context is None:
        raise ValueError(
            "this function changes over an agent's lifetime (temporal=True): call it "
            "with context=metaevo.Context(progress=...), from 0 to 1"
        )
    return jnp.asarray(context.progress, jnp.result_type(float))


def return_std(context: Context | None) -> jax.Array:
    """`context.return_std`, held constant and at least `SMALLEST_STD`.

    Raises:
        ValueError: there is no context, or it has none.
    """
    if context is None or context.return_std is None:
        raise ValueError(
            "this function measures errors in standard deviations of the value "
            "targets: call it with context=metaevo.Context(return_std=targets.std())"
        )
    std = jnp.asarray(context.return_std, jnp.result_type(float))
    return jax.lax.stop_gradient(jnp.maximum(std, SMALLEST_STD))


def softsign(x: jax.Array, scale: float = 1.0) -> jax.Array:
    """x / (scale + |x|), in (−1, 1)."""
    return x / (scale + jnp.abs(x))


# --- settings -------------------------------------------------------------------------


def layers(features: Sequence[int], name: str = "features") -> tuple[int, ...]:
    """Hidden layer sizes, checked.

    >>> layers([16, 16])
    (16, 16)

    Raises:
        ValueError: not 1 to 8 integers from 1 to 4096.
    """
    try:
        sizes = tuple(operator.index(n) for n in features)
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 8 or not all(1 <= n <= 4096 for n in sizes):
        raise ConfigError(f"{name}={features!r}: expected 1 to 8 layers of 1 to 4096")
    return sizes


def positive(**settings: float) -> None:
    """Raise ValueError unless all are positive, finite numbers."""
    for name, value in settings.items():
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"{name}={value!r} is not a positive number")


def above_one(**settings: float) -> None:
    """Raise ValueError unless all are finite numbers above 1."""
    positive(**settings)
    for name, value in settings.items():
        if value <= 1:
            raise ConfigError(f"{name}={value!r}: expected a number above 1")


def whole(low: int, high: int, **setting: Any) -> int:
    """A whole number from `low` to `high`, checked.

    >>> whole(1, 64, num_cells=6)
    6

    Raises:
        ValueError: it is no such number.
    """
    ((name, value),) = setting.items()
    if not hasattr(value, "__index__") or not low <= operator.index(value) <= high:
        raise ConfigError(f"{name}={value!r} must be in [{low}, {high}]")
    return operator.index(value)


def name_of(function: Partial | str, hand_made: Mapping[str, Partial]) -> str:
    """The name of one of the hand-made functions.

    Raises:
        ValueError: it is none of them.
    """
    for name, known in hand_made.items():
        if function == name or getattr(function, "func", None) is known.func:
            return name
    raise ConfigError(f"base={function!r}: expected one of {', '.join(hand_made)}")
