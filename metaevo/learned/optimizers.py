"""Learned optimizers: values of the `optimizer` slot that evolve.

Both start as Adam (Kingma and Ba, 2015) and give a direction: an agent does
`params - lr * direction`. They act on every number of an agent's networks alike, so
they run on networks of any shape. Plain jnp, so that an artifact loads without optax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo.learned import functions
from metaevo.learned.functions import layers, positive
from metaevo.learned.operations import operation
from metaevo.learned.portraits import LIFETIME, Curve, Portrait
from metaevo.slots import Context, Optimizer
from metaevo.types import Key, Params, PyTree

__all__ = [
    "LearnedOptimizer",
    "adam_numbers",
    "bits",
    "depths",
    "normal",
    "recurrent",
]


class LearnedOptimizer(NamedTuple):
    """An optimizer with parameters, for the slot `optimizer`.

    Attributes:
        init: `key -> params`, the optimizer's own.
        start: `agent's params -> state`.
        update: `(params, gradient, state, agent's params, context) -> (direction,
            state)`.
        spec: plain data from which `metaevo.storage.artifacts` rebuilds it. A builder
            under `operations.operation` may leave it out.
        starts_hand_made: True if it starts as its hand-made counterpart.
        extra_inputs: names of optional keywords of `update`, trees like the agent's
            params.
    """

    init: Callable[[Key], Params]
    start: Callable[[PyTree], PyTree]
    update: Callable
    spec: Mapping[str, Any] = MappingProxyType({})
    starts_hand_made: bool = False
    extra_inputs: tuple[str, ...] = ()

    def bind(self, params: Params) -> Optimizer:
        """The slot value for these parameters."""
        return Optimizer(Partial(self.start), Partial(self.update, params))


def _each(function: Callable, *trees: PyTree) -> list[PyTree]:
    """`function` of the trees' leaves, several outputs, as that many trees."""
    structure = jax.tree.structure(trees[0])
    leaves = [structure.flatten_up_to(tree) for tree in trees]
    outputs = [function(*at) for at in zip(*leaves, strict=True)]
    return [jax.tree.unflatten(structure, x) for x in zip(*outputs, strict=True)]


# --- six numbers ----------------------------------------------------------------------


class Moments(NamedTuple):
    """Adam's state with decays that may change."""

    forgotten: jax.Array  # [2], the products of all β₁ and of all β₂
    mean: PyTree
    square: PyTree


def _adam(params: Params, eps: float, progress: Any = None) -> dict[str, Any]:
    """Adam's numbers by name; `progress` is of a temporal member."""
    now = params
    if progress is not None:
        now = {name: x[0] + (x[1] - x[0]) * progress for name, x in params.items()}
    return {
        "beta1": jnp.clip(1 - 0.1 * jnp.exp(now["beta1"]), 0.0, 0.9999),
        "beta2": jnp.clip(1 - 0.001 * jnp.exp(now["beta2"]), 0.0, 0.999999),
        "eps": eps * jnp.exp(now["eps"]),
        "clip": 10 * jnp.exp(now["clip"]),
        "gain": jnp.exp(now["gain"]),
        "decay": 0.1 * now["decay"],
    }


def _adam_portrait(op: Mapping[str, Any]) -> Portrait:
    def panel(name: str) -> Curve:
        def of(optimizer, progress, context):
            (params,) = optimizer.update.args
            done = progress if op.get("temporal") else None
            return _adam(params, op["eps"], done)[name] + 0 * progress

        return Curve(LIFETIME, name, of)

    return Portrait(
        [panel(x) for x in ("gain", "beta1", "beta2", "eps", "decay", "clip")],
        "The step's gain, both decays, the smallest divisor, the decay of weights and "
        "the clip of each number. Times the learning rate.",
    )


@operation(
    "adam_numbers",
    slot="optimizer",
    hand_made="metaevo.optimizers:adam",
    portrait=_adam_portrait,
)
def adam_numbers(eps: float = 1e-5, temporal: bool = False) -> LearnedOptimizer:
    """Adam with its numbers evolved: x = 0 is Adam with β = (0.9, 0.999) and `eps`.

        gain eˣ;   β₁ = 1 − 0.1 eˣ;   β₂ = 1 − 0.001 eˣ;   ε = eps eˣ
        decay 0.1 x, of the weights, times lr, as in AdamW; below 0 they grow
        clip 10 eˣ, of each number of the direction: Adam's own is below 7.3

    β₁ is kept in [0, 0.9999], β₂ in [0, 0.999999]. Bias is corrected by the products of
    the decays.

    Args:
        eps: ε of the hand-made one.
        temporal: True gives each a first and a last x, and a straight line between
            them in `context.progress`: twelve numbers.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.

    References:
        Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101 (AdamW).
    """
    positive(eps=eps)
    names = ("gain", "beta1", "beta2", "eps", "decay", "clip")

    def init(_):
        return {name: jnp.zeros(2 if temporal else ()) for name in names}

    def start(agent):
        zeros = jax.tree.map(jnp.zeros_like, agent)
        return Moments(jnp.ones(2), zeros, zeros)

    def update(params, gradient, state, agent, context: Context | None = None):
        done = functions.progress(context) if temporal else None
        now = _adam(params, eps, done)
        beta1, beta2, most = now["beta1"], now["beta2"], now["clip"]
        forgotten = state.forgotten * jnp.stack([beta1, beta2])
        left1, left2 = 1 - forgotten

        def direction(g, p, mean, square):
            mean = (1 - beta1) * g + beta1 * mean
            square = (1 - beta2) * g**2 + beta2 * square
            step = (mean / left1) / (jnp.sqrt(square / left2) + now["eps"])
            step = now["gain"] * jnp.clip(step, -most, most)
            return step + now["decay"] * p, mean, square

        steps, mean, square = _each(
            direction, gradient, agent, state.mean, state.square
        )
        return steps, Moments(forgotten, mean, square)

    return LearnedOptimizer(init, start, update, starts_hand_made=True)


# --- a recurrent network --------------------------------------------------------------

DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
BETA1, BETA2 = 2, 0.999  # Adam's mean is one of the momenta
LIMIT = 3.0  # of the network's outputs


class RecurrentState(NamedTuple):
    """State of the recurrent optimizer."""

    count: jax.Array  # int32, updates
    seed: jax.Array  # uint32, of the noise
    momenta: PyTree  # [6, ...]
    square: PyTree  # [...]
    hidden: PyTree  # [..., hidden]


@operation(
    "recurrent",
    slot="optimizer",
    hand_made="metaevo.optimizers:adam",
    examples=({}, {"noise": False, "hidden": 4, "features": (8,)}),
)
def recurrent(
    hidden: int = 8,
    features: Sequence[int] = (16, 16),
    step: float = 0.1,
    eps: float = 1e-5,
    noise: bool = True,
    temporal: bool = False,
) -> LearnedOptimizer:
    """A recurrent network over Adam: direction = Adam · eᵉ + step · (m + δ N(0, 1)).

    For each number of the agent a GRU and a tanh network, the same for all, give e, m
    and δ, each kept within ±3; the last layer starts at zero, which is Adam. The GRU
    sees, each divided by its root mean square over the tensor: the number, and sign and
    logarithm of the gradient and of its averages with decays 0.1, 0.5, 0.9, 0.99, 0.999
    and 0.9999; and where the layer lies, from 0 to 1. It takes 8 + `hidden` numbers of
    memory for each of the agent's.

    The noise's key is made of the bits of the agent's first params: members that start
    alike draw alike, and so does the copy of an agent.

    Args:
        hidden: units of the GRU.
        features: hidden layer sizes of the network on top.
        step: the weight of m and δ; Adam's direction is of size 1.
        eps: Adam's ε.
        noise: False leaves out δ.
        temporal: True if the GRU also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.

    References:
        Goldie et al., 2024, https://arxiv.org/abs/2407.07082 (OPEN), which has no Adam
        in it, layer normalization and ReLU, noise for the actor alone, and sees the
        dormancy of neurons and the minibatch's number, which are not inputs here.
    """
    positive(step=step, eps=eps)
    layers([hidden], "hidden")
    width = 3 + 2 * len(DECAYS) + 1 + bool(temporal)
    cell = functions.gru(width, hidden)
    head = functions.network(hidden, features, 2 + noise)
    noisy, extra_inputs = noise, ("layer", "noise")[: 1 + noise]

    def init(key):
        head_key, *keys = jax.random.split(key, 5)
        return {"gru": cell.init(keys), "head": head.init(head_key)}

    def start(agent):
        zeros = jax.tree.map(jnp.zeros_like, agent)
        return RecurrentState(
            jnp.int32(0),
            bits(agent),
            jax.tree.map(lambda x: jnp.zeros((len(DECAYS), *x.shape)), agent),
            zeros,
            jax.tree.map(lambda x: jnp.zeros((*x.shape, hidden)), agent),
        )

    def update(
        params, gradient, state, agent, context: Context | None = None,
        layer: PyTree | None = None, noise: PyTree | None = None,
    ):  # fmt: skip
        if layer is None:
            layer = depths(agent)
        count = state.count + 1
        if noisy and noise is None:
            noise = normal(agent, state.seed, count)
        age = count.astype(jnp.result_type(float))
        time = [functions.progress(context)] if temporal else []

        def direction(g, p, momenta, square, memory, layer, drawn):
            momenta = [
                (1 - d) * g + d * m for d, m in zip(DECAYS, momenta, strict=True)
            ]
            square = (1 - BETA2) * g**2 + BETA2 * square
            mean = momenta[BETA1] / (1 - DECAYS[BETA1] ** age)
            adam = mean / (jnp.sqrt(square / (1 - BETA2**age)) + eps)

            sizes = [f(x) for x in (g, *momenta) for f in (jnp.sign, _log)]
            seen = [_normalized(x) for x in (p, *sizes)]
            x = functions.inputs([*seen, jnp.float32(layer), *time], False, None)
            memory = cell.apply(params["gru"], x, memory)
            out = LIMIT * jnp.tanh(head.apply(params["head"], memory) / LIMIT)
            gain, added, *spread = jnp.unstack(out, axis=-1)
            if noisy:
                added = added + spread[0] * drawn
            towards = adam * jnp.exp(gain) + step * added
            return towards, jnp.stack(momenta), square, memory

        steps, *memory = _each(
            direction, gradient, agent, *state[2:], layer, noise if noisy else layer
        )
        return steps, RecurrentState(count, state.seed, *memory)

    return LearnedOptimizer(
        init, start, update, starts_hand_made=True, extra_inputs=extra_inputs
    )


def _log(x):
    return jnp.log(jnp.abs(x) + 1e-13)


def _normalized(x):
    """By the root mean square over the tensor, which does not overflow."""
    largest = jnp.maximum(jnp.abs(x).max(), 1e-5)
    x = x / largest
    return x / jnp.sqrt((x**2).mean() + 1e-5)


def normal(agent: PyTree, seed: jax.Array, count: jax.Array) -> PyTree:
    """Standard normal numbers like an agent's params, those of one update.

    Args:
        agent: the params.
        seed: uint32, of the agent; see `bits`.
        count: number of the update.
    """
    key = jax.random.fold_in(jax.random.key(seed), count)
    return jax.tree.map(
        lambda p, i: jax.random.normal(jax.random.fold_in(key, i), p.shape),
        agent,
        _places(agent),
    )


def bits(tree: PyTree) -> jax.Array:
    """The sum of all bit patterns of a tree's numbers, uint32."""
    patterns = [
        jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32).sum()
        for x in jax.tree.leaves(tree)
    ]
    return jnp.stack(patterns).sum()


def _places(tree: PyTree) -> PyTree:
    """The number of each leaf."""
    structure = jax.tree.structure(tree)
    return jax.tree.unflatten(structure, range(structure.num_leaves))


def depths(tree: PyTree) -> PyTree:
    """The depth of each leaf's layer in its network, in [0, 1].

    A layer is the dict around the leaf, a network the dict around the layer.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]

    def depth(path):
        beside = [p[:-1] for p in paths if p[:-2] == path[:-2] and len(p) == len(path)]
        order = list(dict.fromkeys(beside))
        return order.index(path[:-1]) / max(len(order) - 1, 1)

    return jax.tree.unflatten(jax.tree.structure(tree), map(depth, paths))
