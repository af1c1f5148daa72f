"""Memory of a member: announced by the compiled program, and measured.

    python -m benchmarks.memory                                     3 minutes

Each case is a process of its own. `announced` is what `evaluators.chunking` plans with;
`measured` is how far the process's peak rises while a round is trained, on a GPU the
device's own peak. `largest` is the population whose members all live on at once; one of
newborns is cut into rounds and has no such limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks import measure  # noqa: E402
from inner_loops import dqn, ppo, sac  # noqa: E402
from metaevo import envs, fitness  # noqa: E402
from metaevo.analysis import holdout  # noqa: E402
from metaevo.evaluators import chunking  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Proposal, Search  # noqa: E402

DEFAULTS = {"case": "", "members": 8}

CASES = {
    "ppo CartPole": lambda: ppo.make(
        envs.make("gymnax/CartPole-v1"), ppo.Config(1_024, num_segments=1)
    ),
    "ppo Breakout": lambda: ppo.make(
        envs.make("gymnax/Breakout-MinAtar"),
        ppo.Config(8_192, 64, 128, num_segments=1, activation="relu"),
    ),
    "dqn CartPole, buffer of 1e5": lambda: dqn.make(
        envs.make("gymnax/CartPole-v1"),
        dqn.Config(100_000, 10_000, 100_000, num_segments=1_000),
    ),
    "sac Pendulum, buffer of 1e6": lambda: sac.make(
        envs.make("gymnax/Pendulum-v1"),
        sac.Config(1_000_000, 1_000, 1_000_000, num_segments=100_000),
    ),
}


def peak() -> int:
    """Of this program's memory, or of the accelerator's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def case(name: str, members: int) -> dict:
    loop = CASES[name]()._replace(num_segments=1)
    auc = fitness.last_segments(1)
    search = Search(loop, holdout.HAND_MADE, None, 1, auc, chunk_size=members)
    evaluator = LocalEvaluator(search, jax.devices()[:1])
    proposal = Proposal(holdout.copies(holdout.NOTHING, members))
    announced = evaluator.memory(proposal)
    state = evaluator.state_bytes(proposal)
    before = peak()
    evaluator(jax.random.key(0), proposal, ())
    measured = peak() - before
    have = chunking.available(jax.devices()[0]) or 0
    return {
        "case": name,
        "members": members,
        "announced_per_member": announced // members,
        "measured_per_member": measured // members,
        "state_per_member": state // members,
        "available": have,
        "largest": int(chunking.SHARE * have / (announced / members)),
    }


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    if options["case"]:
        jnp.zeros(1).block_until_ready()
        print(json.dumps(case(options["case"], options["members"])))
        return
    results = measure.Results("memory")
    for name in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", f"case={name}"]
        command.append(f"members={options['members']}")
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.add(**json.loads(out.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main(sys.argv[1:])
