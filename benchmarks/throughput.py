"""Training frames per second, against references, peers and the machine's limit.

    python -m benchmarks.throughput ppo=true                        9 minutes
    python -m benchmarks.throughput breakout=true                   6 minutes
    python -m benchmarks.throughput dqn=true                        2 minutes
    python -m benchmarks.throughput offpolicy=true                  6 minutes
    python -m benchmarks.throughput pqn=true                        2 minutes
    python -m benchmarks.throughput a2c=true impala=true            6 minutes
    python -m benchmarks.throughput brax=true                       GPU only

Durations are for two quiet cores; on a GPU give `populations=1,64,1024,4096`. Variants
run in turns, and a ratio is the median of the turns' own. Learning curves are compared
before a ratio is printed: where they differ, none is. Peers are `benchmarks.peers`.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402

from benchmarks import (  # noqa: E402
    measure,
    populations,
    reference_dqn,
    reference_impala,
    reference_ppo,
)
from benchmarks.measure import Results  # noqa: E402
from inner_loops import dqn, ppo, pqn, sac, td3  # noqa: E402
from metaevo import envs  # noqa: E402

DEFAULTS = {
    "ppo": False,
    "breakout": False,
    "dqn": False,
    "offpolicy": False,
    "pqn": False,
    "a2c": False,
    "impala": False,
    "brax": False,
    "populations": (),
    "repeats": 5,
    "frames": 0,
    "curves": True,
}

# Floating-point operations of a frame's training, counted from the network's sizes: a
# forward pass while acting, forward and backward in each of 4 epochs.
PPO_CARTPOLE_FLOP = 227e3
PPO_BREAKOUT_FLOP = 1.14e6


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def devices_for(size: int) -> list:
    """As many devices as divide the population."""
    devices = jax.devices()
    return devices[: max(n for n in range(1, len(devices) + 1) if size % n == 0)]


def equal_curves(results: Results, part: str, rows: list[dict]) -> bool:
    """Check that the curves of `measure.curves` agree in every window of a lifetime."""
    for row in rows:
        results.add(part=part, figure="curve", **row)
    agree = all(row["agree"] for row in rows)
    if not agree:
        print(f"{part}: the curves differ, so no ratio is printed")
    return agree


def figures(runner: populations.Runner, samples: list) -> dict:
    """Frames per second, of the clock on the wall and of the CPU."""
    return {
        "frames_per_second": measure.spread([runner.frames / x.wall for x in samples]),
        "frames_per_cpu_second": measure.spread(
            [runner.frames / max(x.cpu, 1e-9) for x in samples]
        ),
    }


def against(
    results: Results,
    part: str,
    size: int,
    runners: dict[str, populations.Runner],
    repeats: int,
    flop: float | None = None,
    **facts,
) -> None:
    """Time runners in turns; the first is ours. One line per runner and ratio.

    Args:
        flop: per frame; gives the share of the GEMM peak, measured in the same turns.
    """
    variants = {name: runner.run for name, runner in runners.items()}
    peaks = []
    if flop and on_cpu():
        multiply = measure.gemm()
        variants["gemm"] = lambda: peaks.append(multiply())
    samples = measure.interleaved(variants, repeats)
    about = {"part": part, "population": size, "repeats": repeats, **facts}
    name, *others = runners
    ours, mine = runners[name], samples[name]
    shares = {}
    if peaks:
        rate = [flop * ours.frames / x.wall for x in mine]
        pairs = zip(rate, peaks[1:], strict=True)
        shares = {
            "gemm_flop_per_second": measure.spread(peaks[1:]),
            "share_of_gemm": measure.spread([a / b for a, b in pairs]),
        }
    results.add(**about, figure="speed", variant=name, **figures(ours, mine), **shares)
    for other in others:
        theirs = runners[other]
        results.add(
            **about, figure="speed", variant=other, **figures(theirs, samples[other])
        )
        work = ours.frames / theirs.frames
        ratio = measure.ratios(samples[other], mine, work)
        results.add(**about, figure="ratio", variant=name, against=other, **ratio)


# --- PPO ------------------------------------------------------------------------------


def ppo_part(part: str, config: dict, sizes: tuple, options: dict, flop: float) -> None:
    results = Results(f"throughput_{part}")
    if options["curves"]:
        long = {"num_seeds": 32, "total_timesteps": 100_000}
        if part == "breakout":
            long = {"num_seeds": 8, "total_timesteps": 409_600}
        rows = reference_ppo.compare(config=config, **long)
        if not equal_curves(results, part, rows):
            return
    per_update = config["NUM_ENVS"] * config["NUM_STEPS"]
    for size in options["populations"] or sizes:
        frames = options["frames"] or (2**19 if on_cpu() else 2**17)
        # A lifetime is many updates: what a call itself costs must not show.
        updates = max(16, frames // (size * per_update))
        devices = devices_for(size)
        loop = reference_ppo.our_loop(config, updates * per_update, 1)
        runners = {"ours": populations.ours(loop, size, devices)}
        make = populations.reference
        runners["reference, sharded"] = make(config, size, devices, updates)
        if len(devices) > 1:
            runners["reference"] = make(config, size, devices[:1], updates)
        against(
            results,
            part,
            size,
            runners,
            options["repeats"],
            flop,
            devices=len(devices),
        )


def actor_critic_part(name: str, options: dict) -> None:
    """A2C, and IMPALA with actors that are four updates behind, on CartPole."""
    results = Results(f"throughput_{name}")
    rows = reference_impala.compare(name) if options["curves"] else []
    if not equal_curves(results, name, rows):
        return
    config = reference_impala.CONFIGS[name]
    per_update = config["NUM_ENVS"] * config["NUM_STEPS"]
    for size in options["populations"] or (8, 32):
        updates = (options["frames"] or 524_288) // (size * per_update)
        devices = devices_for(size)
        frames = updates * per_update
        loop = reference_impala.our_loop(name, frames)
        update = reference_impala.make_update(config)

        def train(carry, update=update, updates=updates):
            return jax.lax.scan(update, carry, None, updates)

        init = reference_impala.make_init(config, updates)
        runners = {"ours": populations.ours(loop, size, devices)}
        runners["reference, sharded"] = populations.mapped(
            init, train, size, devices, frames
        )
        against(results, name, size, runners, options["repeats"], devices=len(devices))


# --- what replays ---------------------------------------------------------------------


def dqn_part(options: dict) -> None:
    """Learning every 4th step of 10 environments, as PureJaxRL's does."""
    results = Results("throughput_dqn")
    if options["curves"] and not equal_curves(results, "dqn", reference_dqn.compare()):
        return
    for size in options["populations"] or (8,):
        devices = devices_for(size)
        frames = options["frames"] or 400_000
        each = frames // size // 40 * 40
        loop = reference_dqn.our_loop(each)
        runners = {"ours": populations.ours(loop, size, devices)}
        runners["reference, sharded"] = populations.mapped(
            *reference_dqn.make(each // 10), size, devices, each
        )
        against(results, "dqn", size, runners, options["repeats"])


OFF_POLICY = {
    "learning_starts": 1_000,
    "buffer_size": 20_000,
    "num_segments": 1,
    "features": (64, 64),
    "batch_size": 128,
}


def off_policy(name: str, frames: int):
    """A loop that learns at every step, of small networks."""
    if name == "dqn":
        env = envs.make("gymnax/CartPole-v1")
        sizes = {"num_envs": 1, "num_steps": 1, "num_gradient_steps": 1}
        return dqn.make(env, dqn.Config(frames + 1_000, **OFF_POLICY, **sizes))
    env, module = envs.make("gymnax/Pendulum-v1"), {"td3": td3, "sac": sac}[name]
    return module.make(env, module.Config(frames + 1_000, **OFF_POLICY))


def off_policy_part(options: dict) -> None:
    """A population of 16 against 16 runs one after the other, on the same cores."""
    results = Results("throughput_offpolicy")
    for size in options["populations"] or (16,):
        each = (options["frames"] or 32_000) // size
        for name in ("dqn", "td3", "sac"):
            loop = off_policy(name, each)
            alone = populations.ours(loop, 1, jax.devices()[:1])

            def one_by_one(run=alone.run, size=size):
                for _ in range(size):
                    run()

            runners = {
                "ours": populations.ours(loop, size, devices_for(size)),
                "one by one": populations.Runner(one_by_one, size * alone.frames),
            }
            against(results, name, size, runners, options["repeats"])


def pqn_part(options: dict) -> None:
    results = Results("throughput_pqn")
    loop = pqn.make(
        envs.make("gymnax/CartPole-v1"),
        pqn.Config(total_timesteps=65_536, num_segments=1),
    )
    for size in options["populations"] or (1, 8):
        runners = {"ours": populations.ours(loop, size, devices_for(size))}
        against(results, "pqn", size, runners, options["repeats"])


def brax_part(options: dict) -> None:
    results = Results("throughput_brax")
    config = ppo.Config(
        total_timesteps=32_768, num_envs=64, num_steps=32, num_segments=1
    )
    loop = ppo.make(envs.make("brax/ant"), config)
    for size in options["populations"] or (1, 16):
        runners = {"ours": populations.ours(loop, size, devices_for(size))}
        against(results, "brax", size, runners, options["repeats"])


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    parts = [name for name, chosen in options.items() if chosen is True]
    parts = [name for name in parts if name != "curves"]
    if not parts:
        sys.exit(__doc__)
    print(f"load {os.getloadavg()[0]:.1f}, {len(jax.devices())} device(s)", flush=True)
    config, breakout = reference_ppo.CONFIG, reference_ppo.BREAKOUT
    if options["ppo"]:
        ppo_part("cartpole", config, (1, 8, 32, 128), options, PPO_CARTPOLE_FLOP)
    if options["breakout"]:
        ppo_part("breakout", breakout, (2, 8), options, PPO_BREAKOUT_FLOP)
    run = {"dqn": dqn_part, "offpolicy": off_policy_part}
    run |= {"pqn": pqn_part, "brax": brax_part}
    run |= {name: partial(actor_critic_part, name) for name in ("a2c", "impala")}
    for name, part in run.items():
        if options[name]:
            part(options)


if __name__ == "__main__":
    main(sys.argv[1:])
