"""Stable-Baselines3's PPO with an evolved reward, by a wrapper for Gymnasium.

    python -m searches.ppo_reward_potential run.directory=runs/potential
    metaevo export runs/potential to=numpy out=evolved_reward.py
    python examples/sb3_reward.py                      # the environment's own reward
    python examples/sb3_reward.py evolved_reward.py    # the evolved one

The wrapper serves any agent that takes a Gymnasium environment. Observations must be
those that the reward evolved on: a wrapper that normalizes them goes around this one.
MountainCar needs it, since its speeds are below 0.07.
"""

import functools
import inspect
import runpy
import sys

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

GAMMA = 0.99


class EvolvedReward(gymnasium.Wrapper):
    """An environment whose reward is that of an exported file.

    Args:
        env: with observations as flat vectors.
        reward: `(obs, action, reward, next_obs, terminated) -> number`.
    """

    def __init__(self, env, reward):
        super().__init__(env)
        self.evolved = reward
        self.obs = None

    def reset(self, **options):
        self.obs, info = self.env.reset(**options)
        return self.obs, info

    def step(self, action):
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        # A time limit is no end: what follows would still be worth something.
        evolved = self.evolved(self.obs, action, reward, next_obs, float(terminated))
        self.obs = next_obs
        return next_obs, float(evolved), terminated, truncated, info


def evolved(path, gamma):
    """The reward of an exported file; a potential takes the discount of the agent."""
    reward = runpy.run_path(path)["reward"]
    if "gamma" in inspect.signature(reward).parameters:
        reward = functools.partial(reward, gamma=gamma)
    return reward


def main(path=None, num_frames=50_000, seed=0, name="MountainCar-v0", **settings):
    """Train one agent, with settings of PPO; return its mean own return afterwards."""
    env = Monitor(gymnasium.make(name))  # inside, so that its log has the own reward
    if path:
        env = EvolvedReward(env, evolved(path, GAMMA))
    env = gymnasium.wrappers.NormalizeObservation(env)
    agent = PPO("MlpPolicy", env, seed=seed, gamma=GAMMA, device="cpu", **settings)
    agent.learn(num_frames)
    env.update_running_mean = False
    mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
    print(f"{path or 'own reward'}: return {mean:.1f}")
    return agent, mean


if __name__ == "__main__":
    main(*sys.argv[1:2])
