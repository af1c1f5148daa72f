"""A potential evolved for PPO on MountainCar, in agents in which it did not evolve.

    for s in 0 1 2 3 4; do
        python -m searches.ppo_reward_potential run.seed=$s run.directory=runs/phi$s
    done
    python -m benchmarks.potentials runs/phi0 runs/phi1 runs/phi2 runs/phi3 runs/phi4

Agents: PPO at three step sizes, DQN, PQN, and the independent PPO and DQN. Rivals of
the evolved potentials: none; five random networks of the same family, whose numbers
have the sizes of the evolved ones'; and a hand-made potential, the car's height. All
returns are of the task's own reward. Lines hold scores by group, function and seed; one
that is in the results is not made again.

Only PPO scales its observations, and MountainCar's speeds are below 0.07. So the others
are also trained where observations are in [-1, 1] (`in units`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import dqn, ppo, pqn
from metaevo import envs, fitness, slots, spaces
from metaevo.analysis import holdout
from metaevo.analysis.independent import judge
from metaevo.envs import Env
from metaevo.evaluators.local import LocalEvaluator
from metaevo.learned import operations
from metaevo.learned.functions import Learned
from metaevo.storage import artifacts
from metaevo.types import InnerLoop, Params
from searches import ppo_reward_potential

MOUNTAIN_CAR = "gymnax/MountainCar-v0"
NUM_SEEDS, NUM_RANDOM, FRAMES = 16, 5, 131_072
MEASURES = ("lifetime", "final_return")
LR = 1e-3  # of agents in units


def height(obs, action, reward, next_obs, terminated, context):
    """The reward with the car's height as a potential, as large as the evolved ones."""
    del action

    def potential(obs):
        return 30.0 * jnp.sin(3 * obs[0])

    after = jnp.where(terminated, 0.0, potential(next_obs))
    return reward + context.stats["gamma"] * after - potential(obs)


class InUnits(NamedTuple):
    """The state of an environment whose observations are scaled."""

    state: Any


def _units(env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Middle of each component of an observation, and half its range."""
    low, high = (np.asarray(x, np.float32) for x in env.observation[1:3])
    return (low + high) / 2, (high - low) / 2


def in_units(env: Env) -> Env:
    """`env` with observations in [-1, 1]."""
    middle, unit = _units(env)

    def reset(key):
        state, obs = env.reset(key)
        return InUnits(state), (obs - middle) / unit

    def step_raw(key, state, action):
        inner, out = env.step_raw(key, state.state, action)
        obs, final_obs = ((x - middle) / unit for x in (out.obs, out.final_obs))
        return InUnits(inner), out._replace(obs=obs, final_obs=final_obs)

    ends = np.full_like(unit, -1.0), np.full_like(unit, 1.0)
    box = env.observation._replace(low=ends[0], high=ends[1])
    return envs.around(env, reset, step_raw, observation=box)


def of_units(env: Env, reward: slots.Slot) -> slots.Slot:
    """A reward of `in_units(env)` by one of raw observations."""
    middle, unit = _units(env)

    @slots.function
    def scaled(obs, action, reward_of_env, next_obs, terminated, context):
        raw, raw_next = (x * unit + middle for x in (obs, next_obs))
        return reward(raw, action, reward_of_env, raw_next, terminated, context)

    return scaled


def _ppo(lr: float) -> Callable[[Any], InnerLoop]:
    config = ppo.Config(FRAMES, 16, normalize_observation=True, features=(32, 32))
    return lambda env: ppo.make(env, config, ppo.Meta(lr=lr))


AGENTS: dict[str, Callable[[Any], InnerLoop]] = {
    "ppo 1e-3": _ppo(1e-3),
    "ppo 3e-3": _ppo(3e-3),
    "ppo 1e-2": _ppo(1e-2),
    "dqn": lambda env: dqn.make(env, dqn.Config(FRAMES), dqn.Meta()),
    "pqn": lambda env: pqn.make(env, pqn.Config(FRAMES), pqn.Meta()),
    "dqn in units": lambda env: dqn.make(
        env, dqn.Config(FRAMES, 1_000), dqn.Meta(lr=LR)
    ),
    "pqn in units": lambda env: pqn.make(
        env, pqn.Config(FRAMES, num_steps=16), pqn.Meta(lr=LR)
    ),
}
INDEPENDENT = [f"independent {x}" for x in judge.AGENTS]
INDEPENDENT += [f"{x} in units" for x in INDEPENDENT]


def trained(agent: str, members: Mapping[str, Params], reward: Learned) -> dict:
    """Scores of an agent of ours with each member's reward, and with the height's."""
    env, by_hand = envs.make(MOUNTAIN_CAR), slots.function(height)
    space, loop = spaces.replace(reward=reward), AGENTS[agent](env)
    if agent.endswith("in units"):
        loop, by_hand = AGENTS[agent](in_units(env)), of_units(env, by_hand)
        space = space._replace(
            bind=lambda params, meta: slots.replace(
                meta, reward=of_units(env, reward.bind(params["reward"]))
            )
        )
    search = ppo_reward_potential.search()._replace(
        inner_loop=loop, fitness=fitness.area_under_curve
    )
    fixed = holdout.fixed({"reward": by_hand})
    found = {}
    for place, named in (space, members), (fixed, {"height": holdout.NOTHING}):
        search, key = search._replace(space=place), jax.random.key(0)
        runs, _ = holdout.train(search, place, named, key, NUM_SEEDS, LocalEvaluator)
        found |= {
            name: {"lifetime": x.fitness[0], "final_return": x.final_return[0]}
            for name, x in runs.items()
        }
    return found


def judged(agent: str, members: Mapping[str, Params], reward: Learned) -> dict:
    """Scores of an independent agent at its middle step size; in units, at `LR`."""
    kind = agent.split()[1]
    env, lr = envs.make(MOUNTAIN_CAR), judge.AGENTS[kind].STEP_SIZES[1]
    functions = {name: reward.bind(x["reward"]) for name, x in members.items()}
    functions["height"] = slots.function(height)
    if agent.endswith("in units"):
        functions = {name: of_units(env, x) for name, x in functions.items()}
        env, lr = in_units(env), LR
    found = {}
    for name, function in functions.items():
        given, key = {"reward": function}, jax.random.key(0)
        x = judge.scores(kind, env, given, key, NUM_SEEDS, [lr])
        found[name] = {"lifetime": x.lifetime[0], "final_return": x.final_return[0]}
    return found


def main(directories: list[str]) -> None:
    if not directories:
        sys.exit("expected the directories of finished searches")
    metaevo.configure()
    evolved = [artifacts.params(Path(x)) for x in directories]
    op = metaevo.load(directories[0]).manifest["slots"]["reward"]
    reward = operations.get(op["op"]).rebuild(op)
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
    for agent in (*AGENTS, *INDEPENDENT):
        if agent in done:
            continue
        train = trained if agent in AGENTS else judged
        found = train(agent, members, reward)
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
            results.add(
                agent=agent,
                measure=measure,
                env=MOUNTAIN_CAR,
                scores={k: x.round(2).tolist() for k, x in table.items()},
            )


def _normal(keys, leaf, size):
    return size * jax.random.normal(next(keys), np.shape(leaf))


if __name__ == "__main__":
    main(sys.argv[1:])
