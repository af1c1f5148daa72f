"""Memory of a search: announced before it starts, and measured when it has ended.

    python -m benchmarks.memory                                    9 minutes

Each case is a process of its own that runs two generations, or continues a run for two
more. `announced` is the figure that the run prints at its start, the peak of the whole
process, see `evaluators.chunking`. `measured` is the peak of the process's resident
memory (VmHWM), with everything: libraries, compilation, training, checkpoints, the
comparison on held-out seeds and the report. On an accelerator both are of its memory.
Both are in MiB; `ratio` is announced over measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import optax  # noqa: E402

import metaevo  # noqa: E402
from benchmarks import measure  # noqa: E402
from inner_loops import apex, dqn, ppo, r2d2, sac  # noqa: E402
from metaevo import envs, fitness, spaces  # noqa: E402
from metaevo.evaluators import chunking  # noqa: E402
from strategies.open_es import open_es  # noqa: E402
from strategies.pbt import pbt  # noqa: E402

DEFAULTS = {"case": "", "directory": "", "generations": 2, "chunk": 0}
MIB = 1 << 20


def newborn(loop: Any, members: int = 16) -> metaevo.Search:
    """Members that train from birth in each generation."""
    space = spaces.tune(gamma=spaces.logit())
    strategy = open_es(space, members, 0.1, optax.sgd(0.1))
    loop = loop._replace(num_segments=1)  # of a long lifetime, for its buffer
    # Not by returns of training: an episode may be longer than a generation.
    return metaevo.Search(loop, space, strategy, 2, fitness.final_return)


def living(loop: Any, members: int = 16) -> metaevo.Search:
    """Members that live on, whose numbers PBT changes."""
    space = spaces.prior(gamma=spaces.horizon_uniform(0.9, 0.999))
    return metaevo.Search(
        loop._replace(num_segments=4),
        space,
        pbt(space, members),
        2,
        fitness.last_segments(1),
        segments_per_generation=1,
    )


def dqn_breakout(buffer: int) -> Any:
    sizes = {"features": (32,), "batch_size": 32, "num_eval_envs": 2}
    config = dqn.Config(2 * buffer, 1_000, buffer, num_segments=buffer // 500, **sizes)
    return dqn.make(envs.make("gymnax/Breakout-MinAtar"), config)


def replayed_breakout(module: Any, buffer: int) -> Any:
    """Ape-X or R2D2 with MinAtar's network."""
    sizes = {"torso": "cnn", "features": (128,), "num_eval_envs": 2}
    num_segments = buffer // 500
    config = module.Config(
        2 * buffer, 2_000, buffer, num_segments=num_segments, **sizes
    )
    return module.make(envs.make("gymnax/Breakout-MinAtar"), config)


def sac_pendulum(buffer: int) -> Any:
    sizes = {"features": (16,), "batch_size": 16, "num_eval_envs": 2}
    config = sac.Config(buffer, 1_000, buffer, num_segments=buffer // 100, **sizes)
    return sac.make(envs.make("gymnax/Pendulum-v1"), config)


CASES = {
    "ppo Breakout": lambda: newborn(
        ppo.make(
            envs.make("gymnax/Breakout-MinAtar"),
            ppo.Config(16_384, 64, 128, num_segments=1, activation="relu"),
        )
    ),
    # All members at once: 16 on each of two devices.
    "dqn Breakout": lambda: newborn(dqn_breakout(100_000), 32)._replace(chunk_size=16),
    "apex Breakout": lambda: newborn(replayed_breakout(apex, 100_000)),
    "r2d2 Breakout": lambda: newborn(replayed_breakout(r2d2, 100_000)),
    "sac Pendulum": lambda: newborn(sac_pendulum(1_000_000)),
    "pbt of sac Pendulum": lambda: living(sac_pendulum(1_000_000)),
}


def peak() -> int:
    """Of this program's memory; `getrusage` would count what started it.

    On accelerators it is that of their memory, which is what is announced there.
    """
    used = [device.memory_stats() for device in jax.devices()]
    if all(used):
        return sum(x["peak_bytes_in_use"] for x in used if x)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def case(name: str, directory: str, generations: int, chunk: int) -> None:
    """Run or continue a case; print a line on it."""
    planned = []
    chosen = chunking.plan

    def plan(evaluator, proposal):
        planned.append(chosen(evaluator, proposal))
        return planned[-1]

    chunking.plan = plan
    search = CASES[name]()._replace(num_generations=generations)
    if chunk:
        search = search._replace(chunk_size=chunk)
    config = metaevo.RunConfig(directory=directory, held_out_seeds=2, wandb="disabled")
    metaevo.run(search, config)
    memory, measured = planned[0].announced, peak()
    print(
        json.dumps(
            {
                "announced_mib": memory.peak // MIB,
                "measured_mib": measured // MIB,
                "ratio": round(memory.peak / measured, 3),
                "process_mib": memory.process // MIB,
                "round_mib": memory.training // MIB,
                "live_on_mib": memory.carried // MIB,
            }
        )
    )


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    if options["directory"]:
        directory, generations = options["directory"], options["generations"]
        case(options["case"], directory, generations, options["chunk"])
        return
    results = measure.Results("memory", keep=bool(options["case"]))
    for name in [options["case"]] if options["case"] else CASES:
        with tempfile.TemporaryDirectory() as directory:
            for start, generations in (("fresh", 2), ("resumed", 4)):
                command = [sys.executable, "-m", "benchmarks.memory", f"case={name}"]
                command += [f"directory={directory}/run", f"generations={generations}"]
                command.append(f"chunk={options['chunk']}")
                out = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                found = json.loads(out.stdout.splitlines()[-1])
                results.add(case=name, start=start, devices=jax.device_count(), **found)


if __name__ == "__main__":
    main(sys.argv[1:])
