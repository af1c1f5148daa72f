"""Networks of agents, on flax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax

from metaevo.learned.initializers import orthogonal

__all__ = ["MLP", "Network", "mlp", "orthogonal"]


class Network(NamedTuple):
    """A network as two pure functions.

    Attributes:
        init: `(key, obs) -> params`.
        apply: `(params, obs [..., *shape], activation=None) -> [..., num_outputs]`.
    """

    init: Callable[..., Any]
    apply: Callable[..., jax.Array]


def mlp(*args: Any, **options: Any) -> Network:
    """An `MLP` with these settings."""
    module = MLP(*args, **options)
    return Network(module.init, cast(Callable[..., jax.Array], module.apply))


class MLP(nn.Module):
    """Multilayer perceptron over a flattened observation, [..., *shape] -> [..., out].

    A second argument replaces the activation: one that evolves is an argument of a
    program, not a constant in it.

    Attributes:
        features: sizes of the hidden layers.
        num_outputs: size of the last, linear layer.
        output_scale: its orthogonal gain: 0.01 for policy heads, 1 for value heads.
        activation: name of a function in `flax.linen`, such as `tanh` or `relu`.
        obs_ndim: number of axes of one observation.
        layer_norm: True normalizes hidden layers before the activation.
        dueling: True for outputs that are a value plus advantages of mean zero (Wang
            et al., 2016, equation 9).
    """

    features: Sequence[int]
    num_outputs: int
    output_scale: float = 1.0
    activation: str = "tanh"
    obs_ndim: int = 1
    layer_norm: bool = False
    dueling: bool = False

    @nn.compact
    def __call__(self, obs: jax.Array, activation: Callable | None = None) -> jax.Array:
        nonlinear = activation or getattr(nn, self.activation)
        x = obs.reshape((*obs.shape[: obs.ndim - self.obs_ndim], -1))
        for size in self.features:
            x = nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)))(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = nonlinear(x)
        head = orthogonal(self.output_scale)
        out = nn.Dense(self.num_outputs, kernel_init=head)(x)
        if not self.dueling:
            return out
        return nn.Dense(1, kernel_init=head)(x) + out - out.mean(-1, keepdims=True)
