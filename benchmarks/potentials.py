"""A potential evolved for PPO on MountainCar, in agents in which it did not evolve.

    for s in 0 1 2 3 4; do
        python -m searches.ppo_reward_potential run.seed=$s run.directory=runs/phi$s
    done
    python -m benchmarks.potentials runs/phi0 runs/phi1 runs/phi2 runs/phi3 runs/phi4

Agents: PPO at three step sizes, DQN, PQN, and the independent PPO and DQN. Rivals of
the evolved potentials: none; five random networks of the same family, whose numbers
have the sizes of the evolved ones'; and a hand-made potential, the car's height. All
returns are of the task's own reward. A line that is in the results is not made again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import dqn, ppo, pqn
from metaevo import envs, fitness, slots, spaces
from metaevo.analysis import differences, holdout
from metaevo.analysis.independent import judge
from metaevo.evaluators.local import LocalEvaluator
from metaevo.learned import operations
from metaevo.storage import artifacts
from metaevo.types import InnerLoop, Params, Search
from searches import ppo_reward_potential

MOUNTAIN_CAR = "gymnax/MountainCar-v0"
NUM_SEEDS, NUM_RANDOM, FRAMES = 16, 5, 131_072
MEASURES = ("lifetime", "final_return")


def height(obs, action, reward, next_obs, terminated, context):
    """The reward with the car's height as a potential, as large as the evolved ones."""
    del action

    def potential(obs):
        return 30.0 * jnp.sin(3 * obs[0])

    after = jnp.where(terminated, 0.0, potential(next_obs))
    return reward + context.stats["gamma"] * after - potential(obs)


def _ppo(lr: float) -> Callable[[Any], InnerLoop]:
    config = ppo.Config(FRAMES, 16, normalize_observation=True, features=(32, 32))
    return lambda env: ppo.make(env, config, ppo.Meta(lr=lr))


AGENTS: dict[str, Callable[[Any], InnerLoop]] = {
    "ppo 1e-3": _ppo(1e-3),
    "ppo 3e-3": _ppo(3e-3),
    "ppo 1e-2": _ppo(1e-2),
    "dqn": lambda env: dqn.make(env, dqn.Config(FRAMES), dqn.Meta()),
    "pqn": lambda env: pqn.make(env, pqn.Config(FRAMES), pqn.Meta()),
}
INDEPENDENT = tuple(judge.AGENTS)


def trained(agent: str, members: Mapping[str, Params], space) -> dict[str, Any]:
    """Scores of an agent of ours with each member's reward, and with the height's."""
    env = envs.make(MOUNTAIN_CAR)
    loop = AGENTS[agent](env)
    search = ppo_reward_potential.search()
    search = search._replace(inner_loop=loop, fitness=fitness.area_under_curve)
    found = _held_out(search._replace(space=space), members)
    by_hand = search._replace(space=holdout.fixed({"reward": slots.function(height)}))
    return found | _held_out(by_hand, {"height": holdout.NOTHING})


def _held_out(search: Search, members: Mapping[str, Params]) -> dict[str, Any]:
    key = jax.random.key(0)
    runs, _ = holdout.train(
        search, search.space, members, key, NUM_SEEDS, LocalEvaluator
    )
    return {
        name: {"lifetime": x.fitness[0], "final_return": x.final_return[0]}
        for name, x in runs.items()
    }


def judged(agent: str, members: Mapping[str, Params], reward) -> dict[str, Any]:
    """Scores of an independent agent at its middle step size."""
    env = envs.make(MOUNTAIN_CAR)
    lr = judge.AGENTS[agent].STEP_SIZES[1:2]
    rewards = {name: reward.bind(params) for name, params in members.items()}
    rewards["height"] = slots.function(height)
    found = {}
    for name, function in rewards.items():
        functions = {"reward": function}
        x = judge.scores(agent, env, functions, jax.random.key(0), NUM_SEEDS, lr)
        found[name] = {"lifetime": x.lifetime[0], "final_return": x.final_return[0]}
    return found


def main(directories: list[str]) -> None:
    if not directories:
        sys.exit("expected the directories of finished searches")
    metaevo.configure()
    evolved = [artifacts.params(Path(x)) for x in directories]
    op = metaevo.load(directories[0]).manifest["slots"]["reward"]
    reward = operations.get(op["op"]).rebuild(op)
    space = spaces.replace(reward=reward)
    none = jax.tree.map(jnp.zeros_like, evolved[0])
    size = jax.tree.map(lambda *x: np.sqrt(np.mean(np.square(x))), *evolved)
    members = {"none": none}
    members |= {f"evolved {i}": x for i, x in enumerate(evolved)}
    for i in range(NUM_RANDOM):
        keys = iter(jax.random.split(jax.random.key(i), 99))
        draw = partial(_normal, keys)
        members[f"random {i}"] = jax.tree.map(draw, evolved[0], size)
    results = Results("potentials", keep=True)
    done = {json.loads(line)["agent"] for line in results.lines}
    for agent in (*AGENTS, *(f"independent {x}" for x in INDEPENDENT)):
        if agent in done:
            continue
        if agent in AGENTS:
            found = trained(agent, members, space)
        else:
            found = judged(
                agent.removeprefix("independent "),
                {name: x["reward"] for name, x in members.items()},
                reward,
            )
        for measure in MEASURES:
            table = {
                group: np.stack(
                    [
                        np.asarray(x[measure], float)
                        for name, x in found.items()
                        if name.split()[0] == group
                    ]
                )
                for group in ("none", "evolved", "random", "height")
            }
            rivals = {}
            for rival in ("none", "random", "height"):
                searched = (True, rival == "random")
                x = differences.crossed_difference(
                    table["evolved"], table[rival], searched
                )
                rivals[rival] = [round(y, 2) for y in (x.difference, x.low, x.high)]
            results.add(
                agent=agent,
                measure=measure,
                env=MOUNTAIN_CAR,
                seeds=NUM_SEEDS,
                mean={k: round(float(x.mean()), 2) for k, x in table.items()},
                each={k: x.mean(1).round(2).tolist() for k, x in table.items()},
                failed=int(sum((~np.isfinite(x)).sum() for x in table.values())),
                evolved_against=rivals,
            )


def _normal(keys, leaf, size):
    return size * jax.random.normal(next(keys), np.shape(leaf))


if __name__ == "__main__":
    main(sys.argv[1:])
