"""Steps through an episode of CartPole in the wrapper of `examples/sb3_reward.py`.

    python wrapped_episode.py EXPORTED.py TRANSITIONS.npz

Pushes to one side until the pole falls, and saves each transition with both rewards.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import sb3_reward

exported, out = sys.argv[1:]
env = sb3_reward.EvolvedReward(
    gymnasium.make("CartPole-v1"), sb3_reward.evolved(exported, sb3_reward.GAMMA)
)
obs, _ = env.reset(seed=3)
rows = []
terminated = False
while not terminated:
    next_obs, evolved, terminated, _, _ = env.step(1)
    row = {"obs": obs, "action": 1, "reward": 1.0, "next_obs": next_obs}
    rows.append(row | {"terminated": terminated, "evolved": evolved})
    obs = next_obs
np.savez(out, **{key: np.array([row[key] for row in rows]) for key in rows[0]})
print(len(rows))
