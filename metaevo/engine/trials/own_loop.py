"""An inner loop of metaevo as the trainer of `metaevo.optimize`.

Its trials are then processes, on one machine or on the hosts of a Ray cluster, and
`Halving` stops them as they arrive. Each trial starts JAX anew, so where lives are
short, `strategies.asha`, which trains a population in one program, is faster.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.engine.trials.trial import Trial
from metaevo.errors import ConfigError
from metaevo.evaluators.devices import configure
from metaevo.population import all_finite
from metaevo.storage.checkpoint import Store, from_arrays
from metaevo.types import InnerLoop

__all__ = ["train_trial"]


def train_trial(inner_loop: InnerLoop, trial: Trial) -> float:
    """Train an inner loop for one trial of `metaevo.optimize`.

    It continues the agent, its environments and its buffer from `trial.parent`, and
    leaves them in `trial.folder`. Call it in the function that is the trainer:

        def score(trial):
            loop = ppo.make(envs.make("gymnax/CartPole-v1"), ppo.Config(100_000))
            return metaevo.train_trial(loop, trial)

    Args:
        inner_loop: loop, not coupled. Its slots take the numbers of `trial.params`;
            those that are None stay as they are.
        trial: trial, whose budget is a number of segments; None: a whole life.

    Returns:
        the mean return of fresh episodes under the deterministic policy; NaN if a
        number of the agent is not finite.

    Raises:
        ConfigError: the loop is coupled or lacks a slot; a slot is no number; or the
            segments of the trial and of those that it continues are more than a life's.
        CheckpointError: what the parent left is damaged, or of another loop.
    """
    configure(num_cpu_devices=1)
    if inner_loop.coupled:
        raise ConfigError("train_trial: a coupled loop trains a population")
    numbers = {name: x for name, x in trial.params.items() if x is not None}
    for name, value in numbers.items():
        if name not in inner_loop.meta._fields or callable(value):
            raise ConfigError(
                f"{name}: expected numbers of the loop's slots, "
                f"{', '.join(inner_loop.meta._fields)}; functions evolve in a Search"
            )
    life = inner_loop.num_segments
    segments = life if trial.budget is None else trial.budget
    key = jax.random.key(trial.seed)
    roles = [jax.random.fold_in(key, i) for i in range(3)]

    def bound(numbers):
        return slots.replace(inner_loop.meta, **numbers)

    def init(key, numbers):
        return inner_loop.init(key, bound(numbers))

    @jax.jit
    def train(key, numbers, state):
        return inner_loop.train(key, bound(numbers), state)[0]

    @jax.jit
    def evaluate(key, numbers, state):
        metrics = inner_loop.evaluate(key, bound(numbers), state)
        return metrics["return"], all_finite(state.agent)

    numbers = {name: jnp.float32(x) for name, x in numbers.items()}
    done, state = 0, None
    if trial.parent is not None and (found := Store(trial.parent).load()):
        arrays, manifest = found
        done = manifest["segments"]
        state = from_arrays(jax.eval_shape(init, roles[0], numbers), arrays)
    if segments != int(segments) or not 0 < segments <= life - done:
        raise ConfigError(
            f"budget={segments}: expected a number of segments, at least 1; {done} of "
            f"the {life} of a life are done"
        )
    if state is None:
        state = jax.jit(init)(roles[0], numbers)
    for _ in range(int(segments)):
        state = train(roles[1], numbers, state)
    score, finite = evaluate(roles[2], numbers, state)
    about: dict[str, Any] = {"segments": done + int(segments)}
    Store(trial.folder).save(about["segments"], state, about)
    return float(score) if finite else math.nan
