"""Noisy networks: parameters with noise whose scale is learned, for exploration.

Fortunato et al., 2018, https://arxiv.org/abs/1706.10295, with factorized noise. The
noise is drawn into the parameters, so acting, losses and targets are those of any
network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.rl.networks import Network
from metaevo.types import Key

__all__ = ["NOISY", "PLAIN", "Parameters", "noisy", "quiet", "redrawn"]

START = 0.5  # σ₀ of the paper


def noisy(network: Network) -> Network:
    """The network with noise on its dense layers; a convolution has none.

    Of a layer with p inputs, kernel and bias are μ + σ ε, with ε = f(ε_in) f(ε_out) of
    the kernel, f(ε_out) of the bias and f(x) = sign(x) √|x|. σ starts at 0.5 / √p.

    Returns:
        a network with parameters {"mean", "scale", "noise"}: those of `network`, σ, and
        (f(ε_in), f(ε_out)) by layer. The noise is zero until `redrawn`, and no gradient
        goes through it.
    """

    def init(key, obs):
        mean = network.init(key, obs)
        layers = _dense(mean)
        scale = {
            name: jax.tree.map(
                lambda x, p=len(layer["kernel"]): jnp.full_like(
                    x, START / math.sqrt(p)
                ),
                layer,
            )
            for name, layer in layers.items()
        }
        noise = {
            name: tuple(map(jnp.zeros, layer["kernel"].shape))
            for name, layer in layers.items()
        }
        return {"mean": mean, "scale": scale, "noise": noise}

    def apply(params, obs, activation=None):
        layers = dict(params["mean"]["params"])
        for name, (of_inputs, of_outputs) in params["noise"].items():
            mean, scale = layers[name], params["scale"][name]
            of_inputs, of_outputs = map(jax.lax.stop_gradient, (of_inputs, of_outputs))
            noise = {"kernel": jnp.outer(of_inputs, of_outputs), "bias": of_outputs}
            layers[name] = jax.tree.map(
                lambda mean, scale, noise: mean + scale * noise, mean, scale, noise
            )
        return network.apply({"params": layers}, obs, activation)

    return Network(init, apply)


def redrawn(key: Key, params: Any) -> Any:
    """Parameters of a `noisy` network with fresh noise."""
    leaves, tree = jax.tree.flatten(params["noise"])
    keys = jax.random.split(key, len(leaves))

    def one(key, leaf):
        normal = jax.random.normal(key, leaf.shape)
        return jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))

    drawn = [one(key, leaf) for key, leaf in zip(keys, leaves, strict=True)]
    return params | {"noise": jax.tree.unflatten(tree, drawn)}


def quiet(params: Any) -> Any:
    """Parameters of a `noisy` network without noise."""
    return params | {"noise": jax.tree.map(jnp.zeros_like, params["noise"])}


class Parameters(NamedTuple):
    """Parameters with or without noise.

    Attributes:
        network: `Network -> Network` with such parameters.
        redrawn: `(key, params) -> params` with fresh noise.
        quiet: `params -> params` without noise.
        of_each: `(apply, keys [E], params) -> apply` of `obs` [E, ...], where each
            environment has noise of its own.
    """

    network: Callable[[Network], Network]
    redrawn: Callable[[Key, Any], Any]
    quiet: Callable[[Any], Any]
    of_each: Callable[..., Callable[[jax.Array], jax.Array]]


def _with_noise(apply, keys, params):
    copies = jax.vmap(redrawn, (0, None))(keys, params)
    return lambda obs: jax.vmap(apply)(copies, obs)


def _without(apply, keys, params):
    del keys
    return lambda obs: apply(params, obs)


PLAIN = Parameters(
    lambda network: network, lambda key, params: params, lambda x: x, _without
)
NOISY = Parameters(noisy, redrawn, quiet, _with_noise)


def _dense(params: Any) -> dict[str, Any]:
    layers = params["params"]
    return {name: layers[name] for name in layers if name.startswith("Dense")}
