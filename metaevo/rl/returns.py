"""Returns and advantages of one trajectory, [T] or [T, E].

Two masks, never one: `terminated` cuts the bootstrap, `done` (terminated or truncated)
cuts the trace. `next_value[t]` is the value of the true observation that followed step
t, never of a reset's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo.types import PyTree

__all__ = [
    "VTrace",
    "backward",
    "discounted_so_far",
    "generalized_advantage",
    "importance_ratio",
    "lambda_return",
    "n_step_return",
    "n_step_window",
    "next_values",
    "steps_at_once",
    "vtrace",
    "vtrace_weight",
]


def steps_at_once() -> int:
    """Return `unroll` for a scan over a trajectory with few operations a step.

    Each iteration starts kernels on an accelerator, which takes longer than they do.
    """
    return 1 if jax.default_backend() == "cpu" else 16


def backward(step: Callable, last: PyTree, steps: PyTree) -> PyTree:
    """Scan a trajectory from its end; return what `step` gives for each, [T, ...].

    Args:
        step: `(following, at) -> (now, out)`.
        last: what follows the end.
        steps: leaves [T, ...].
    """
    unroll = steps_at_once()
    return jax.lax.scan(step, last, steps, reverse=True, unroll=unroll)[1]


def discounted_so_far(
    reward: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
    before: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the discounted rewards up to each step, Rₜ = rₜ + γ Rₜ₋₁, by episode.

    Args:
        reward: [T, E] float32.
        done: [T, E] bool.
        gamma: in [0, 1].
        before: [E], R before the first step.

    Returns:
        R [E] after the last step, 0 where it was done, and those of all steps [T, E].
    """

    def step(before, at):
        reward, done = at
        discounted = reward + gamma * before
        return jnp.where(done, 0.0, discounted), discounted

    return jax.lax.scan(step, before, (reward, done), unroll=steps_at_once())


def generalized_advantage(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
    gae_lambda: jax.Array | float,
) -> jax.Array:
    """Generalized advantage estimation.

    δₜ = rₜ + γ (1 − terminatedₜ) V(oₜ₊₁) − V(oₜ)
    Aₜ = δₜ + γ λ (1 − doneₜ) Aₜ₊₁

    Args:
        reward, value, next_value: [T, ...] float32.
        terminated, done: [T, ...] bool.
        gamma, gae_lambda: in [0, 1].

    Returns:
        [T, ...] advantages; value targets are `advantage + value`.

    >>> one, end = jnp.ones(2), jnp.array([False, True])
    >>> generalized_advantage(one, 0 * one, 0 * one, end, end, 0.5, 1.0).tolist()
    [1.5, 1.0]

    References:
        Schulman et al., 2016, https://arxiv.org/abs/1506.02438, equation 16.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(done, 0.0, gamma * gae_lambda)

    def step(following, at):
        delta, decay = at
        advantage = delta + decay * following
        return advantage, advantage

    zero = jnp.zeros(delta.shape[1:], delta.dtype)
    return backward(step, zero, (delta, decay))


def next_values(
    value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    seen: PyTree,
    ahead: Callable[[PyTree], jax.Array],
) -> jax.Array:
    """Values of the true next observations of a rollout, [T, E].

    That of step t is `value[t + 1]` where the episode goes on. Only where it was
    truncated, and after the last step, does a critic have to look: at one step of each
    environment at a time, until all are done. Of most rollouts that is once, where
    looking at all steps costs as much as `value` did.

    Args:
        value: [T, E], of the rollout's observations.
        terminated, done: [T, E] bool.
        seen: what `ahead` reads, such as the next observations; leaves [T, E, ...].
        ahead: `seen`, leaves [E, ...], to values [E] of the next observations.

    Returns:
        [T, E]; 0 where the episode terminated.

    >>> value = jnp.array([[1.0], [2.0], [3.0]])
    >>> cut = jnp.array([[True], [False], [False]])
    >>> obs = jnp.array([[10.0], [20.0], [30.0]])
    >>> next_values(value, cut & False, cut, obs, lambda obs: obs + 0.5).tolist()
    [[10.5], [3.0], [30.5]]
    """
    environments = jnp.arange(value.shape[1])
    shifted = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    missing = (done & ~terminated).at[-1].set(True)

    def look(now):
        values, missing = now
        first = missing.argmax(0)
        here = jax.tree.map(lambda x: x[first, environments], seen)
        # An environment with none missing has its first step written as it was.
        found = jnp.where(missing.any(0), ahead(here), values[first, environments])
        values = values.at[first, environments].set(found)
        return values, missing.at[first, environments].set(False)

    once = look((shifted, missing))  # the last step always: outside it costs less
    values, _ = jax.lax.while_loop(lambda now: now[1].any(), look, once)
    return jnp.where(terminated, 0.0, values)


class VTrace(NamedTuple):
    """V-trace of a trajectory; [T, ...] each."""

    error: jax.Array  # of the value: target − value
    advantage: jax.Array  # for the policy's gradient


def vtrace(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
    trace: jax.Array | float,
    rho: jax.Array | float,
    c: jax.Array | float,
    pg_rho: jax.Array | float,
) -> VTrace:
    """V-trace: value targets and advantages of a policy that others' actions tell of.

    δₜ = ρₜ (rₜ + γ (1 − terminatedₜ) V(oₜ₊₁) − V(oₜ))
    eₜ = δₜ + γ λ cₜ (1 − doneₜ) eₜ₊₁
    Aₜ = ρᵖᵍₜ (rₜ + γ (1 − terminatedₜ) V(oₜ₊₁) + γ λ (1 − doneₜ) eₜ₊₁ − V(oₜ))

    The target of V(oₜ) is V(oₜ) + eₜ. Where all weights are 1, e and A are generalized
    advantages.

    Args:
        reward, value, next_value: [T, ...] float32.
        terminated, done: [T, ...] bool.
        gamma, trace: γ and λ, in [0, 1].
        rho, c, pg_rho: the truncated importance weights ρ, c and ρᵖᵍ, each [T, ...] or
            a scalar, >= 0; see `vtrace_weight`. V-trace contracts where c <= ρ <= 1 on
            average.

    References:
        Espeholt et al., 2018, https://arxiv.org/abs/1802.01561, section 4.1.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(done, 0.0, gamma * trace)

    # Weighed outside of the scan: with weights of 1 it is then that of
    # `generalized_advantage`, to the bit.
    def step(following, at):
        delta, decay, weighed, carried = at
        error = weighed + carried * following
        return error, (error, delta + decay * following)

    zero = jnp.zeros(delta.shape[1:], delta.dtype)
    steps = (delta, decay, rho * delta, c * decay)
    error, advantage = backward(step, zero, steps)
    return VTrace(error, pg_rho * advantage)


LARGEST_LOG_RATIO = 20.0
"""Beyond it the ratio of two policies' probabilities grows no more: it stays finite."""


def importance_ratio(log_ratio: jax.Array) -> jax.Array:
    """π(a|o) / μ(a|o) of its logarithm, finite."""
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def vtrace_weight(
    ratio: jax.Array, clip: jax.Array | float, leak: jax.Array | float = 0.0
) -> jax.Array:
    """A truncated importance weight, (1 − leak) min(clip, ratio) + leak ratio.

    Args:
        ratio: π(a|o) / μ(a|o), of the policy that learns to the one that acted.
        clip: > 0.
        leak: in [0, 1]; 0 is V-trace, 1 importance sampling without truncation.

    References:
        Zahavy et al., 2020, https://arxiv.org/abs/2002.12928, equation 11: leaky
        V-trace, with α = 1 − leak.

    >>> vtrace_weight(jnp.array([0.5, 3.0]), 1.0, 0.25).tolist()
    [0.5, 1.5]
    """
    clipped = jnp.minimum(clip, ratio)
    return clipped + leak * (ratio - clipped)


def n_step_return(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
    n: int,
) -> jax.Array:
    """n-step bootstrapped returns.

    Gₜ = Σ_{i<m} γⁱ rₜ₊ᵢ + γᵐ (1 − terminatedₜ₊ₘ₋₁) V(oₜ₊ₘ),  where the window of m ≤ n
    steps stops at the first done step and at the end of the trajectory.

    Args:
        reward, next_value: [T, ...] float32.
        terminated, done: [T, ...] bool.
        gamma: in [0, 1].
        n: static, at least 1.

    Returns:
        [T, ...].
    """
    bootstrap = jnp.where(terminated, 0.0, next_value)
    last = jnp.zeros_like(done).at[-1].set(True)
    stop = done | last
    target = reward + gamma * bootstrap
    returns = target
    for _ in range(n - 1):
        # One more step: r + γ G of the step after, unless the window ends here.
        following = jnp.roll(returns, -1, axis=0)
        returns = jnp.where(stop, target, reward + gamma * following)
    return returns


def lambda_return(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
    trace: jax.Array | float,
) -> jax.Array:
    """λ-returns, with `trace` λ and maxₐ Q(oₜ₊₁, a) as `next_value`: Q(λ).

    Gₜ = rₜ + γ (1 − terminatedₜ) [(1 − cₜ) V(oₜ₊₁) + cₜ Gₜ₊₁],  cₜ = λ (1 − doneₜ),
    and 0 in the last step.

    Args:
        reward, next_value: [T, ...] float32.
        terminated, done: [T, ...] bool.
        gamma, trace: in [0, 1].

    Returns:
        [T, ...].

    References:
        Gallici et al., 2025, https://arxiv.org/abs/2407.04811, equation 6.
    """
    carried = jnp.where(done, 0.0, trace).at[-1].set(0.0)

    def step(following, at):
        reward, next_value, terminated, carried = at
        mixed = next_value + carried * (following - next_value)
        mixed = reward + gamma * jnp.where(terminated, 0.0, mixed)
        return mixed, mixed

    steps = (reward, next_value, terminated, carried)
    return backward(step, jnp.zeros_like(reward[0]), steps)


def n_step_window(
    reward: jax.Array,
    terminated: jax.Array,
    done: jax.Array,
    gamma: jax.Array | float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The n-step return of the first step of a window that an episode's end cuts.

    Args:
        reward: [n, ...] float32.
        terminated, done: [n, ...] bool.
        gamma: in [0, 1].

    >>> n_step_window(jnp.ones(3), *2 * [jnp.array([False, True, False])], 0.5)[0]
    Array(1.5, dtype=float32)

    Returns:
        Σ_{i<m} γⁱ rᵢ, the factor γᵐ (1 − terminated) of the bootstrap, and m − 1, the
        step whose next observation to bootstrap from; all [...].
    """
    total, factor = jnp.zeros_like(reward[0]), jnp.ones_like(reward[0])
    running, last = jnp.ones_like(done[0]), jnp.zeros(done.shape[1:], jnp.int32)
    for i in range(len(reward)):
        total += jnp.where(running, factor * reward[i], 0.0)
        ongoing = gamma * factor * jnp.where(terminated[i], 0.0, 1.0)
        factor = jnp.where(running, ongoing, factor)
        last = jnp.where(running, i, last)
        running &= ~done[i]
    return total, factor, last
