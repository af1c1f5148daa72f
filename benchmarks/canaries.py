"""Checks, on this machine's versions, of behavior that once broke silently.

    python -m benchmarks.canaries                                   2 minutes

* `insert`: a step of a replay buffer at N and at 2N rows costs the same: nothing copies
  the buffer (jax#40101).
* `conds`: a branch on the clock is still a branch in a population's program.
* `initializer`: orthogonal weights of a population are drawn without a hang.
* `compilations`: three generations compile each program once.

Exits with 1 if one fails.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks import measure  # noqa: E402
from benchmarks.throughput import off_policy  # noqa: E402
from metaevo import envs, fitness  # noqa: E402
from metaevo.analysis import holdout  # noqa: E402
from metaevo.evaluators.lift import lift  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.rl import replay  # noqa: E402
from metaevo.rl.off_policy import template  # noqa: E402
from metaevo.rl.rollouts import Transition  # noqa: E402
from metaevo.types import Proposal, Search  # noqa: E402

# The steps of the buffer that `insert` times.
MEMBERS, ENVS, BATCH, STEPS = 8, 4, 64, 2000
OBS, ACTION = 17, 6

INITIALISE = """
import jax
from metaevo.learned.initializers import orthogonal
keys = jax.random.split(jax.random.key(0), {size})
draw = jax.jit(jax.vmap(lambda key: [orthogonal(1.0)(key, (64, 64))] * 4))
for _ in range(20):
    jax.block_until_ready(draw(keys))
"""


def buffer_steps(num_rows: int) -> Callable[[], object]:
    """Return a compiled call that inserts and samples STEPS times in place."""
    box = envs.Box((ACTION,), -1.0, 1.0)
    # Only its shapes matter.
    env = envs.Env(None, None, None, envs.Box((OBS,)), box, 1)
    buffer = replay.make(template(env), num_rows, ENVS, 1)

    def transitions():
        flag, obs = jnp.zeros((1, ENVS), bool), jnp.ones((1, ENVS, OBS))
        action = jnp.ones((1, ENVS, ACTION))
        return Transition(obs, action, obs[..., 0], obs, flag, flag)

    def member(key, rows, clock):
        rows = buffer.add(rows, clock, transitions())
        batch, _ = buffer.sample(key, rows, clock + 1, clock + 1, (BATCH,))
        # All numbers are used, so that every one of them is sampled.
        return rows, sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(batch))

    def step(state, key):
        rows, clock = state
        keys = jax.random.split(key, MEMBERS)
        rows, out = jax.vmap(member, (0, 0, None))(keys, rows, clock)
        return (rows, clock + 1), out.sum()

    @functools.partial(jax.jit, donate_argnums=0)
    def scan(state, key):
        return jax.lax.scan(step, state, jax.random.split(key, STEPS))

    rows = jax.vmap(lambda _: buffer.start(transitions()))(jnp.arange(MEMBERS))
    holder = [scan((rows, jnp.int32(0)), jax.random.key(0))[0]]

    def run():
        holder[0], out = scan(holder[0], jax.random.key(1))
        jax.block_until_ready((holder[0], out))

    return run


def insert() -> dict:
    rows = (10_000, 20_000)
    programs = {n: buffer_steps(n) for n in rows}
    samples = measure.interleaved(programs, 7)
    once, twice = (samples[n] for n in rows)
    ratio = measure.ratios(twice, once)
    clock = "cpu" if jax.default_backend() == "cpu" else "wall"  # the host only waits
    return {"ratio_of_2n": ratio, "passed": ratio[clock]["median"] < 1.3}


def conds() -> dict:
    loop = off_policy("dqn", 2_000)
    space, auc = holdout.HAND_MADE, fitness.area_under_curve
    lifted = lift(loop, space, auc, 1, False)
    keys, ids = jax.random.split(jax.random.key(0), 1), jnp.arange(3)
    params = holdout.copies(holdout.NOTHING, 3)
    state = jax.eval_shape(lifted.init, keys, ids, params)
    kept = str(jax.make_jaxpr(lifted.run)(keys, ids, params, state)).count("cond[")
    return {"conds": kept, "passed": kept > 0}


def initializer() -> dict:
    hung = 0
    # This process holds most of an accelerator's memory.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for size in (2, 8, 32):
        command = [sys.executable, "-c", INITIALISE.format(size=size)]
        try:
            subprocess.run(command, timeout=120, check=True, env=environment)
        except subprocess.TimeoutExpired:
            hung += 1
    return {"hung": hung, "of": 3, "passed": hung == 0}


def compilations() -> dict:
    loop = off_policy("dqn", 2_000)
    auc = fitness.area_under_curve
    search = Search(loop, holdout.HAND_MADE, None, 3, auc)
    evaluator = LocalEvaluator(search)
    proposal = Proposal(holdout.copies(holdout.NOTHING, 8))
    for i in range(3):
        evaluator(jax.random.key(i), proposal, ())
    counts = {name: p._cache_size() for name, p in evaluator.programs.items()}
    return {"counts": counts, "passed": max(counts.values()) == 1}


def main() -> None:
    results = measure.Results("canaries")
    passed = True
    for check in (insert, conds, initializer, compilations):
        found = check()
        results.add(canary=check.__name__, **found)
        passed &= found["passed"]
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
