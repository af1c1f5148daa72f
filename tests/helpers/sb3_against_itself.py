"""Trains the agents of `examples/sb3_ppo.py` for a moment, with several losses.

    python sb3_against_itself.py EXPORTED.py SQUARE.py

Prints the largest difference of their weights: with half the squared error from a file
and with Stable-Baselines3's own; with the exported loss and with its own.
"""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import sb3_ppo  # noqa: E402


def weights(path):
    agent, _ = sb3_ppo.main(path, num_frames=128)
    return torch.nn.utils.parameters_to_vector(agent.policy.parameters()).detach()


exported, square = map(weights, sys.argv[1:])
own = weights(None)
print(*(float((x - own).abs().max()) for x in (square, exported)))
