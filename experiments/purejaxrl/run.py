"""PureJaxRL's figures: speed of environments, a grid, curves beside torch.

    python -m experiments.purejaxrl.run steps grid curves breakout      50 minutes

`steps`: environment steps a second with random actions, gymnax under jit(vmap) and
scan, gymnasium's environments one after the other and as its vector of 64; in turns,
five rounds. `grid`: PPO's return on CartPole at each of 2,048 pairs of step size and
clip, one program, at a tenth of the default frames. `curves`: PPO here, of
Stable-Baselines3 and of examples/torch_ppo.py with one setting on CartPole, 8 seeds,
return over frames and over seconds, each on one core. `breakout`: PPO here and of
Stable-Baselines3 on MinAtar's Breakout with PureJaxRL's setting, 4 seeds, likewise;
that of the package MinAtar without sticky actions. `.venv-torch` is made by
`make .venv-torch/.installed`. A part that is in the results is not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import metaevo  # noqa: E402
from benchmarks import measure  # noqa: E402
from inner_loops import ppo  # noqa: E402
from metaevo import envs, fitness  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402

FOLDER = Path(__file__).parent
IMAGES = FOLDER.parents[1] / "docs" / "images"
TORCH = FOLDER.parents[1] / ".venv-torch" / "bin" / "python"
TASKS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0")
ROUNDS, NUM_SEEDS, FRAMES, WINDOWS = 5, 8, 102_400, 20
SIDE = {"lr": (1e-5, 1e-1, 64), "clip_eps": (0.01, 1.0, 32)}

# One setting for all three: 4 environments x 128 steps, 4 epochs of 4 minibatches.
SETTING = {"num_envs": 4, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4}

MINATAR = {"num_envs": 64, "num_steps": 128, "num_epochs": 4, "num_minibatches": 8}
MINATAR |= {"activation": "relu"}
MINATAR_FRAMES, MINATAR_SEEDS = 20 * 3 * 64 * 128, 4
PINNED = ["taskset", "-c", "0"]

GYMNASIUM = """
import sys, time
import gymnasium
task, count = sys.argv[1], int(sys.argv[2])
env = gymnasium.make(task) if count == 1 else gymnasium.make_vec(task, num_envs=count)
env.reset(seed=0)
for line in sys.stdin:
    steps = int(line) // count
    began = time.perf_counter()
    for _ in range(steps):
        _, _, ended, cut, _ = env.step(env.action_space.sample())
        if count == 1 and (ended or cut):
            env.reset()
    print(steps * count / (time.perf_counter() - began), flush=True)
"""

STABLE_BASELINES3 = """
import json, sys, time
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
torch.set_num_threads(1)
frames, seed = map(int, sys.argv[1:])
ended = []
class Note(BaseCallback):
    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                ended.append((self.num_timesteps, info["episode"]["r"]))
        return True
env = make_vec_env("CartPole-v1", n_envs=4, seed=seed)
model = PPO("MlpPolicy", env, learning_rate=lambda left: 2.5e-4 * left, n_steps=128,
    batch_size=128, n_epochs=4, gamma=0.99, gae_lambda=0.95, clip_range=0.2,
    ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, seed=seed, device="cpu",
    policy_kwargs={"net_arch": [64, 64]})
began = time.perf_counter()
model.learn(frames, callback=Note())
print(json.dumps({"seconds": time.perf_counter() - began, "ended": ended}))
"""

BREAKOUT = """
import json, sys, time
import gymnasium, torch
from minatar.gym import BaseEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
torch.set_num_threads(1)
frames, seed = map(int, sys.argv[1:])
ended = []
class Note(BaseCallback):
    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                ended.append((self.num_timesteps, info["episode"]["r"]))
        return True
def game():
    made = BaseEnv("breakout", use_minimal_action_set=True, sticky_action_prob=0.0)
    return gymnasium.wrappers.TimeLimit(made, 1000)
env = make_vec_env(game, n_envs=64, seed=seed)
model = PPO("MlpPolicy", env, learning_rate=lambda left: 5e-3 * left, n_steps=128,
    batch_size=1024, n_epochs=4, gamma=0.99, gae_lambda=0.95, clip_range=0.2,
    ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, seed=seed, device="cpu",
    policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.ReLU})
began = time.perf_counter()
model.learn(frames, callback=Note())
print(json.dumps({"seconds": time.perf_counter() - began, "ended": ended}))
"""

TORCH_PPO = """
import json, sys, time
sys.path.insert(0, "examples")
import torch, torch_ppo as one
from torch import nn
torch.set_num_threads(1)
frames, seed = map(int, sys.argv[1:])
one.NUM_STEPS, one.LR = 128, 2.5e-4
def network(num_outputs, gain):
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
one.network, ended, calls, rollout = network, [], [0], one.rollout
def noted(*args):
    found = rollout(*args)
    calls[0] += 1
    ended.extend((calls[0] * 512, x) for x in found[3])
    return found
one.rollout = noted
began = time.perf_counter()
one.train(one.squared_error, frames // 512, seed)
print(json.dumps({"seconds": time.perf_counter() - began, "ended": ended}))
"""


# --- steps ----------------------------------------------------------------------------


def gymnax_steps(task: str, count: int, steps: int):
    """A function that takes `count` times `steps` steps and returns steps a second."""
    import gymnax

    env, params = gymnax.make(task)
    space = env.action_space(params)

    def one(carry, key):
        state, total = carry
        actions = jax.vmap(space.sample)(jax.random.split(key, count))
        keys = jax.random.split(jax.random.fold_in(key, 1), count)
        _, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(
            keys, state, actions, params
        )
        return (state, total + reward.sum()), None

    @jax.jit
    def program(state, key):
        keys = jax.random.split(key, steps)
        return jax.lax.scan(one, (state, jnp.float32(0)), keys)[0]

    keys = jax.random.split(jax.random.key(0), count)
    _, start = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)
    jax.block_until_ready(program(start, jax.random.key(1)))

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(program(start, jax.random.key(2)))
        return count * steps / (time.perf_counter() - began)

    return run


def steps(results) -> None:
    """One line per task: steps a second, and the ratios of the rounds."""
    for task in TASKS:
        ways = {
            "gymnax, 1": gymnax_steps(task, 1, 200_000),
            "gymnax, 64": gymnax_steps(task, 64, 20_000),
            "gymnax, 2048": gymnax_steps(task, 2048, 1_000),
        }
        children = []
        for count in (1, 64):
            pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            child = subprocess.Popen([TORCH, "-c", GYMNASIUM, task, str(count)], **pipe)
            children.append(child)

            def theirs(child=child) -> float:
                child.stdin.write("20000\n")
                child.stdin.flush()
                return float(child.stdout.readline())

            ways[f"gymnasium, {count}"] = theirs
            theirs()
        rounds = [{name: run() for name, run in ways.items()} for _ in range(ROUNDS)]
        for child in children:
            child.stdin.close()
        rate = {name: measure.spread([x[name] for x in rounds]) for name in ways}
        ratio = [x["gymnax, 2048"] / x["gymnasium, 1"] for x in rounds]
        results.add(
            part="steps", task=task, rate=rate, ratio_2048_to_1=measure.spread(ratio)
        )


# --- grid -----------------------------------------------------------------------------


def grid(results) -> None:
    """One line: the return in the last quarter at each of the points."""
    config = ppo.Config(51_200, num_segments=4, **SETTING)
    loop = ppo.make(envs.make("gymnax/CartPole-v1"), config)
    axes = [np.geomspace(*side) for side in SIDE.values()]
    points = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")])
    params = dict(zip(SIDE, jnp.asarray(points, jnp.float32), strict=True))

    def bind(params, meta):
        return meta._replace(**params)

    space = metaevo.Space(lambda key: {name: jnp.zeros(()) for name in SIDE}, bind)
    score = fitness.last_segments(1)
    search = metaevo.Search(loop, space, None, 1, score, chunk_size=128)
    evaluator = LocalEvaluator(search)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        evaluated, _ = evaluator(jax.random.key(0), metaevo.Proposal(params), None)
        scores = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
        seconds.append(round(time.perf_counter() - began, 1))
    results.add(
        part="grid",
        points=len(points[0]),
        frames=len(points[0]) * config.total_timesteps,
        seconds_with_compilation=seconds[0],
        seconds=seconds[1],
        lr=[float(f"{x:.4g}") for x in axes[0]],
        clip_eps=[float(f"{x:.4g}") for x in axes[1]],
        returns=np.round(scores.reshape(len(axes[0]), -1).astype(float), 1).tolist(),
    )


# --- curves ---------------------------------------------------------------------------


def theirs(program: str, seed: int, frames: int = FRAMES) -> dict:
    """Seconds of one torch agent on one core, and its curve."""
    command = [*PINNED, TORCH, "-c", program, str(frames), str(seed)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for frame, x in found["ended"]:
        windows[min(int(frame * WINDOWS / frames), WINDOWS - 1)].append(x)
    curve = [round(float(np.mean(x)), 2) if x else None for x in windows]
    return {"seconds": round(found["seconds"], 2), "curve": curve}


def ours(count: int, task: str = "curves") -> dict:
    """Seconds of `count` agents on one core after and of compilation, and curves."""
    command = [*PINNED, sys.executable, "-m", "experiments.purejaxrl.run"]
    words = [f"ours={count}", task]
    done = subprocess.run([*command, *words], capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def our_agents(count: int, task: str) -> dict:
    """What `ours` returns, in its process."""
    if task == "curves":
        config = ppo.Config(FRAMES, num_segments=WINDOWS, **SETTING)
        loop = ppo.make(envs.make("gymnax/CartPole-v1"), config, ppo.Meta(lr=2.5e-4))
    else:
        config = ppo.Config(MINATAR_FRAMES, num_segments=WINDOWS, **MINATAR)
        env = envs.make("gymnax/Breakout-MinAtar")
        loop = ppo.make(env, config, ppo.Meta(lr=5e-3))

    @jax.jit
    @jax.vmap
    def agent(key):
        def segment(state, _):
            return loop.train(key, loop.meta, state)

        state = loop.init(jax.random.fold_in(key, 1), loop.meta)
        return jax.lax.scan(segment, state, length=WINDOWS)[1]

    keys = jax.random.split(jax.random.key(0), count)
    began = time.perf_counter()
    program = agent.lower(keys).compile()
    compiled = time.perf_counter()
    curves = np.asarray(jax.block_until_ready(program(keys))["return"])
    ended = time.perf_counter()
    return {
        "seconds": round(ended - compiled, 3),
        "compilation": round(compiled - began, 2),
        "curves": np.round(curves[:NUM_SEEDS].astype(float), 2).tolist(),
    }


def curves(results) -> None:
    """A line per seed of each torch agent, and one per number of ours."""
    for count in (1, 8):
        results.add(part="curves", way="metaevo", count=count, **ours(count))
    torch = {"Stable-Baselines3": STABLE_BASELINES3, "CleanRL's style": TORCH_PPO}
    for seed in range(NUM_SEEDS):
        for way, program in torch.items():
            results.add(part="curves", way=way, seed=seed, **theirs(program, seed))


def breakout(results) -> None:
    """A line of our agents, and one per seed of Stable-Baselines3's."""
    mine = ours(MINATAR_SEEDS, "breakout")
    results.add(part="breakout", way="metaevo", count=MINATAR_SEEDS, **mine)
    for seed in range(MINATAR_SEEDS):
        found = theirs(BREAKOUT, seed, MINATAR_FRAMES)
        results.add(part="breakout", way="Stable-Baselines3", seed=seed, **found)


def panels_of(panels, lines: list[dict], frames: int, task: str) -> None:
    """Curves of one task over frames and over seconds."""
    for way in dict.fromkeys(x["way"] for x in lines):
        rows = [x for x in lines if x["way"] == way]
        if way == "metaevo":
            most = rows[-1]
            found, seconds = np.array(most["curves"]), most["seconds"]
            label = f"metaevo, {most['count']} agents at once"
        else:
            found = np.array([x["curve"] for x in rows], float)
            seconds, label = np.mean([x["seconds"] for x in rows]), f"{way}, one agent"
        mean = np.nanmean(found, 0)
        error = 1.96 * np.nanstd(found, 0, ddof=1) / len(found) ** 0.5
        places = (np.arange(WINDOWS) + 1) / WINDOWS
        for panel, end in zip(panels, (frames, seconds), strict=True):
            line = panel.plot(places * end, mean, label=label)[0]
            options = {"alpha": 0.2, "color": line.get_color(), "linewidth": 0}
            panel.fill_between(places * end, mean - error, mean + error, **options)
    panels[0].set(xlabel="frames of one agent", ylabel=f"return on {task}")
    panels[1].set(xlabel="seconds on one core, compilation not counted", xscale="log")
    panels[1].xaxis.set_minor_formatter("")
    panels[0].legend(frameon=False, fontsize=8)


def draw(lines: list[dict]) -> None:
    """The curves of both tasks, and the grid."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(2, 2, figsize=(9, 7), sharey="row")
    tasks = (("curves", FRAMES, "CartPole"), ("breakout", MINATAR_FRAMES, "Breakout"))
    for panels, (part, frames, task) in zip(rows, tasks, strict=True):
        panels_of(panels, [x for x in lines if x["part"] == part], frames, task)
    figure.tight_layout()
    figure.savefig(IMAGES / "purejaxrl_curves.png", dpi=120)

    found = next(x for x in lines if x["part"] == "grid")
    figure, panel = plt.subplots(figsize=(5, 3.6))
    mesh = panel.pcolormesh(
        found["lr"], found["clip_eps"], np.array(found["returns"]).T, shading="nearest"
    )
    panel.set(xscale="log", yscale="log", xlabel="step size", ylabel="clip")
    figure.colorbar(mesh, label="return, last quarter of 51,200 frames")
    figure.tight_layout()
    figure.savefig(IMAGES / "purejaxrl_grid.png", dpi=120)


PARTS = {"steps": steps, "grid": grid, "curves": curves, "breakout": breakout}


def main(argv: list[str]) -> None:
    if argv and argv[0].startswith("ours="):
        print(json.dumps(our_agents(int(argv[0].partition("=")[2]), argv[1])))
        return
    results = measure.Results("results", keep=True, folder=FOLDER)
    for part in argv or PARTS:
        if part not in {json.loads(x)["part"] for x in results.lines}:
            PARTS[part](results)
    lines = [json.loads(x) for x in results.lines]
    if {x["part"] for x in lines} == {*PARTS}:
        draw(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
