"""Networks of agents, on flax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax

from metaevo.learned.initializers import orthogonal

__all__ = ["MLP", "orthogonal"]


class MLP(nn.Module):
    """Multilayer perceptron over a flattened observation, [..., *shape] -> [..., out].

    Applied with a second argument, that is the activation: one that evolves, which is
    an argument of a program and no constant in it.

    Attributes:
        features: sizes of the hidden layers.
        num_outputs: size of the last, linear layer.
        output_scale: its orthogonal gain: 0.01 for policy heads, 1 for value heads.
        activation: name of a function in `flax.linen`, such as `tanh` or `relu`.
        obs_ndim: number of axes of one observation.
        layer_norm: whether hidden layers are normalized before the activation.
        dueling: whether outputs are a value plus advantages of mean zero (Wang et al.,
            2016, equation 9).
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
        activation = activation or getattr(nn, self.activation)
        x = obs.reshape((*obs.shape[: obs.ndim - self.obs_ndim], -1))
        for size in self.features:
            x = nn.Dense(size, kernel_init=orthogonal(math.sqrt(2)))(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = activation(x)
        head = orthogonal(self.output_scale)
        out = nn.Dense(self.num_outputs, kernel_init=head)(x)
        if not self.dueling:
            return out
        return nn.Dense(1, kernel_init=head)(x) + out - out.mean(-1, keepdims=True)
