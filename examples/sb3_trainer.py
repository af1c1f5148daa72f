"""Stable-Baselines3's PPO on Gymnasium's CartPole as the trainer of a search.

    python examples/sb3_trainer.py numbers                      # in one environment
    python examples/sb3_trainer.py numbers .venv-torch/bin/python      # in two
    python examples/sb3_trainer.py loss .venv-torch/bin/python

`numbers` tunes PPO's, `loss` evolves the loss of its critic. metaevo needs JAX, the
trials do not: they run under the interpreter that is given, which has PyTorch,
Stable-Baselines3 and Gymnasium. So what trains imports these itself, and the driver
alone imports spaces and strategies.
"""

import sys


def with_numbers(trial):
    """Train one agent with the numbers of a trial; return its mean return."""
    from stable_baselines3 import PPO

    return trained(trial, PPO, **trial.params)


def with_loss(trial):
    """Train one agent with the value loss of a trial; None is its own squared error."""
    from sb3_ppo import PPO, EvolvedPPO

    evolved = trial.params["value_loss"]
    if evolved is None:
        return trained(trial, PPO)
    loss = trial.torch("value_loss")
    scaled = "return_std" in evolved.inputs

    class Agent(EvolvedPPO):
        @staticmethod
        def value_loss(value, target, old_value):
            # A loss that is free of the scale of rewards measures errors in this.
            return loss(value, target, old_value, *[target.std()] * scaled)

    return trained(trial, Agent, vf_coef=1.0)


def trained(trial, algorithm, **settings):
    """Train for `trial.budget` steps; return the mean return of ten episodes."""
    from stable_baselines3.common.evaluation import evaluate_policy

    settings |= {"n_steps": 256, "seed": trial.seed, "device": "cpu"}
    agent = algorithm("MlpPolicy", "CartPole-v1", **settings)
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


def searched(evolve, num_members):
    """The space, the strategy, the trainer and the defaults of a search."""
    from metaevo import critic_losses, spaces
    from strategies.random_search import random_search
    from strategies.snes import snes

    if evolve == "loss":
        space = spaces.replace(value_loss=critic_losses.weighted_square())
        return space, snes(space, num_members, sigma=0.3), with_loss, {}
    space = spaces.prior(
        learning_rate=spaces.log_uniform(1e-4, 1e-2),
        gamma=spaces.horizon_uniform(0.9, 0.999),
        gae_lambda=spaces.uniform(0.8, 1.0),
        clip_range=spaces.uniform(0.1, 0.4),
    )
    return space, random_search(space, num_members), with_numbers, DEFAULTS


def main(evolve="numbers", python=None, num_frames=4096, num_members=8, **options):
    """Search, and compare what is found with Stable-Baselines3's own."""
    import metaevo

    *parts, defaults = searched(evolve, num_members)
    given = {"num_generations": 5, "directory": f"runs/sb3_{evolve}"}
    result = metaevo.optimize(
        *parts,
        defaults=defaults,
        budget=num_frames,
        python=python,
        workers=2,
        timeout=600,
        **given | options,
    )
    print(result.artifact)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:3])
