"""What a population of SAC was announced to need, and what it took, as a program."""

import json
from pathlib import Path

from metaevo.evaluators.devices import configure

configure(num_cpu_devices=1)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from inner_loops import sac  # noqa: E402
from metaevo import envs, fitness, spaces  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Proposal, Search  # noqa: E402


def peak() -> int:
    """Of this program; `getrusage` would count what started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def main(members: int = 8, buffer_size: int = 4_000_000) -> None:
    loop = sac.make(
        envs.make("gymnax/Pendulum-v1"),
        sac.Config(buffer_size, 1_000, buffer_size, 1_000, features=(16,)),
    )
    # A lifetime is never trained: one segment of a thousandth of it.
    loop = loop._replace(num_segments=1)
    space = spaces.tune(gamma=spaces.logit())
    search = Search(loop, space, None, 1, fitness.last_segments(1), chunk_size=members)
    evaluate = LocalEvaluator(search)
    proposal = Proposal({"gamma": jnp.zeros(members)})
    announced = evaluate.memory(proposal)
    before = peak()
    evaluate(jax.random.key(0), proposal, ())
    print(json.dumps({"announced": announced, "measured": peak() - before}))


if __name__ == "__main__":
    main()
