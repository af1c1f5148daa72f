"""Trains the agent of `examples/rejax_ppo.py` for a moment.

    python rejax_against_itself.py EXPORTED.py OWN.py

Prints the largest difference of its critic's weights from those without a file: with
rejax's own loss in a file, and with the exported one.
"""

import sys
from pathlib import Path

import jax
from jax.flatten_util import ravel_pytree

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import rejax_ppo

exported, same = sys.argv[1:]


def weights(path):
    (state,), _ = rejax_ppo.main(path, num_frames=1024, num_seeds=1)
    return ravel_pytree(jax.device_get(state.critic_ts.params))[0]


own = weights(None)
print(*(float(abs(weights(path) - own).max()) for path in (same, exported)))
