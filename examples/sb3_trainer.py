"""Stable-Baselines3's PPO on Gymnasium's CartPole, its numbers tuned by metaevo.

    python examples/sb3_trainer.py                                  # one environment
    python examples/sb3_trainer.py .venv-torch/bin/python           # two

metaevo needs JAX, the trials do not: they run under the interpreter that is given,
which has PyTorch, Stable-Baselines3 and Gymnasium. So `score` imports these itself, and
the driver alone imports spaces and strategies.
"""

import sys


def score(trial):
    """Train one agent for `trial.budget` steps; return its mean return afterwards."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    agent = PPO(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=trial.params["learning_rate"],
        gamma=trial.params["gamma"],
        gae_lambda=trial.params["gae_lambda"],
        clip_range=trial.params["clip_range"],
        n_steps=256,
        seed=trial.seed,
        device="cpu",
    )
    agent.learn(trial.budget)
    mean, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
    agent.save(trial.folder / "agent")
    return mean


DEFAULTS = {  # those of Stable-Baselines3
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
}


def main(python=None, directory="runs/sb3", num_frames=4096, num_members=8, **options):
    """Search in ranges around the defaults, and compare what is found with them."""
    import metaevo
    from metaevo import spaces
    from strategies.random_search import random_search

    space = spaces.prior(
        learning_rate=spaces.log_uniform(1e-4, 1e-2),
        gamma=spaces.horizon_uniform(0.9, 0.999),
        gae_lambda=spaces.uniform(0.8, 1.0),
        clip_range=spaces.uniform(0.1, 0.4),
    )
    result = metaevo.optimize(
        space,
        random_search(space, num_members),
        score,
        defaults=DEFAULTS,
        budget=num_frames,
        directory=directory,
        python=python,
        workers=2,
        timeout=600,
        **{"num_generations": 5, **options},
    )
    for name, number in result.artifact.slots.items():
        print(f"{name}={number:.4g}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
