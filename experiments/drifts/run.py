"""PPO with the drift of discovered policy optimization against PPO's own.

    python -m experiments.drifts.run > experiments/drifts/results.jsonl

Both have PPO's settings, whatever was chosen for PPO, the same frames and the same 32
seeds; nothing is tuned for DPO (Lu et al., 2022, alpha 2 and beta 0.6). One JSON line
per environment and drift, with scores by seed. About ten minutes on two cores.
"""

import json

import metaevo

metaevo.configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from inner_loops import ppo  # noqa: E402
from metaevo import drifts, envs, fitness  # noqa: E402
from metaevo.analysis import holdout  # noqa: E402

NUM_SEEDS = 32
CONTROL = ppo.Config(
    150_000, 8, 128, 10, 16, normalize_observation=True, normalize_reward=True
)
SETTINGS = {
    "gymnax/CartPole-v1": (ppo.Config(100_000), ppo.Meta()),
    "gymnax/Acrobot-v1": (ppo.Config(100_000), ppo.Meta()),
    "gymnax/Pendulum-v1": (CONTROL, ppo.Meta(lr=1e-3, gamma=0.95, ent_coef=0.0)),
}


def trained(env, config, meta):
    """Run on the same seeds for every `meta`."""
    loop = ppo.make(envs.make(env), config, meta)
    auc, key, devices = fitness.area_under_curve, jax.random.key(1), jax.devices()
    return holdout.train_hand_made(loop, auc, key, NUM_SEEDS, devices)


def main():
    for env, (config, meta) in SETTINGS.items():
        for name, changed in (("ppo", meta), ("dpo", meta._replace(drift=drifts.dpo))):
            found = trained(env, config, changed)
            line = {
                "env": env,
                "drift": name,
                "frames": config.total_timesteps,
                "final_return": np.round(found.final_return[0], 3).tolist(),
                "area_under_curve": np.round(found.fitness[0], 3).tolist(),
                "device": jax.devices()[0].device_kind,
                "jax": jax.__version__,
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
