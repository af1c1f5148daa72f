"""fastpbrl's figure 2: the update step of a population, way by way.

    make .venv-torch/.installed
    python -m experiments.update_step.run                              15 minutes

TD3, SAC and DQN with networks of 64 and 64 units and minibatches of 128, and DQN with
the Nature torso on images of 84 x 84 and minibatches of 32. Ways, in turns, five
rounds:

* `sequential`: one compiled program, members one after the other;
* `vectorized`: one compiled program of all members;
* `processes`: each member a process of its own, all at once, with the memory of one;
* `eager`: one member without compilation, operation by operation;
* `torch sequential`, `torch vmap`: gradient steps alone in PyTorch, see `torch_steps`.

A step of ours is one step of the environment, one row into the replay buffer and one
gradient step; one of PyTorch is the gradient step alone. All may use all cores. One
line per algorithm and size; a line that is in the results is not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks import measure, populations  # noqa: E402
from benchmarks.throughput import devices_for, off_policy  # noqa: E402
from inner_loops import dqn  # noqa: E402
from metaevo import envs  # noqa: E402
from metaevo.evaluators import memory  # noqa: E402

FOLDER = Path(__file__).parent
TORCH = FOLDER.parents[1] / ".venv-torch" / "bin" / "python"
ROUNDS, SIZES = 5, (1, 8)
STEPS = {"td3": 1_000, "sac": 1_000, "dqn": 2_000, "dqn_nature": 20}
TORCH_STEPS = {"td3": 100, "sac": 60, "dqn": 200, "dqn_nature": 4}
EAGER_STEPS = {"td3": 2, "sac": 2, "dqn": 2, "dqn_nature": 1}


def pixels() -> envs.Env:
    """An environment of random images of 84 x 84 with six actions."""
    shape = (84, 84, 4)

    def reset(key):
        return jnp.int32(0), jax.random.uniform(key, shape)

    def step(key, state, action):
        obs = jax.random.uniform(key, shape)
        reward = action.astype(jnp.float32) - obs[0, 0, 0]
        false = jnp.array(False)
        return state + 1, envs.Step(obs, reward, false, false, obs, {})

    box = envs.Box(shape, 0.0, 1.0)
    return envs.Env(reset, step, step, box, envs.Discrete(6), 1_000)


def loop_of(name: str, frames: int):
    """A loop whose segment has `frames` steps, each with a gradient step."""
    if name != "dqn_nature":
        return off_policy(name, frames)
    sizes = {"num_envs": 1, "num_steps": 1, "num_gradient_steps": 1, "batch_size": 32}
    sizes |= {"learning_starts": 64, "buffer_size": 128, "num_segments": 1}
    network = {"torso": "nature", "features": (512,)}
    return dqn.make(pixels(), dqn.Config(frames + 64, **sizes, **network))


def runner_of(name: str, size: int, devices: list):
    return populations.ours(loop_of(name, STEPS[name]), size, devices).run


def seconds(run, steps: int) -> float:
    """Of one step."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) / steps


def child(name: str) -> None:
    """One member in a process; answers a line with the memory that it holds."""
    run = runner_of(name, 1, jax.devices()[:1])
    print(memory.resident(), flush=True)
    for _ in sys.stdin:
        run()
        print(memory.resident(), flush=True)


class Children:
    """Processes that answer each line of input with a line."""

    def __init__(self, command: list, count: int):
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.all = [subprocess.Popen(command, **pipe) for _ in range(count)]

    def answers(self, line: str = "") -> list[str]:
        for one in self.all if line else ():
            one.stdin.write(line + "\n")
            one.stdin.flush()
        return [one.stdout.readline() for one in self.all]

    def end(self) -> None:
        for one in self.all:
            one.stdin.close()
            one.wait()


def eager(name: str) -> float:
    """Seconds of one step of one member without compilation."""
    steps = EAGER_STEPS[name]
    loop = loop_of(name, steps)
    state = jax.jit(loop.init)(jax.random.key(0), loop.meta)
    key = jax.random.key(1)
    with jax.disable_jit():
        began = time.perf_counter()
        jax.block_until_ready(loop.train(key, loop.meta, state))
        return (time.perf_counter() - began) / steps


def line_of(name: str, size: int) -> dict:
    first = jax.devices()[:1]
    alone = runner_of(name, 1, first)
    together = runner_of(name, size, devices_for(size))
    command = [sys.executable, "-m", "experiments.update_step.run", f"child={name}"]
    processes = Children(command, size)
    processes.answers()
    program = FOLDER / "torch_steps.py"
    torch = {
        way: Children([TORCH, program, name, way, str(size)], 1)
        for way in ("sequential", "vmap")
    }
    resident = 0

    def one_by_one():
        for _ in range(size):
            alone()

    def in_processes():
        nonlocal resident
        resident = max(map(int, processes.answers("go")))

    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        steps = STEPS[name]
        ways = {
            "sequential": seconds(one_by_one, steps),
            "vectorized": seconds(together, steps),
            "processes": seconds(in_processes, steps),
        }
        for way, one in torch.items():
            steps = TORCH_STEPS[name]
            ways[f"torch {way}"] = float(one.answers(str(steps))[0]) / steps
        for way, x in ways.items():
            found.setdefault(way, []).append(x)
    for one in (processes, *torch.values()):
        one.end()
    if size == 1:
        found["eager"] = [eager(name) for _ in range(2)]
    mine = np.array(found["vectorized"])
    ratios = {
        way: measure.spread((np.array(x) / mine[: len(x)]).tolist())
        for way, x in found.items()
        if way != "vectorized"
    }
    spread = {way: measure.spread(x) for way, x in found.items()}
    return {"seconds": spread, "to_vectorized": ratios, "memory_of_a_process": resident}


def main(argv: list[str]) -> None:
    if argv and argv[0].startswith("child="):
        child(argv[0].partition("=")[2])
        return
    results = measure.Results("results", keep=True, folder=FOLDER)
    for name in STEPS:
        for size in SIZES:
            known = {
                (x["algorithm"], x["size"]) for x in map(json.loads, results.lines)
            }
            if (name, size) not in known:
                results.add(algorithm=name, size=size, **line_of(name, size))


if __name__ == "__main__":
    main(sys.argv[1:])
