"""Speed of the tasks of `grid/`: random actions, and a population of PPO.

python -m experiments.grid.run                                  2 minutes
"""

from __future__ import annotations

import os
import time

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from inner_loops import ppo  # noqa: E402
from metaevo import envs, fitness, spaces  # noqa: E402
from metaevo.envs import grid  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Proposal, Search  # noqa: E402

NUM_ENVS, NUM_STEPS, TASKS = 512, 1000, 4
MEMBERS, FRAMES = 32, 131_072


def steps_per_second(env: envs.Env) -> float:
    """Steps per second of random actions, with auto-reset, on all devices."""

    def run(key):
        task_key, reset_key, step_key = jax.random.split(key, 3)
        here = env.at(env.task(task_key))
        state, _ = jax.vmap(here.reset)(jax.random.split(reset_key, NUM_ENVS))

        def step(carry, key):
            state, total = carry
            actions = jax.random.randint(key, (NUM_ENVS,), 0, env.action.num)
            keys = jax.random.split(key, NUM_ENVS)
            state, out = jax.vmap(here.step)(keys, state, actions)
            # The observation is used, so it is computed.
            return (state, total + out.reward.sum() + out.obs.sum()), None

        keys = jax.random.split(step_key, NUM_STEPS)
        return jax.lax.scan(step, (state, 0.0), keys)[0][1]

    devices = jax.devices()
    mesh = jax.make_mesh(
        (len(devices),), ("d",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    spec = jax.sharding.PartitionSpec("d")
    all_devices = jax.jit(
        jax.shard_map(
            lambda keys: jax.lax.map(run, keys),
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
    )
    num = TASKS * len(devices)
    keys = jax.random.split(jax.random.key(0), num)
    return num * NUM_ENVS * NUM_STEPS / seconds(lambda: all_devices(keys))


def frames_per_second(name: str, num_steps: int) -> tuple[float, float]:
    """Frames per second of a population of small PPOs, and their last return."""
    config = ppo.Config(
        FRAMES, num_envs=16, num_steps=num_steps, num_epochs=1, num_minibatches=4,
        features=(32,), num_segments=8,
    )  # fmt: skip
    loop = ppo.make(envs.make(name), config, ppo.Meta(lr=2.5e-3))
    space = spaces.tune(lr=spaces.log())
    search = Search(loop, space, None, 1, fitness.area_under_curve)  # pyright: ignore[reportArgumentType]
    evaluate = LocalEvaluator(search)
    proposal = Proposal({"lr": jnp.zeros(MEMBERS)})
    found = []
    took = seconds(lambda: found.append(evaluate(jax.random.key(0), proposal, ())[0]))
    last = np.asarray(found[-1].train[0]["return"])[..., -1].mean()
    return MEMBERS * FRAMES / took, float(last)


def seconds(work) -> float:
    """Seconds of the faster of two calls after one that compiles."""
    jax.block_until_ready(work())
    times = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in grid.names():
        speed = steps_per_second(envs.make(f"grid/{name}"))
        print(f"grid/{name}: {speed / 1e6:.1f} M steps/s", flush=True)
    for name in (*(f"grid/{x}" for x in grid.names()), "gymnax/CartPole-v1"):
        for num_steps in (64, 128):
            speed, last = frames_per_second(name, num_steps)
            print(
                f"{name}: PPO, rollouts of {num_steps}, {speed / 1e3:.0f}k frames/s, "
                f"last return {last:.2f}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
