"""Toy inner loops and strategies that compile in a moment."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import fitness, losses, population, spaces
from metaevo.slots import Context
from metaevo.types import InnerLoop, InnerState, Proposal, Search, Strategy


class Meta(NamedTuple):
    lr: Any = 0.1
    target: Any = 1.0


class Clock(NamedTuple):
    update: jax.Array


def quadratic(
    num_segments=4, dim=3, fail_below=None, breaks_at=-1, first_episode=0
) -> InnerLoop:
    """Gradient descent on |θ − target|², noisy; the return is −|θ − 1|².

    Every second update is noisy, by a cond on the clock. With `fail_below` agents
    whose learning rate is below it get NaN parameters; update `breaks_at` gives them to
    all; before update `first_episode` none ends.
    """

    def init(key, meta):
        del meta
        theta = jax.random.normal(key, (dim,))
        return InnerState(theta, jax.random.key_data(key), (), Clock(jnp.int32(0)))

    def train(key, meta, state):
        noise = jax.random.normal(jax.random.fold_in(key, state.clock.update), (dim,))
        gradient = state.agent - meta.target
        theta = jax.lax.cond(
            state.clock.update % 2 == 0,
            lambda theta: theta - meta.lr * (gradient + 0.1 * noise),
            lambda theta: theta - meta.lr * gradient,
            state.agent,
        )
        if fail_below is not None:
            theta = jnp.where(meta.lr < fail_below, jnp.nan, theta)
        theta = jnp.where(state.clock.update == breaks_at, jnp.nan, theta)
        ended = state.clock.update >= first_episode
        score = jnp.where(ended, -((theta - 1.0) ** 2).sum(), jnp.nan)
        state = InnerState(theta, state.experience, (), Clock(state.clock.update + 1))
        return state, {"return": score, "episodes": ended.astype(jnp.float32)}

    def evaluate(key, meta, state):
        del key, meta
        score = -((state.agent - 1.0) ** 2).sum()
        return {"return": score, "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        return obs, carry

    return InnerLoop(
        Meta(), init, train, evaluate, num_segments, act, frames_per_segment=1
    )


def shared_critic(num_segments=3, dim=2) -> InnerLoop:
    """Members ascend a common critic and push each other apart; coupled.

    The critic is a vector that follows the population's mean.
    """

    def init(key, meta):
        del meta
        weights = jax.random.normal(key, (dim,))
        return InnerState(weights, (), jnp.ones(dim), Clock(jnp.int32(0)))

    def train(key, meta, state):
        del key

        def loss(weights):
            everyone = population.gather(weights).at[population.index()].set(weights)
            return (weights * state.shared).sum() - diversity(everyone)

        weights = state.agent - meta.lr * jax.grad(loss)(state.agent)
        shared = state.shared + 0.1 * population.mean(weights)
        score = -(weights**2).sum()
        clock = Clock(state.clock.update + 1)
        metrics = {"return": score, "episodes": jnp.ones(())}
        return InnerState(weights, (), shared, clock), metrics

    def evaluate(key, meta, state):
        return {"return": -(state.agent**2).sum(), "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        return obs, carry

    return InnerLoop(Meta(), init, train, evaluate, num_segments, act, coupled=True)


def diversity(everyone):
    """log det of a jittered RBF kernel over [P, D]."""
    distance = ((everyone[:, None] - everyone[None]) ** 2).sum(-1)
    kernel = jnp.exp(-distance / 2) + 1e-3 * jnp.eye(len(everyone))
    return jnp.linalg.slogdet(kernel)[1]


def pbt(population_size=4) -> Strategy:
    """Exploit-only population-based training over `lr`: losers copy the best."""

    class State(NamedTuple):
        params: Any
        parents: jax.Array
        fitness: jax.Array

    def init(key):
        lr = jnp.linspace(-2.0, 1.0, population_size)
        parents = jnp.full(population_size, -1)
        return State({"lr": lr}, parents, jnp.zeros(population_size))

    def ask(key, state):
        return Proposal(state.params, state.parents), state

    def tell(key, state, proposal, fitness):
        best = jnp.argmax(fitness)
        loser = jnp.argmin(fitness)
        parents = jnp.arange(population_size).at[loser].set(best)
        params = jax.tree.map(lambda x: x[parents], proposal.params)
        return State(params, parents, fitness)

    def solution(state):
        return jax.tree.map(lambda x: x[jnp.argmax(state.fitness)], state.params)

    return Strategy(init, ask, tell, solution)


def search(strategy, loop=None, **options) -> Search:
    """A search over the toy's learning rate."""
    options = {"num_generations": 3, "fitness": fitness.final_return} | options
    return Search(loop or quadratic(), space(), strategy, **options)


def space():
    return spaces.tune(lr=spaces.log())


def nameless_space():
    """A space whose solutions no artifact can describe."""
    return space()._replace(spec={"lr": {"op": "my_own_invention"}})


class LossMeta(NamedTuple):
    lr: Any = 0.3
    td_loss: Any = losses.td_square


def values(num_segments=3, aim=1.0, dim=16) -> InnerLoop:
    """Values that follow noisy targets of both signs, by the slot `td_loss`.

    The return is −|q − `aim` y|², y the mean targets. So with `aim` below 1 a loss that
    moves values slowly away from zero is better than the square.
    """
    mean = jnp.linspace(-2.0, 2.0, dim)

    def init(key, meta):
        del key, meta
        return InnerState(jnp.zeros(dim), (), (), Clock(jnp.int32(0)))

    def train(key, meta, state):
        noise = jax.random.normal(jax.random.fold_in(key, state.clock.update), (dim,))
        target = mean + 0.5 * noise
        context = Context(state.clock.update / num_segments, target.std())

        def loss(q):
            return meta.td_loss(target - q, q, target, context).sum()

        q = state.agent - meta.lr * jax.grad(loss)(state.agent)
        score = -((q - aim * mean) ** 2).mean()
        metrics = {"return": score, "episodes": jnp.ones(())}
        return InnerState(q, (), (), Clock(state.clock.update + 1)), metrics

    def evaluate(key, meta, state):
        del key, meta
        score = -((state.agent - aim * mean) ** 2).mean()
        return {"return": score, "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        return obs, carry

    return InnerLoop(
        LossMeta(), init, train, evaluate, num_segments, act, frames_per_segment=1
    )
