"""PPO on CartPole against rejax and stable-baselines3, at equal work.

    python -m benchmarks.peers                                      8 minutes

Each peer runs in a virtual environment that this command makes in `.venv-peers`, at the
versions below. Equal work: the environment, 4 environments x 128 steps, 4 epochs of 4
minibatches, two hidden layers of 64, the same number of frames. All print their mean
return over the last quarter; a ratio is printed where the peer's lies within 1.96
standard errors of both, or ours is better.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import measure, populations, reference_ppo  # noqa: E402

PEERS = {
    # It asks for no version of gymnax, but unpacks what a step gave before 1.0.
    "rejax": ["rejax==0.1.3", "gymnax==0.0.9"],
    "stable-baselines3": ["stable-baselines3==2.7.0", "gymnasium[classic-control]"],
}
DEFAULTS = {
    "rejax": True,
    "stable_baselines3": True,
    "repeats": 5,
    "frames": 100_000,
    "seeds": 8,
}

REJAX = """
import json, sys, time
import jax
from rejax import PPO
frames, seeds, repeats = map(int, sys.argv[1:])
algo = PPO.create(env="CartPole-v1", num_envs=4, num_steps=128, num_epochs=4,
    num_minibatches=4, total_timesteps=frames, eval_freq=frames // 4,
    learning_rate=2.5e-4, gamma=0.99, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01,
    vf_coef=0.5, max_grad_norm=0.5,
    agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)})
quiet = lambda *args: ()
timed = algo.replace(eval_callback=quiet, eval_freq=frames)
train = jax.jit(jax.vmap(lambda a, key: a.train(key), (None, 0)))
keys = jax.random.split(jax.random.key(0), seeds)
# LAPACK's QR under vmap can hang: if this does, the caller's limit says so.
_, (lengths, returns) = train(algo, keys)
print(json.dumps({"returns": returns[:, -1].mean(-1).tolist()}), flush=True)
jax.block_until_ready(train(timed, keys))
for line in sys.stdin:
    began = time.perf_counter()
    jax.block_until_ready(train(timed, keys))
    print(time.perf_counter() - began, flush=True)
"""

STABLE_BASELINES3 = """
import json, sys, time
import numpy as np, torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
frames, seeds, repeats = map(int, sys.argv[1:])
def train(seed):
    env = make_vec_env("CartPole-v1", n_envs=4, seed=seed)
    model = PPO("MlpPolicy", env, learning_rate=lambda left: 2.5e-4 * left,
        n_steps=128, batch_size=128, n_epochs=4, gamma=0.99, gae_lambda=0.95,
        clip_range=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, seed=seed,
        device="cpu", policy_kwargs={"net_arch": [64, 64]})
    model.learn(frames)
    return np.mean([x["r"] for x in model.ep_info_buffer])
print(json.dumps({"returns": [float(train(i)) for i in range(seeds)]}), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    train(0)
    print(time.perf_counter() - began, flush=True)
"""


def environment(name: str) -> Path:
    """The Python of the peer's virtual environment, made if it is not there."""
    folder = Path(".venv-peers") / name
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {', '.join(PEERS[name])} into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", *PEERS[name]]
        subprocess.run(install, check=True)
        (folder / ".installed").touch()
    return python


def peer(name: str, program: str, frames: int, seeds: int, repeats: int):
    """Its returns of the last quarter per seed, and a function that times one run."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    process = subprocess.Popen(
        [environment(name), "-c", program, str(frames), str(seeds), str(repeats)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    returns = json.loads(process.stdout.readline())["returns"]

    def run() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return np.array(returns), run, process


def compare(results, name, program, size, options) -> None:
    """Ours with `size` members against `size` members, or one run, of the peer."""
    frames, repeats = options["frames"] // 512 * 512, options["repeats"]
    config = reference_ppo.CONFIG
    ours = reference_ppo.trained(
        reference_ppo.our_loop(config, frames, 4), options["seeds"]
    )[:, -1]
    theirs, run, process = peer(name, program, frames, options["seeds"], repeats)
    error = [x.std(ddof=1) / np.sqrt(len(x)) for x in (ours, theirs)]
    about = {"part": "peers", "peer": name, "population": size}
    results.add(
        **about,
        figure="return",
        ours=float(ours.mean()),
        ours_se=float(error[0]),
        theirs=float(theirs.mean()),
        theirs_se=float(error[1]),
    )
    if theirs.mean() - ours.mean() > 1.96 * sum(error):
        print(f"{name}: its curve is better, so no ratio is printed")
        process.kill()
        return
    devices = jax.devices() if size > 1 else jax.devices()[:1]
    loop = reference_ppo.our_loop(config, frames, 1)
    mine = populations.ours(loop, size, devices)
    mine.run()
    ratios, speeds = [], []
    for _ in range(repeats):
        taken = measure.timed(mine.run).wall
        their_speed = size * frames / run()
        speeds.append((mine.frames / taken, their_speed))
        ratios.append(speeds[-1][0] / their_speed)
    process.kill()
    for variant, found in zip(("ours", name), zip(*speeds, strict=True), strict=True):
        rate = measure.spread(list(found))
        results.add(**about, figure="speed", variant=variant, frames_per_second=rate)
    ratio = measure.spread(ratios)
    results.add(**about, figure="ratio", variant="ours", against=name, wall=ratio)


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    results = measure.Results("peers")
    if options["rejax"]:
        compare(results, "rejax", REJAX, options["seeds"], options)
    if options["stable_baselines3"]:
        compare(results, "stable-baselines3", STABLE_BASELINES3, 1, options)


if __name__ == "__main__":
    main(sys.argv[1:])
