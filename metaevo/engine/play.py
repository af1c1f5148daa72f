"""Episodes of the agents of a run's held-out comparison, as GIFs."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs, population, slots
from metaevo.errors import CheckpointError, ConfigError
from metaevo.rl import planning
from metaevo.storage import artifacts, checkpoint, run_directory, verified
from metaevo.storage._files import replace_file
from metaevo.types import InnerLoop, Key, PyTree, Search

AGENTS: tuple = ("solution", "hand-made", "best", "trained")
MILLISECONDS, MILLISECONDS_A_MOVE = 50, 900  # for which a frame is shown


class Recording(NamedTuple):
    """An episode as a GIF, which a notebook shows.

    Attributes:
        path: the file.
        steps: number of steps.
        total: undiscounted return.
    """

    path: Path
    steps: int
    total: float

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.path.read_bytes()).decode()
        said = f"{self.steps} steps, return {self.total:g}"
        return f'<img src="data:image/gif;base64,{data}" alt="{said}"><p>{said}</p>'


def episode(
    key: Key, loop: InnerLoop, meta: Any, agent: PyTree
) -> tuple[list[PyTree], list[PyTree], float]:
    """Play one episode of a trained agent under its deterministic policy.

    Args:
        key: PRNG key of the environment and of the policy.
        loop: Inner loop of the agent; it has an environment.
        meta: Slots with which the agent was trained.
        agent: Agent of one run, without leading axes.

    Returns:
        The environment's states from the first to the last, what `act` carried after
        each step, on the host, and the undiscounted return: of several players their
        mean, in a game of turns that of the first.
    """
    env = loop.env
    assert env is not None

    def act(key, carry, obs, state, mask):
        return loop.act(key, meta, agent, carry, obs, state, mask)

    everyone = envs.each_player(env, act)
    seats = () if env.num_players == 1 else (env.num_players,)
    carry = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (*seats, *jnp.shape(x))), loop.initial_carry()
    )

    def step(now, key):
        state, carry, obs = now
        act_key, step_key = jax.random.split(key)
        mask = envs.legal_actions(env, state)
        action, carry = everyone(act_key, carry, obs, state, mask)
        state, out = env.step_raw(step_key, state, action)
        return (state, carry, out.obs), (state, carry, _reward(env, out), out.done)

    @jax.jit
    def whole(key):
        reset_key, run_key = jax.random.split(key)
        state, obs = env.reset(reset_key)
        keys = jax.random.split(run_key, env.max_steps)
        return state, jax.lax.scan(step, (state, carry, obs), keys)[1]

    first, (states, carries, rewards, done) = jax.device_get(whole(key))
    length = int(done.argmax()) + 1 if done.any() else len(done)

    def unstacked(tree):
        return [jax.tree.map(lambda x, t=t: x[t], tree) for t in range(length)]

    total = float(rewards[:length].sum())
    return [first, *unstacked(states)], unstacked(carries), total


def _reward(env: envs.Env, out: envs.Step) -> jax.Array:
    """A step's reward, as one number."""
    if env.player is not None:
        return out.info["rewards"][0]
    return out.reward if env.num_players == 1 else out.reward.mean(-1)


def play(
    make: Callable[[], Search],
    directory: str | Path,
    agent: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Recording:
    """Play an agent for one episode and write it as a GIF.

    Args:
        make: Makes the run's search; called after the other arguments were checked.
        directory: Directory of the run.
        agent: `solution`, trained with what was evolved; `hand-made`; `best`, the best
            agent of a persistent population; or `trained`, of a training run. None: the
            first of these that the run has.
        seed: Index of the held-out seed, or of the search's seed, whose agent plays.
            It also determines the episode.
        out: Name of the file; None: `DIRECTORY/play/AGENT-SEED.gif`.

    Returns:
        The recording.

    Raises:
        ConfigError: No such agent was kept, the environment cannot be drawn, or the
            file cannot be written.
        ArtifactError: The solution was altered.
        CheckpointError: The agents were altered, or are of another search.
    """
    directory = Path(directory)
    if agent is None:
        there = (x for x in AGENTS if (directory / "agents" / x).is_dir())
        agent = next(there, "solution")
    kept = directory / "agents" / agent
    if not kept.is_dir():
        raise ConfigError(
            f"{directory}: no agents here ({kept} is missing); they are kept at the "
            "end of a run, of a search with run.held_out_seeds of 2 or more"
        )
    described = checkpoint.check(kept)["arrays"]
    shapes = [shape for shape, _ in described.values()]
    if not shapes or not all(shape[:1] == shapes[0][:1] != [] for shape in shapes):
        raise CheckpointError(f"{kept}: its arrays are not those of agents")
    (num_agents, *_), *_ = shapes
    if not 0 <= seed < num_agents:
        raise ConfigError(
            f"seed={seed}: the run kept {num_agents} agents, 0 to {num_agents - 1}"
        )
    path = Path(out or directory / "play" / f"{agent}-{seed}.gif")
    if path.suffix != ".gif":
        raise ConfigError(f"out={path}: expected a name that ends in .gif")
    run_directory.check_writable("out", path.parent)
    loop = make().tasks[0]
    if agent == "hand-made" and loop.hand_made is not None:
        loop = loop.hand_made
    if loop.env is None or loop.env.render is None:
        name = loop.env.name if loop.env else ""
        raise ConfigError(
            f"{name or 'the environment'} cannot be drawn: its Env has no render"
        )

    key = jax.random.fold_in(jax.random.key(0), seed)
    meta = loop.meta
    if agent == "solution":
        loaded = artifacts.load(directory).slots
        bare = {name: slots.unchecked(x) for name, x in loaded.items()}
        meta = slots.replace(meta, **bare)
    template = population.agent_shapes(loop)
    one = {name: (shape[1:], kind) for name, (shape, kind) in described.items()}
    checkpoint.check_described(template, one)
    trained = checkpoint.from_arrays(template, verified.row(kept, seed))
    states, carries, total = episode(key, loop, meta, trained)
    if loop.env.player is not None:
        shares = [x.visits for x in carries if isinstance(x, planning.Thought)]
        _write_gif(path, loop.env.render(states, shares), MILLISECONDS_A_MOVE)
    else:
        _write_gif(path, loop.env.render(states), MILLISECONDS)
    return Recording(path, len(states) - 1, total)


def _write_gif(path: Path, frames: list[np.ndarray], milliseconds: int) -> None:
    from PIL import Image

    first, *rest = [Image.fromarray(frame) for frame in frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    options = {"append_images": rest, "duration": milliseconds, "loop": 0}
    first.save(data, "gif", save_all=True, **options)
    replace_file(path, data.getvalue())
