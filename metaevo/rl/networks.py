"""Networks of agents, on flax: a torso, hidden layers and a head.

Torso and head are functions of arrays that make their layers where they are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.learned.initializers import orthogonal

__all__ = [
    "MINATAR",
    "NATURE",
    "TORSOS",
    "Filters",
    "Network",
    "Torso",
    "convolution",
    "dueling",
    "flat",
    "linear",
    "mlp",
    "orthogonal",
    "torso",
]

Torso = Literal["mlp", "cnn", "nature"]
"""Names of torsos in a Config."""

TORSOS = get_args(Torso)


class Network(NamedTuple):
    """A network as two pure functions.

    Attributes:
        init: `(key, obs) -> params`.
        apply: `(params, obs [..., *shape], activation=None) -> [..., num_outputs]`; the
            last argument replaces the activation: one that evolves is an argument of a
            program, not a constant in it.
    """

    init: Callable[..., Any]
    apply: Callable[..., jax.Array]


def mlp(
    features: Sequence[int],
    num_outputs: int,
    output_scale: float = 1.0,
    activation: str = "tanh",
    obs_ndim: int = 1,
    layer_norm: bool = False,
    dueling: bool = False,
    torso: Callable | None = None,
    width: int = 1,
) -> Network:
    """A multilayer perceptron over observations, [..., *shape] -> [..., num_outputs].

    Args:
        features: sizes of the hidden layers.
        num_outputs: size of the last, linear layer.
        output_scale: its orthogonal gain: 0.01 for policy heads, 1 for value heads.
        activation: name of a function in `flax.linen`, such as `tanh` or `relu`.
        obs_ndim: number of axes of one observation.
        layer_norm: True normalizes hidden layers before the activation.
        dueling: True for the head `dueling`, else `linear`.
        torso: what comes before the hidden layers; None: `flat(obs_ndim)`.
        width: K > 1 gives [..., num_outputs, K].
    """
    head = _dueling if dueling else linear
    module = _Composed(
        torso or flat(obs_ndim),
        tuple(features),
        _layer_norm if layer_norm else _identity,
        head(num_outputs, output_scale, width),
        activation,
    )
    return Network(module.init, cast(Callable[..., jax.Array], module.apply))


class _Composed(nn.Module):
    torso: Callable
    features: Sequence[int]
    normalize: Callable
    head: Callable
    activation: str

    @nn.compact
    def __call__(self, obs: jax.Array, activation: Callable | None = None) -> jax.Array:
        nonlinear = activation or getattr(nn, self.activation)
        x = self.torso(obs, nonlinear)
        for size in self.features:
            x = nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)))(x)
            x = nonlinear(self.normalize(x))
        return self.head(x)


def _identity(x: jax.Array) -> jax.Array:
    return x


def _layer_norm(x: jax.Array) -> jax.Array:
    return nn.LayerNorm()(x)


# --- torsos ---------------------------------------------------------------------------


def torso(name: str, observation: envs.Box) -> Callable:
    """The torso of a Config for these observations.

    Args:
        name: one of `TORSOS`: `mlp` flattens; `cnn` and `nature` are `convolution` of
            `MINATAR` and of `NATURE`.

    Returns:
        `(obs [..., *shape], nonlinear) -> [..., n]`.

    Raises:
        ConfigError: there is no such torso, or it does not fit the observations.
    """
    if name not in TORSOS:
        raise ConfigError(f"inner.torso={name!r}: expected one of {', '.join(TORSOS)}")
    if name == "mlp":
        return flat(len(observation.shape))
    layers = MINATAR if name == "cnn" else NATURE
    least = _least(layers)
    if len(observation.shape) != 3 or min(observation.shape[:2]) < least:
        raise ConfigError(
            f"inner.torso={name!r} needs observations [height, width, channels] of at "
            f"least {least} x {least}, not {list(observation.shape)}; see mlp"
        )
    return convolution(layers)


def flat(obs_ndim: int) -> Callable:
    """The torso that flattens observations of `obs_ndim` axes."""

    def flatten(obs, nonlinear):
        del nonlinear
        return obs.reshape((*obs.shape[: obs.ndim - obs_ndim], -1))

    return flatten


class Filters(NamedTuple):
    """A layer of convolutions, without padding.

    Attributes:
        channels: number of filters.
        kernel: their height and width.
        stride: of both axes.
    """

    channels: int
    kernel: int
    stride: int = 1


MINATAR = (Filters(16, 3),)
"""Before a dense layer of 128 (Young and Tian, 2019, https://arxiv.org/abs/1903.03176)."""

NATURE = (Filters(32, 8, 4), Filters(64, 4, 2), Filters(64, 3))
"""Of 84 x 84 pixels, before a dense layer of 512 (Mnih et al., 2015)."""


def convolution(layers: Sequence[Filters] = MINATAR) -> Callable:
    """The torso of convolutions of images, [..., H, W, C] -> [..., n].

    Images are not scaled: pixels come in [0, 1].
    """

    def convolve(obs, nonlinear):
        x, scale = obs, orthogonal(math.sqrt(2))
        for i, (channels, kernel, stride) in enumerate(layers):
            layer = nn.Dense(channels, kernel_init=scale, name=f"Conv_{i}")
            x = nonlinear(layer(_patches(x, kernel, stride).astype(jnp.float32)))
        return x.reshape((*x.shape[:-3], -1))

    return convolve


def _patches(x: jax.Array, kernel: int, stride: int) -> jax.Array:
    """Patches of images, [..., H, W, C] -> [..., H', W', kernel · kernel · C].

    A matrix product follows. XLA's convolution, which gives the same numbers, takes 1.2
    to 1.6 times as long on CPU under vmap, with weights per member.
    """
    rows, columns = (n - kernel + 1 for n in x.shape[-3:-1])
    patches = [
        x[..., i : i + rows : stride, j : j + columns : stride, :]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return jnp.concatenate(patches, -1)


def _least(layers: Sequence[Filters]) -> int:
    """Height and width of the smallest images that give an output."""
    size = 1
    for layer in reversed(layers):
        size = (size - 1) * layer.stride + layer.kernel
    return size


# --- heads ----------------------------------------------------------------------------


def linear(num_outputs: int, scale: float, width: int = 1) -> Callable:
    """The head of one linear layer with an orthogonal gain of `scale`.

    With a width of K > 1 it gives [..., num_outputs, K].
    """

    def head(x):
        out = nn.Dense(num_outputs * width, kernel_init=orthogonal(scale))(x)
        return out if width == 1 else out.reshape(*out.shape[:-1], num_outputs, width)

    return head


def dueling(num_outputs: int, scale: float, width: int = 1) -> Callable:
    """The head of a value plus advantages of mean zero (Wang et al., 2016, equation 9).

    Wang et al.: https://arxiv.org/abs/1511.06581. With a width of K > 1 it gives
    [..., num_outputs, K], each of K values with advantages of its own.
    """
    advantages = linear(num_outputs, scale, width)

    def head(x):
        out = advantages(x)
        value = nn.Dense(width, kernel_init=orthogonal(scale))(x)
        if width == 1:
            return value + out - out.mean(-1, keepdims=True)
        return value[..., None, :] + out - out.mean(-2, keepdims=True)

    return head


_dueling = dueling  # `mlp` has an argument of this name
