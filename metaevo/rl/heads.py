"""Policy heads: from a network's outputs to a distribution over actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import distributions
from metaevo.types import Key

__all__ = [
    "POLICIES",
    "BeforeTanh",
    "Policy",
    "PolicyHead",
    "categorical",
    "normal",
    "of",
    "tanh_normal",
]


class PolicyHead(NamedTuple):
    """A policy head.

    A sample is what the policy drew, whose density is known: the action itself, or what
    an action is computed from.

    Attributes:
        num_outputs: outputs that the network must have.
        init: `() -> parameters` of the head's own, {} if it has none.
        distribution: `(parameters, outputs [..., num_outputs], mask) -> distribution`;
            ignores other entries of `parameters`. `mask` [..., A] has the legal
            actions, None: all.
        noise: `(key, shape) -> noise [*shape, ...]` for `sample`.
        sample: `(distribution, noise) -> sample`, a pytree with leaves [..., *].
        action: `sample -> action` of the environment.
        log_prob: `(distribution, sample) -> [...]`.
        entropy: `(distribution, sample) -> [...]`, or an estimate of it by the noise of
            the sample.
        greedy: `distribution -> action` of the environment, the most likely one.
    """

    num_outputs: int
    init: Callable[[], dict[str, jax.Array]]
    distribution: Callable[[Any, jax.Array, jax.Array | None], Any]
    noise: Callable[[Key, tuple[int, ...]], jax.Array]
    sample: Callable[[Any, jax.Array], Any]
    action: Callable[[Any], jax.Array]
    log_prob: Callable[[Any, Any], jax.Array]
    entropy: Callable[[Any, Any], jax.Array]
    greedy: Callable[[Any], jax.Array]


def of(
    action: envs.Discrete | envs.Box,
    initial_log_std: float = 0.0,
    policy: str = "normal",
) -> PolicyHead:
    """The head for these actions.

    Args:
        initial_log_std: of `normal`.
        policy: of continuous actions, one of `POLICIES`; see `normal`, `tanh_normal`.

    Raises:
        ConfigError: there is no such policy, or it does not fit the actions.

    >>> of(envs.Discrete(3)).num_outputs, of(envs.Box((2,))).init()["log_std"].shape
    (3, (2,))
    """
    if policy not in POLICIES:
        raise ConfigError(
            f"inner.policy={policy!r}: expected one of {', '.join(POLICIES)}"
        )
    if isinstance(action, envs.Discrete):
        if policy != "normal":
            raise ConfigError(f"inner.policy={policy!r} needs continuous actions")
        return categorical(action)
    if policy == "tanh_normal":
        return tanh_normal(action)
    return normal(action, initial_log_std)


Policy = Literal["normal", "tanh_normal"]
"""Names of policies of continuous actions in a Config."""

POLICIES = get_args(Policy)


def categorical(action: envs.Discrete) -> PolicyHead:
    """A categorical distribution over the legal actions."""
    return PolicyHead(
        action.num,
        dict,
        lambda params, outputs, mask: distributions.Categorical(
            distributions.among_legal(outputs, mask)
        ),
        lambda key, shape: distributions.Categorical.noise(key, (*shape, action.num)),
        distributions.Categorical.transform,
        lambda sample: sample,
        distributions.Categorical.log_prob,
        lambda pi, sample: pi.entropy(),
        distributions.Categorical.mode,
    )


def normal(action: envs.Box, initial_log_std: float = 0.0) -> PolicyHead:
    """A normal distribution with deviations that do not depend on the observation.

    Its parameter is `log_std` [A], which starts at `initial_log_std`. The environment
    clips actions to its bounds.
    """
    num = action.shape[0]
    return PolicyHead(
        num,
        lambda: {"log_std": jnp.full(num, initial_log_std)},
        lambda params, outputs, mask: distributions.Normal(outputs, params["log_std"]),
        lambda key, shape: distributions.Normal.noise(key, (*shape, num)),
        distributions.Normal.transform,
        lambda sample: sample,
        distributions.Normal.log_prob,
        lambda pi, sample: pi.entropy(),
        distributions.Normal.mode,
    )


class BeforeTanh(NamedTuple):
    """A sample u of a normal distribution, and the noise that it was made of."""

    u: jax.Array  # [..., A]
    noise: jax.Array  # [..., A]


def tanh_normal(action: envs.Box) -> PolicyHead:
    """tanh of a normal distribution, scaled to the bounds of the actions.

    As in Brax's PPO (Freeman et al., 2021, https://arxiv.org/abs/2106.13281) mean and
    deviation are outputs of the network, σ = softplus(output) + 0.001, densities are
    computed from u before the tanh, so that they are finite, and the entropy is
    estimated by one sample, H(N) + log|d tanh u/du|. Its noise here is that of the
    action taken, in place of fresh one: independent of the state all the same.

    Raises:
        ConfigError: the actions have no bounds.
    """
    num = action.shape[0]
    to_env, _ = envs.unit_box(action)

    def distribution(params, outputs, mask):
        del params, mask
        mean, raw = jnp.split(outputs, 2, -1)
        return distributions.TanhNormal(mean, jnp.log(jax.nn.softplus(raw) + 1e-3))

    return PolicyHead(
        2 * num,
        dict,
        distribution,
        lambda key, shape: distributions.Normal.noise(key, (*shape, num)),
        lambda pi, noise: BeforeTanh(distributions.Normal(*pi).transform(noise), noise),
        lambda sample: to_env(jnp.tanh(sample.u)),
        lambda pi, sample: pi.log_prob_before_tanh(sample.u),
        lambda pi, sample: pi.entropy_by(sample.noise),
        lambda pi: to_env(pi.mode()),
    )
