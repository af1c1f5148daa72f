"""PPO with the drift of discovered policy optimization against PPO's own.

    python -m experiments.drifts.run > experiments/drifts/results.jsonl

Both have PPO's settings, whatever was chosen for PPO, the same frames and the same 32
seeds; nothing is tuned for DPO (Lu et al., 2022, alpha 2 and beta 0.6). One JSON line
per environment; differences are DPO's less PPO's, paired by seed, with 95 % intervals.
About ten minutes on two cores.
"""

import json

import metaevo

metaevo.configure()

import jax  # noqa: E402

from inner_loops import ppo  # noqa: E402
from metaevo import drifts, envs, fitness  # noqa: E402
from metaevo.analysis import differences, holdout, stats  # noqa: E402

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
        plain = trained(env, config, meta)
        dpo = trained(env, config, meta._replace(drift=drifts.dpo))
        record = {
            "env": env,
            "frames": config.total_timesteps,
            "seeds": NUM_SEEDS,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
        }
        for name in ("final_return", "fitness"):
            a, b = getattr(dpo, name)[0], getattr(plain, name)[0]
            paired = differences.paired_difference(a, b)
            record[{"fitness": "area_under_curve"}.get(name, name)] = {
                "ppo": float(b.mean()),
                "dpo": float(a.mean()),
                "ppo_iqm": stats.bootstrap(b, stats.iqm).estimate,
                "dpo_iqm": stats.bootstrap(a, stats.iqm).estimate,
                "difference": [paired.difference, paired.low, paired.high],
                "verdict": paired.verdict,
            }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
