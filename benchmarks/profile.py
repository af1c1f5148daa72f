"""Profile of a frame of PPO's training, ours and the reference's.

    python -m benchmarks.profile                                    2 minutes

CartPole, 32 members on all devices, CPU time per frame. An epoch is a third of what
four cost beyond one; the rest is rollout, values and advantages. Below that what they
are made of, each alone, as a chunk of members runs it on one device: random numbers,
minibatch orders, the values of all observations (PPO takes those of a rollout's next
ones too, since a time limit is bootstrapped; the reference does not).
"""

from __future__ import annotations

import sys

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks import measure, populations, reference_ppo  # noqa: E402
from metaevo import envs  # noqa: E402
from metaevo.evaluators.layout import CPU_CHUNK  # noqa: E402
from metaevo.rl import distributions, minibatches, networks, rollouts  # noqa: E402

DEFAULTS = {"repeats": 9, "population": 32, "updates": 16}


def phases(results: measure.Results, repeats: int, size: int, updates: int) -> None:
    """Epochs and the rest, from runs with one epoch and with four."""
    devices = jax.devices()
    runners = {}
    for epochs in (1, 4):
        config = reference_ppo.CONFIG | {"UPDATE_EPOCHS": epochs}
        per_update = config["NUM_ENVS"] * config["NUM_STEPS"]
        loop = reference_ppo.our_loop(config, updates * per_update, 1)
        runners["ours", epochs] = populations.ours(loop, size, devices)
        runners["reference", epochs] = populations.reference(
            config, size, devices, updates
        )
    samples = measure.interleaved({k: r.run for k, r in runners.items()}, repeats)
    for variant in ("ours", "reference"):
        one, four = (
            [1e6 * x.cpu / runners[variant, n].frames for x in samples[variant, n]]
            for n in (1, 4)
        )
        epoch = [(b - a) / 3 for a, b in zip(one, four, strict=True)]
        rest = [a - e for a, e in zip(one, epoch, strict=True)]
        results.add(
            part="phases",
            variant=variant,
            population=size,
            microseconds_per_frame=measure.spread(four),
            four_epochs=measure.spread([4 * x for x in epoch]),
            the_rest=measure.spread(rest),
            repeats=repeats,
        )


def pieces(results: measure.Results, repeats: int) -> None:
    config = reference_ppo.CONFIG
    shape = config["NUM_STEPS"], config["NUM_ENVS"]
    frames = shape[0] * shape[1]
    env = envs.make(f"gymnax/{config['ENV_NAME']}")
    critic = networks.mlp((64, 64), 1, 1.0, config["ACTIVATION"])
    obs = jnp.zeros((CPU_CHUNK, *shape, *env.observation.shape))
    keys = jax.random.split(jax.random.key(0), CPU_CHUNK)
    params = jax.lax.map(lambda key: critic.init(key, obs[0, 0, 0]), keys)

    def order(key):
        sizes = config["UPDATE_EPOCHS"], config["NUM_MINIBATCHES"], frames
        return minibatches.orders(key, *sizes)

    def noise(key):
        return distributions.Categorical.noise(key, (*shape, env.action.num))

    def starts(key):
        return rollouts.worlds(key, key, env, *shape)[0]

    programs = {
        "noise of actions": (jax.vmap(noise), keys),
        "start states of episodes": (jax.vmap(starts), keys),
        "minibatch orders": (jax.vmap(order), keys),
        "values of all observations": (
            lambda at: jax.lax.map(lambda x: critic.apply(*x), at),
            (params, obs),
        ),
    }

    def repeated(fn, argument):
        compiled = jax.jit(fn).lower(argument).compile()

        def run():
            for _ in range(20):
                jax.block_until_ready(compiled(argument))

        return run

    variants = {name: repeated(*piece) for name, piece in programs.items()}
    for name, found in measure.interleaved(variants, repeats).items():
        each = [1e6 * x.cpu / (20 * CPU_CHUNK * frames) for x in found]
        spread = measure.spread(each)
        results.add(part="pieces", piece=name, microseconds_per_frame=spread)


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    results = measure.Results("profile")
    phases(results, options["repeats"], options["population"], options["updates"])
    pieces(results, options["repeats"])


if __name__ == "__main__":
    main(sys.argv[1:])
