"""Trains the agents of an example with Stable-Baselines3 for a moment.

    python sb3_against_itself.py EXAMPLE EXPORTED.py OWN.py

Prints the largest difference of their weights from those of an agent without a file:
with what Stable-Baselines3 has of its own, in a file, and with the exported function.
"""

import importlib
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

ROLLOUT = {"num_frames": 128, "n_steps": 128, "n_epochs": 4}
REPLAY = {"num_frames": 128, "learning_starts": 32, "train_freq": 16}
SHORT = {"sb3_ppo": ROLLOUT, "sb3_reward": ROLLOUT, "sb3_dqn": REPLAY}

example, exported, same = sys.argv[1:]
main = importlib.import_module(example).main


def weights(path):
    agent, _ = main(path, **SHORT[example])
    return torch.nn.utils.parameters_to_vector(agent.policy.parameters()).detach()


own = weights(None)
print(*(float((weights(path) - own).abs().max()) for path in (same, exported)))
