"""Stable-Baselines3's PPO as a trial, of which some misbehave, and a trial that waits.

`benchmarks.reliability_trials` names these functions; the interpreter of the trials has
no metaevo.
"""

import hashlib
import math
import os
import signal
import time


def ppo(trial):
    """Train PPO on CartPole, or continue it; return its mean over five episodes."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    given = {**trial.params, "n_steps": 256, "seed": trial.seed, "device": "cpu"}
    if trial.parent is None:
        agent = PPO("MlpPolicy", "CartPole-v1", **given)
    else:
        agent = PPO.load(trial.parent / "agent", **given)
        agent.set_env(gymnasium.make("CartPole-v1"))
        agent.set_random_seed(trial.seed)
    agent.learn(trial.budget)
    mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=5)
    agent.save(trial.folder / "agent")
    return float(mean)


def hostile_ppo(trial):
    """Half of the newborn ones do something that they should not."""
    if trial.parent is None:
        way = _number(trial) % 12
        if way < len(WAYS):
            WAYS[way](trial)
    return ppo(trial)


def waits(trial):
    """Take .1 to 2 s, as its numbers say, and learn by a share of the way."""
    weight = 0.0
    if trial.parent is not None:
        weight = float((trial.parent / "weight").read_text())
    weight += (1 - weight) * trial.params["rate"]
    (trial.folder / "weight").write_text(str(weight))
    time.sleep(0.1 * math.exp(3 * (_number(trial) % 1000) / 1000))
    return weight


def _number(trial):
    text = repr((sorted(trial.params.items()), trial.seed))
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


# --- what they do ---------------------------------------------------------------------


def _raises(trial):
    raise ValueError("this one fails")


def _hangs(trial):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(10_000)


def _leaks(trial):
    held = []
    while True:
        held.append(bytearray(64 << 20))
        for i in range(0, 64 << 20, 4096):
            held[-1][i] = 1
        time.sleep(0.05)


def _prints(trial):
    for _ in range(20_000):
        print("a long line that nobody reads " * 4)
    os.system("echo from a child")


def _forks(trial):
    if not os.fork():
        os.setpgid(0, 0)
        time.sleep(10_000)
        os._exit(0)


def _writes_to_others(trial):
    for other in trial.folder.parent.parent.iterdir():
        for path in other.rglob("*"):
            if path.is_file() and other != trial.folder.parent:
                path.write_text("overwritten")


WAYS = (_raises, _hangs, _leaks, _prints, _forks, _writes_to_others)
