"""Pictures of environments, and playing the agents that a run kept."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.engine import play
from metaevo.engine.result import Again, Result
from metaevo.envs import gymnax as suite
from metaevo.errors import ConfigError
from metaevo.storage import artifacts, checkpoint
from strategies.open_es import open_es

DRAWN = {
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("Pendulum-v1", "Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar"),
    *("Seaquest-MinAtar", "SpaceInvaders-MinAtar", "Catch-bsuite", "DeepSea-bsuite"),
    *("FourRooms-misc", "MetaMaze-misc", "Pong-misc"),
}

REPRESENTATIVE = (
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "Pendulum-v1"),
    *("Breakout-MinAtar", "Catch-bsuite", "FourRooms-misc", "Pong-misc"),
)
"""One of each way to draw."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A search, and the folder of a run of it that kept two untrained agents.

    The hand-made ones have layers of other sizes.
    """
    directory, env = tmp_path_factory.mktemp("kept"), "gymnax/CartPole-v1"
    space = spaces.replace(value_loss=losses.residual_network("zero", (4,)))
    search = metaevo.Search(
        ppo.make(envs.make(env), ppo.Config(2048, num_segments=1, features=(8,))),
        space,
        open_es(space, 4, 0.5, optax.adam(0.3)),
        2,
        fitness.area_under_curve,
    )
    loop = search.tasks[0]
    config = ppo.Config(2048, num_segments=1, features=(4, 4))
    usual = ppo.make(envs.make(env), config)
    search = search._replace(inner_loop=loop._replace(hand_made=usual))
    params = space.init(jax.random.key(0))
    artifacts.save(directory / "solution", params, space.spec, {}, {})
    for i, (name, its) in enumerate({"solution": loop, "hand-made": usual}.items()):
        keys = jax.random.split(jax.random.key(i), 2)
        agents = jax.jit(jax.vmap(lambda key, its=its: its.init(key, its.meta).agent))(
            keys
        )
        checkpoint.write(directory / "agents" / name, checkpoint.to_arrays(agents), {})
    return directory, search


def test_environments_without_a_picture_say_so():
    made = {name: envs.make(f"gymnax/{name}") for name in suite.names()}
    assert {name for name, env in made.items() if env.render} == DRAWN


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_what_can_be_drawn_changes_as_one_acts(name):
    env = envs.make(f"gymnax/{name}")
    state, _ = env.reset(jax.random.key(3))
    states, step = [state], jax.jit(env.step_raw)
    for i in range(4):
        action = (
            jnp.int32(1) if isinstance(env.action, envs.Discrete) else env.action.high
        )
        states.append(step(jax.random.key(i), states[-1], action)[0])
    frames = env.render(jax.device_get(states))
    assert len(frames) == 5
    for frame in frames:
        assert frame.dtype == np.uint8
        assert frame.shape == (*frames[0].shape[:2], 3)
    assert any((frame != frames[0]).any() for frame in frames)


@pytest.fixture(scope="module")
def recorded(kept):
    directory, search = kept
    return play.play(lambda: search, directory, "hand-made", seed=1)


def test_an_episode_becomes_a_gif(kept, recorded, tmp_path):
    directory, search = kept
    path, steps, total = recorded
    assert path == directory / "play" / "hand-made-1.gif"
    with Image.open(path) as gif:
        assert 1 < gif.n_frames <= steps + 1  # equal neighbors are one, shown longer
        assert len(np.unique(np.asarray(gif.convert("RGB")).reshape(-1, 3), axis=0)) > 1
    other = play.play(lambda: search, directory, out=str(tmp_path / "x.gif"))
    assert other[0] == tmp_path / "x.gif"
    assert total == steps  # a reward of 1 each
    assert other[1:] != (steps, total)  # another agent, another episode


def test_a_result_plays_and_a_notebook_shows_it(kept, recorded):
    directory, search = kept
    again = Again(lambda changes: search, lambda *_: None)
    result = Result(directory, {}, {}, (), again=again)
    recording = result.play("hand-made", seed=1)
    assert recording == recorded
    shown = recording._repr_html_()
    assert f"{recording.steps} steps, return {recording.total:g}" in shown
    data = base64.b64decode(shown.partition("base64,")[2].partition('"')[0])
    assert data == recording.path.read_bytes()


def test_the_kept_agent_acts():
    """An agent that always pushes right drives CartPole off within 12 steps."""
    env = envs.make("gymnax/CartPole-v1")
    loop = ppo.make(env, ppo.Config(2048, num_segments=1, features=(8,)))
    agent = loop.init(jax.random.key(0), loop.meta).agent
    last = agent.params["actor"]["params"]["Dense_1"]
    last["bias"] = last["bias"] + jnp.array([0.0, 100.0])
    states, _, total = play.episode(jax.random.key(1), loop, loop.meta, agent)
    assert total == len(states) - 1 < 13
    speeds = [float(state.x_dot) for state in states]
    assert speeds == sorted(speeds)


def test_what_is_wrong_is_said(kept, tmp_path):
    directory, search = kept
    for arguments, message in (
        ({"seed": 2}, "seed=2: the run kept 2 agents, 0 to 1"),
        ({"seed": -1}, "seed=-1"),
        ({"out": "x.png"}, "out=x.png: expected a name that ends in .gif"),
        ({"out": "/proc/no/x.gif"}, "out=/proc/no: cannot write"),
    ):
        with pytest.raises(ConfigError, match=message):
            play.play(lambda: search, directory, **arguments)
    with pytest.raises(ConfigError, match="no agents here"):
        play.play(lambda: search, tmp_path)
    for env in (envs.make("gymnax/Reacher-misc"), None):
        blind = search._replace(inner_loop=search.inner_loop._replace(env=env))
        name = env.name if env else "the environment"
        with pytest.raises(ConfigError, match=f"{name} cannot be drawn"):
            play.play(lambda blind=blind: blind, directory)
