"""Members that a GPU holds at once, by the memory plan: planned, not measured.

    python -m benchmarks.sizes                                      6 minutes

Writes a Markdown table for benchmarks/gpu.md. The program of an accelerator, in which
phases run members together, is compiled for this machine's CPU at two sizes, and the
line through both is followed to what a search may use of a card: 0.9 of the 75 % that
JAX takes of it. XLA plans other temporary arrays for a GPU, so this is a first guess.
Larger populations train in several rounds.
"""

from __future__ import annotations

from unittest import mock

import jax

from benchmarks import algorithms, memory
from metaevo.engine import checks
from metaevo.evaluators import chunking
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Search

TAKEN = 0.75  # XLA_PYTHON_CLIENT_MEM_FRACTION, unless it is set
CARDS = (24, 80, 141)  # GB
CASES = {
    "ppo-CartPole": memory.newborn,
    "ppo-Breakout-cnn": memory.newborn,
    "pqn-Breakout": memory.newborn,
    "dqn-Breakout": memory.newborn,
    "td3-Pendulum": memory.living,
    "sac-Pendulum": memory.living,
}
SIZES = (4, 12)


def needed(search: Search, size: int) -> int:
    """Bytes of a round of all members on one device, and of those that live on."""
    alone = LocalEvaluator(search._replace(chunk_size=size), jax.devices()[:1])
    shapes = checks.proposal_shapes(search.strategy)
    found = chunking.needed(alone, shapes)
    return found.training + found.carried


def main() -> None:
    print("| row of benchmarks.algorithms | frames a lifetime | MiB a member |", end="")
    print("".join(f" {card} GB |" for card in CARDS))
    print("|---" * (3 + len(CARDS)) + "|")
    for name, make in CASES.items():
        loop = algorithms.loop_of(algorithms.ROWS[name])
        with mock.patch("metaevo.population._one_by_one", return_value=False):
            low, high = (needed(make(loop, size), size) for size in SIZES)
        each = (high - low) / (SIZES[1] - SIZES[0])
        rest = low - SIZES[0] * each
        fit = [(chunking.SHARE * TAKEN * card * 1e9 - rest) / each for card in CARDS]
        lifetime = loop.frames_per_segment * loop.num_segments
        cells = [name, f"{lifetime:,}", f"{each / (1 << 20):.3g}"]
        cells += [f"{float(f'{x:.2g}'):,.0f}" for x in fit]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
