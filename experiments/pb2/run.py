"""Where PB2's losers explore: problems whose best numbers lie inside their ranges.

    python -m experiments.pb2.run > experiments/pb2/results.jsonl

No training: an agent's fitness grows in each generation by what its numbers x give,

    quadratic  1 − 2.5 ‖x − x*‖²,   bump  exp(−‖x − x*‖² / (2 · 0.2²)),

with x* = 0.3 and 0.7 by turns and 1 the most. One JSON line per problem and strategy:
the mean gain of the numbers that losers chose, in the second half of 24 generations of
8 members, and its standard error over 8 keys. `uniform` draws them from the prior; the
control `z-scores` standardizes the fitness before and has Ray Tune's β, which together
leave the process ignorant of where members are, so that it goes to corners.
"""

import functools
import json
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.types import Strategy
from strategies import pb2 as module
from strategies.pb2 import pb2
from strategies.pbt import pbt

SIZE, GENERATIONS, KEYS = 8, 24, 8


def quadratic(x: jax.Array) -> jax.Array:
    """Of [P, D]: [P]."""
    return 1 - 2.5 * ((x - best(x.shape[1])) ** 2).sum(1)


def bump(x: jax.Array) -> jax.Array:
    """Of [P, D]: [P]."""
    return jnp.exp(-((x - best(x.shape[1])) ** 2).sum(1) / (2 * 0.2**2))


def best(dim: int) -> np.ndarray:
    """The best numbers, [D]."""
    return np.where(np.arange(dim) % 2, 0.7, 0.3).astype(np.float32)


def box(dim: int) -> spaces.Space:
    """A prior of `dim` numbers in [0, 1]."""
    return spaces.prior(**{f"n{i}": spaces.uniform(0.0, 1.0) for i in range(dim)})


def explored(
    strategy: Strategy, gain: Callable, generations: int, keys: int
) -> np.ndarray:
    """Mean gain of what losers choose in the second half of the generations, [keys]."""
    ask, tell = jax.jit(strategy.ask), jax.jit(strategy.tell)
    found = []
    for seed in range(keys):
        key = jax.random.key(seed)
        state, score, gains = strategy.init(key), None, []
        for i in range(generations):
            proposal, state = ask(jax.random.fold_in(key, 2 * i), state)
            gained = gain(jnp.stack(list(proposal.params.values()), 1))
            score = gained if score is None else score[proposal.parents] + gained
            state = tell(jax.random.fold_in(key, 2 * i + 1), state, proposal, score)
            moved = np.asarray(state.parents) != np.arange(len(score))
            chosen = gain(jnp.stack(list(state.params.values()), 1))
            if i >= generations // 2:
                gains.append(np.asarray(chosen)[moved].mean())
        found.append(np.mean(gains))
    return np.array(found)


def z_scores(x, valid, new):
    """The control's scale of the fitness before."""
    return module._standardized(x, valid, x), module._standardized(x, valid, new)


def beta_of_ray(count):
    """The control's β."""
    return module.C1 + jnp.maximum(0.0, jnp.log(module.C2 * count))


PROBLEMS = {"quadratic": (quadratic, 2), "bump 1": (bump, 1), "bump 4": (bump, 4)}
STRATEGIES = {
    "pb2": pb2,
    "z-scores": pb2,
    "uniform": functools.partial(pbt, resample=1.0),
    "pbt": pbt,
}


def main() -> None:
    """Print one line per problem and strategy."""
    for problem, (gain, dim) in PROBLEMS.items():
        for name, make in STRATEGIES.items():
            control = mock.patch.multiple(module, _in_unit=z_scores, _beta=beta_of_ray)
            with control if name == "z-scores" else mock.MagicMock():
                gains = explored(make(box(dim), SIZE), gain, GENERATIONS, KEYS)
            record = {"problem": problem, "dim": dim, "strategy": name}
            error = gains.std(ddof=1) / len(gains) ** 0.5
            record |= {"gain": round(float(gains.mean()), 3)}
            print(json.dumps(record | {"standard_error": round(float(error), 3)}))


if __name__ == "__main__":
    main()
