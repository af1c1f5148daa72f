"""SNES on a Gaussian process, for scores that are mostly noise.

The process models all scores that are remembered, so that a member learns from its
neighbours in all generations and not from its own noise alone:

    y = m + f(x) + ε,   f ~ GP(0, s² k(‖(x − x')/ℓ‖)),   ε ~ N(0, n²)

k is Matérn's of 5/2, with one length ℓ per parameter; y are the normal scores of the
ranks, which no scale and no failed member distorts. ℓ, s, n and m are the likeliest
under priors, by some steps of Adam from those of the generation before. The prior of ℓ
grows with √D (Hvarfner et al., 2024, arXiv:2402.02229).

Then the mean and σ take the step of SNES (`strategies.snes`), with V virtual members,
in mirrored pairs, that are not trained: their fitness is the process' mean of f.
Members that train are drawn from the same distribution. Surrogates of evolution
strategies go back to Kern et al., 2006 (doi:10.1007/11844297_95); here members are
never replaced, and it is noise that the surrogate removes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _evosax, _options, _trees

STEPS, RATE = 20, 0.1  # of Adam a generation, over the logarithms
JITTER = 1e-3  # of the variance of scores, for 32 bits


class Process(NamedTuple):
    """A Gaussian process over parameters in units of the first sigma.

    Attributes:
        length: [D] log ℓ.
        signal: log s².
        noise: log n².
        mean: m.
    """

    length: jax.Array
    signal: jax.Array
    noise: jax.Array
    mean: jax.Array


class Data(NamedTuple):
    """Scores to which the process is fitted.

    Attributes:
        x: [N, D] members in units of the first sigma, around the mean.
        y: [N] normal scores.
        valid: [N] which rows count.
    """

    x: jax.Array
    y: jax.Array
    valid: jax.Array


class State(NamedTuple):
    """The distribution, and what is remembered.

    Attributes:
        mean: [D].
        sigma: [D].
        x: [N, D] members, the latest first.
        y: [N] their fitness.
        count: int32, rows that hold a member.
        process: Process.
    """

    mean: jax.Array
    sigma: jax.Array
    x: jax.Array
    y: jax.Array
    count: jax.Array
    process: Process


@remakeable
def gp_snes(
    space: Space,
    population_size: int,
    sigma: float,
    *,
    memory: int = 512,
    num_virtual: int = 512,
) -> Strategy:
    """SNES on a Gaussian process, from the mean `space.init`.

    A generation costs N³ work, N = `memory`: half a second on a core for 512. Use it
    where members cost more than that, up to about a hundred parameters.

    Args:
        population_size: P. Members are not mirrored.
        sigma: initial standard deviation of all parameters, > 0, and the unit of ℓ.
        memory: N >= P, latest members that the process models.
        num_virtual: V, at least 2; rounded down to pairs.

    Raises:
        ConfigError: an option is out of its range.
    """
    _options.at_least(1, population_size=population_size)
    _options.at_least(population_size, memory=memory)
    _options.positive(sigma=sigma)
    _options.at_least(2, num_virtual=num_virtual)
    pairs = num_virtual // 2
    flat, unravel, size = _trees.flattening(space)
    expected, utilities = _expected(size), _utilities(2 * pairs)
    rate = (3 + np.log(size)) / (5 * np.sqrt(size))

    def init(key):
        start = flat(space.init(key)).astype(jnp.float32)
        x, y = jnp.zeros((memory, size)), jnp.zeros(memory)
        return State(
            start, jnp.full(size, sigma, jnp.float32), x, y, jnp.int32(0), expected
        )

    def ask(key, state):
        z = jax.random.normal(key, (population_size, size))
        x = state.mean[None] + state.sigma[None] * z
        return Proposal(jax.vmap(unravel)(x)), state

    def tell(key, state, proposal, fitness):
        def learn():
            added = jax.vmap(flat)(proposal.params).astype(state.x.dtype)
            x = jnp.roll(state.x, population_size, 0).at[:population_size].set(added)
            y = jnp.roll(state.y, population_size).at[:population_size].set(fitness)
            count = jnp.minimum(state.count + population_size, memory)
            valid = jnp.arange(memory) < count
            around = (x - state.mean[None]) / sigma
            data = Data(around, _normal_scores(y, valid), valid)
            process = _likeliest(state.process, expected, data)
            half = jax.random.normal(key, (pairs, size))
            z = jnp.concatenate([half, -half])
            at = state.sigma[None] / sigma * z
            order = jnp.argsort(-_posterior(process, data).mean(at))
            z = z[order]
            mean = state.mean + state.sigma * (utilities @ z)
            grown = jnp.exp(rate / 2 * (utilities @ (z**2 - 1)))
            return State(mean, state.sigma * grown, x, y, count, process)

        # Equal scores say nothing of where to go.
        return _evosax.unless_equal(fitness, learn, state)

    def solution(state):
        return unravel(state.mean)

    def metrics(state):
        signal, noise = jnp.exp(state.process.signal), jnp.exp(state.process.noise)
        return {
            "sigma": state.sigma.mean(),
            "mean_norm": jnp.linalg.norm(state.mean),
            "signal_share": signal / (signal + noise),
        }

    return Strategy(init, ask, tell, solution, metrics, remembers=True)


def _utilities(number: int) -> jax.Array:
    """Return SNES's utilities from the best to the worst of `number`, [number]."""
    raw = np.maximum(0, np.log(number / 2 + 1) - np.log(np.arange(1, number + 1)))
    return jnp.asarray(raw / raw.sum() - 1 / number, jnp.float32)


# --- the Gaussian process -------------------------------------------------------------


class Posterior(NamedTuple):
    """A process that saw data.

    Attributes:
        process: Process.
        data: Data.
        inverse: [N, N] of the Cholesky factor of the covariance of scores.
        weights: [N] so that the mean of f at z is k(z, x) weights.
    """

    process: Process
    data: Data
    inverse: jax.Array
    weights: jax.Array

    def mean(self, at):
        """Return the mean of m + f at points [M, D], [M]."""
        weights = jnp.where(self.data.valid, self.weights, 0.0)
        return self.process.mean + weights @ _kernel(self.data.x, at, self.process)


def _expected(size: int) -> Process:
    """Return the means of the priors for D parameters."""
    length = np.sqrt(2) + np.log(size) / 2 + np.log(4.0)
    zero = jnp.zeros(())
    return Process(jnp.full(size, length, jnp.float32), zero, zero - 0.7, zero)


def _minus_log_prior(process, expected):
    """The priors are normal, and independent."""
    lengths = (process.length - expected.length) ** 2 / (2 * 3.0)
    signal = (process.signal - expected.signal) ** 2 / 2
    noise = (process.noise - expected.noise) ** 2 / (2 * 1.5**2)
    mean = (process.mean - expected.mean) ** 2 / 2
    return lengths.sum() + signal + noise + mean


def _normal_scores(y, valid):
    """Return the normal scores of the ranks of `y` where `valid`, 0 elsewhere."""
    ranks = jax.scipy.stats.rankdata(jnp.where(valid, y, jnp.inf))
    share = (ranks - 0.5) / jnp.maximum(valid.sum(), 1).astype(ranks.dtype)
    return jnp.where(valid, jax.scipy.stats.norm.ppf(jnp.minimum(share, 0.999)), 0.0)


def _kernel(a, b, process):
    """Return the covariance of f at [N, D] and [M, D], [N, M]."""
    scale = jnp.exp(-process.length)[None]
    a, b = a * scale, b * scale
    squared = (a**2).sum(-1)[:, None] + (b**2).sum(-1)[None] - 2 * a @ b.T
    distance = jnp.sqrt(5 * jnp.maximum(squared, 1e-10))
    shape = 1 + distance + distance**2 / 3
    return jnp.exp(process.signal) * shape * jnp.exp(-distance)


def _covariance(process, data: Data):
    """Return the covariance of scores; rows that are not valid are independent."""
    both = data.valid[:, None] & data.valid[None]
    diagonal = jnp.where(data.valid, jnp.exp(process.noise) + JITTER, 1.0)
    covariance = _kernel(data.x, data.x, process)
    return jnp.where(both, covariance, 0.0) + jnp.diag(diagonal)


def _inverse_factor(matrix):
    """Return the inverse of the Cholesky factor, by halves.

    LAPACK's threads wait for each other where another job has a core: 512 rows then
    take 7 seconds for 0.4. Up to 128 rows it takes one thread.
    """
    size = len(matrix)
    if size <= 128:
        factor = jnp.linalg.cholesky(matrix)
        one = jnp.eye(size, dtype=matrix.dtype)
        return jax.scipy.linalg.solve_triangular(factor, one, lower=True)
    half = size // 2
    first = _inverse_factor(matrix[:half, :half])
    below = matrix[half:, :half] @ first.T
    second = _inverse_factor(matrix[half:, half:] - below @ below.T)
    zero = jnp.zeros_like(below).T
    return jnp.block([[first, zero], [-second @ below @ first, second]])


def _posterior(process, data: Data) -> Posterior:
    inverse = _inverse_factor(_covariance(process, data))
    rest = jnp.where(data.valid, data.y - process.mean, 0.0)
    return Posterior(process, data, inverse, inverse.T @ (inverse @ rest))


def _surprise(process, expected, data: Data) -> jax.Array:
    """Return what has the gradient of the posterior of `process`, with a minus.

    That of the likelihood is exact with the inverse held fixed; through a Cholesky
    factor it would be several times the work.
    """
    fixed = jax.lax.stop_gradient(_posterior(process, data))
    inverse = fixed.inverse.T @ fixed.inverse
    weights = fixed.weights[:, None] * fixed.weights[None]
    spread = ((inverse - weights) * _covariance(process, data)).sum() / 2
    mean = jnp.where(data.valid, fixed.weights, 0.0).sum() * process.mean
    return spread - mean + _minus_log_prior(process, expected)


def _likeliest(process, expected, data: Data) -> Process:
    """Return the process after some steps towards the likeliest."""
    adam = optax.adam(RATE)

    def step(carry, _):
        process, state = carry
        slope = jax.grad(_surprise)(process, expected, data)
        updates, state = adam.update(slope, state)
        return (optax.apply_updates(process, updates), state), None

    start = process, adam.init(process)
    found: Any = jax.lax.scan(step, start, None, STEPS)[0][0]
    return found
