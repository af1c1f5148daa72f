"""Distributed algorithms on three equal games, time beside score; ES by shared seeds.

    python -m experiments.distributed.run                        20 minutes on one core

Eight agents with 60,000 frames of CartPole, Catch and Acrobot, networks of 64 and 64
units, four seeds each, nothing tuned for one of them.
Value-based ones have minibatches of 32 transitions and a step size of 5e-4. One line
per agent and game: final return by seed, the mean of the last tenth of training, and
seconds of the four seeds together without compilation. Then one line per number of
workers of shared-seed ES (Salimans et al., 2017, Algorithm 2): the policy and the
population are those of `searches.policy_open_es` with 128 members; a worker trains its
part, receives everybody's scores, and draws all noise again. Workers are simulated:
each part is timed alone, and a message is counted by its bytes. A line that is in the
results is not made again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

import metaevo

metaevo.configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

from benchmarks import measure  # noqa: E402
from inner_loops import a2c, apex, dqn, gorila, impala  # noqa: E402
from metaevo import envs  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Proposal  # noqa: E402
from searches import policy_open_es  # noqa: E402
from strategies.shared_seed_es import shared_seed_es  # noqa: E402

FOLDER = Path(__file__).parent
NUM_SEEDS, FRAMES, SEGMENTS = 4, 60_000, 20
POPULATION, WORKERS = 128, (2, 4, 8, 16, 32, 64)
RANGES = {  # of discounted returns, for Rainbow's distribution
    "gymnax/CartPole-v1": (0.0, 100.0),
    "gymnax/Catch-bsuite": (-1.0, 1.0),
    "gymnax/Acrobot-v1": (-100.0, 0.0),
}
COMMON = {"total_timesteps": FRAMES, "num_segments": SEGMENTS, "features": (64, 64)}
REPLAY = COMMON | {
    "learning_starts": 2_000,
    "buffer_size": 50_000,
    "batch_size": 32,
    "num_envs": 4,
    "target_period": 125,
}
UNIFORM = {"double": False, "dueling": False, "num_step_return": 1}
RAINBOW = {"head": "categorical", "num_atoms": 51, "noisy": True}


def agents(low: float, high: float) -> dict:
    """Name -> (module, sizes, meta)."""
    plain = {"lr": 5e-4, "max_grad_norm": 10.0}
    one = apex.Meta(**plain)._replace(epsilon=dqn.Meta().epsilon, epsilon_exponent=0.0)
    noisy = one._replace(epsilon=0.0, priority_exponent=0.5)
    rainbow = REPLAY | RAINBOW | {"v_min": low, "v_max": high}
    workers = COMMON | {"num_envs": 8, "num_workers": 4, "max_delay": 4}
    learners = REPLAY | {"num_envs": 8, "num_learners": 4, "max_delay": 4}
    return {
        "DQN": (dqn, REPLAY, dqn.Meta(**plain)),
        "prioritized DQN": (apex, REPLAY | UNIFORM, one),
        "Rainbow": (apex, rainbow, noisy),
        "GORILA": (gorila, learners, gorila.Meta(**plain)),
        "Ape-X": (apex, REPLAY | {"num_envs": 16, "target_period": 32}, apex.Meta()),
        "A3C": (a2c, workers, a2c.Meta()),
        "A3C, GRU": (a2c, workers | {"memory": "gru"}, a2c.Meta()),
        "IMPALA": (impala, COMMON | {"num_envs": 8}, impala.Meta()),
    }


def trained(env: str, module, sizes: dict, meta) -> dict:
    """The line of an agent on a game."""
    loop = module.make(envs.make(env), module.Config(**sizes), meta)

    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    state = jax.jit(jax.vmap(loop.init, (0, None)))(keys, meta)
    train = jax.jit(jax.vmap(loop.train, (0, None, 0)))
    began = time.perf_counter()
    program = train.lower(keys, meta, state).compile()
    compiled, curves = time.perf_counter(), []
    for _ in range(SEGMENTS):
        state, found = program(keys, meta, state)
        curves.append(found["return"])
    curves = np.stack(jax.block_until_ready(curves), 1)
    seconds = time.perf_counter() - compiled
    evaluate = jax.jit(jax.vmap(loop.evaluate, (0, None, 0)))
    final = evaluate(jax.random.split(jax.random.key(1), NUM_SEEDS), meta, state)
    final = final["return"]
    last = np.asarray(curves, float)[:, -SEGMENTS // 10 :]
    return {
        "seconds": round(seconds, 1),
        "compilation": round(compiled - began, 1),
        "final": np.round(np.asarray(final, float), 2).tolist(),
        "last_tenth": np.round(np.nanmean(last, 1), 2).tolist(),
    }


def workers_of_es(count: int) -> dict:
    """The line of a number of workers: seconds and bytes of one generation."""
    search = policy_open_es.search()
    optimizer = optax.adam(0.01)
    whole = shared_seed_es(search.space, POPULATION, 0.1, optimizer)
    part = shared_seed_es(search.space, POPULATION // count, 0.1, optimizer)
    state, own = whole.init(jax.random.key(0)), part.init(jax.random.key(0))
    proposal, _ = whole.ask(jax.random.key(1), state)
    mine, _ = part.ask(jax.random.key(1), own)
    evaluator = LocalEvaluator(search, jax.devices()[:1])
    tell = jax.jit(
        lambda state, fitness: whole.tell(
            jax.random.key(2), state, Proposal(proposal.params), fitness
        )
    )
    fitness = jnp.arange(float(POPULATION))

    def timed(run) -> list[float]:
        run()
        found = []
        for _ in range(5):
            began = time.perf_counter()
            jax.block_until_ready(run())
            found.append(time.perf_counter() - began)
        return found

    training = timed(lambda: evaluator(jax.random.key(3), mine, None)[0].fitness)
    noise = timed(lambda: tell(state, fitness))
    dim = int(state.mean.size)
    return {
        "population": POPULATION,
        "numbers_of_a_member": dim,
        "seconds_training": measure.spread(training),
        "seconds_noise": measure.spread(noise),
        "bytes_sent_by_a_worker": 4 * POPULATION // count,
        "bytes_received_by_a_worker": 4 * (POPULATION - POPULATION // count),
        "bytes_of_members_sent": 4 * dim * POPULATION // count,
    }


def main() -> None:
    results = measure.Results("results", keep=True, folder=FOLDER)
    known = {(x["env"], x["agent"]) for x in map(json.loads, results.lines)}
    for env, ends in RANGES.items():
        for name, (module, sizes, meta) in agents(*ends).items():
            if (env, name) not in known:
                line = trained(env, module, sizes, meta)
                results.add(env=env, agent=name, **line)
    for count in WORKERS:
        if ("ES", f"{count} workers") not in known:
            results.add(env="ES", agent=f"{count} workers", **workers_of_es(count))


if __name__ == "__main__":
    main()
