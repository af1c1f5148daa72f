"""The problem of Figure 2 of the PBT paper, as an inner loop."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.slots import Context, Slot, value
from metaevo.types import InnerLoop, InnerState


class Meta(NamedTuple):
    """The weights of the surrogate."""

    h0: Slot = 1.0
    h1: Slot = 1.0


START = {"h0": np.array([1, 0], np.float32), "h1": np.array([0, 1], np.float32)}
"""The two agents' numbers at first."""


class Agent(NamedTuple):
    age: jax.Array  # int32, segments
    theta: jax.Array  # [2]


def make(num_segments: int = 50, num_steps: int = 4, lr: float = 0.02) -> InnerLoop:
    """θ ∈ ℝ² climbs Q̂(θ) = 1.2 − h·θ², and scores Q(θ) = 1.2 − |θ|²; from (0.9, 0.9).

    An agent that knows only h = (1, 0) or (0, 1) ends at Q = 0.39; both together reach
    1.2 (Jaderberg et al., 2017, section 4.1.1).
    """

    def init(key, meta):
        del key, meta
        return InnerState(Agent(jnp.int32(0), jnp.full(2, 0.9)), ())

    def quality(theta):
        return 1.2 - (theta**2).sum()

    def train(key, meta, state):
        del key
        age, theta = state.agent
        context = Context(progress=age / num_segments)
        h = [jnp.asarray(value(slot, context)) for slot in meta]
        theta = theta * (1 - 2 * lr * jnp.stack(h)) ** num_steps
        state = state._replace(agent=Agent(age + 1, theta))
        places = {"theta0": theta[0], "theta1": theta[1]}
        return state, {"return": quality(theta), "episodes": jnp.ones(()), **places}

    def evaluate(key, meta, state):
        del key, meta
        return {"return": quality(state.agent.theta), "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, obs, state, mask
        return agent, carry

    return InnerLoop(Meta(), init, train, evaluate, num_segments, act)


def wander(noise: float) -> Callable:
    """h + N(0, noise²), within [0, 1]."""

    def explore(key, params):
        moved = noise * jax.random.normal(key, (2,))
        h0, h1 = jnp.clip(jnp.stack([params["h0"], params["h1"]]) + moved, 0.0, 1.0)
        return {"h0": h0, "h1": h1}

    return explore
