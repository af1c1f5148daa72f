"""Heads of action values: a value, or a distribution of the return, for each action.

The network has K outputs for each action, and a head says what they are: one value,
probabilities of fixed returns (Bellemare et al., 2017), or quantiles of the return
(Dabney et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from metaevo import losses
from metaevo.errors import ConfigError
from metaevo.rl import q_learning
from metaevo.rl.networks import Network
from metaevo.slots import Context

__all__ = [
    "HEADS",
    "HeadName",
    "ValueHead",
    "categorical",
    "of",
    "project",
    "quantile",
    "scalar",
    "values",
]

TdLoss = Callable[..., jax.Array]


class ValueHead(NamedTuple):
    """A head of action values. *K is an axis of K outputs, and none where K is 1.

    Attributes:
        width: K.
        of_action: `(outputs [..., A, *K], action [...]) -> [..., *K]`.
        values: `outputs [..., *K] -> [...]`, the expected return.
        target: `(next_outputs [..., *K], reward [...], factor [...]) -> [..., *K]`, of
            reward + factor · next return: `factor` is 0 where the episode terminated.
        mean: `target [..., *K] -> [...]`, its expectation.
        loss: `(outputs [..., *K], target [..., *K], td_loss, context) -> [...]`.
    """

    width: int
    of_action: Callable[[jax.Array, jax.Array], jax.Array]
    values: Callable[[jax.Array], jax.Array]
    target: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    mean: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array, TdLoss, Context], jax.Array]


HeadName = Literal["scalar", "categorical", "quantile"]
"""Names of heads in a Config."""

HEADS = get_args(HeadName)


def of(config: Any, td_loss: TdLoss) -> ValueHead:
    """The head of a Config.

    Args:
        config: with `head`, one of `HEADS`, `num_atoms`, `v_min` and `v_max`.
        td_loss: the loss of the algorithm as it is.

    Raises:
        ConfigError: there is no such head, its returns are no range, or it has no use
            for the loss.
    """
    if config.head not in HEADS:
        raise ConfigError(
            f"inner.head={config.head!r}: expected one of {', '.join(HEADS)}"
        )
    if config.head == "scalar":
        return scalar()
    if not config.v_min < config.v_max or config.num_atoms < 2:
        raise ConfigError(
            f"inner.v_min={config.v_min}, inner.v_max={config.v_max}, "
            f"inner.num_atoms={config.num_atoms}: expected v_min < v_max and at least "
            "2 atoms"
        )
    if config.head == "quantile":
        return quantile(config.num_atoms)
    _require_square(td_loss)
    return categorical(config.num_atoms, config.v_min, config.v_max)


def scalar() -> ValueHead:
    """One value, with a loss of the temporal difference: DQN."""

    def loss(q, target, td_loss, context):
        return td_loss(target - q, q, target, context)

    def target(next_value, reward, factor):
        return reward + factor * next_value

    return ValueHead(1, q_learning.of_action, lambda q: q, target, lambda y: y, loss)


def categorical(num_atoms: int, v_min: float, v_max: float) -> ValueHead:
    """Probabilities of K returns from `v_min` to `v_max`: C51.

    Bellemare et al., 2017, https://arxiv.org/abs/1707.06887. Outputs are logits. The
    loss is the cross-entropy to the target, which is projected onto the K returns.

    Raises:
        ConfigError: by `loss`, for another `td_loss` than the default, which would have
            no effect.
    """
    atoms = jnp.linspace(v_min, v_max, num_atoms)

    def values(outputs):
        return (jax.nn.softmax(outputs) * atoms).sum(-1)

    def target(next_outputs, reward, factor):
        returns = reward[..., None] + factor[..., None] * atoms
        return project(jax.nn.softmax(next_outputs), returns, v_min, v_max)

    def loss(outputs, target, td_loss, context):
        del context
        _require_square(td_loss)
        return -(target * jax.nn.log_softmax(outputs)).sum(-1)

    def mean(target):
        return (target * atoms).sum(-1)

    return ValueHead(num_atoms, _of_action, values, target, mean, loss)


def quantile(num_quantiles: int) -> ValueHead:
    """Quantiles of the return at (i + ½) / K: QR-DQN.

    Dabney et al., 2018, https://arxiv.org/abs/1710.10044. With δᵢⱼ = targetⱼ − θᵢ the
    loss is Σᵢ meanⱼ |τᵢ − 1[δᵢⱼ < 0]| td_loss(δᵢⱼ, θᵢ, targetⱼ), where the default
    `td_loss`, the square, stands for `losses.td_huber`: equation 10. (With a square the
    outputs would be expectiles, whose mean is not the expected return.)
    """
    levels = (jnp.arange(num_quantiles) + 0.5) / num_quantiles

    def loss(outputs, target, td_loss, context):
        td_loss = losses.td_huber if _is_default(td_loss) else td_loss
        theta, target = jnp.broadcast_arrays(
            outputs[..., :, None], target[..., None, :]
        )
        td_error = target - theta
        weight = jnp.abs(levels[:, None] - (td_error < 0))
        return (weight * td_loss(td_error, theta, target, context)).mean(-1).sum(-1)

    def target(next_outputs, reward, factor):
        return reward[..., None] + factor[..., None] * next_outputs

    def mean(outputs):
        return outputs.mean(-1)

    return ValueHead(num_quantiles, _of_action, mean, target, mean, loss)


def values(outputs: Network, head: ValueHead) -> Network:
    """The network of action values [..., A] that a network of outputs has."""

    def apply(params, obs, activation=None):
        return head.values(outputs.apply(params, obs, activation))

    return Network(outputs.init, apply)


def project(
    probabilities: jax.Array, returns: jax.Array, v_min: float, v_max: float
) -> jax.Array:
    """A distribution over other returns, as one over K from `v_min` to `v_max`.

    Each probability is shared by the two neighbors of its return, by distance
    (Bellemare et al., 2017, equation 7). Returns beyond the ends count as the ends.

    Args:
        probabilities, returns: [..., K].

    >>> p, returns = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.25, 9.0, 0.0])
    >>> project(p, returns, 0.0, 2.0).tolist()
    [0.375, 0.125, 0.5]
    """
    num_atoms = probabilities.shape[-1]
    place = (jnp.clip(returns, v_min, v_max) - v_min) * (num_atoms - 1)
    place = place / (v_max - v_min)
    # A matrix product: adding to the neighbors by index would be a scatter.
    distance = jnp.abs(place[..., None, :] - jnp.arange(num_atoms)[:, None])
    share = jnp.clip(1.0 - distance, 0.0, 1.0)
    return (share * probabilities[..., None, :]).sum(-1)


def _require_square(td_loss: TdLoss) -> None:
    """Check that a loss is the default, for a categorical head.

    Raises:
        ConfigError: It is another one.
    """
    if not _is_default(td_loss):
        raise ConfigError(
            "inner.head='categorical' has no temporal difference: the slot td_loss "
            "would have no effect; see inner.head=quantile"
        )


def _is_default(td_loss: TdLoss) -> bool:
    return getattr(td_loss, "func", None) is losses.td_square.func


def _of_action(outputs, action):
    """Outputs of the actions taken, [..., A, K] to [..., K]; see `q_learning`."""
    taken = jax.nn.one_hot(action, outputs.shape[-2])
    return (outputs * taken[..., None]).sum(-2)
