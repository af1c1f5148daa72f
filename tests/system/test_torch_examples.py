"""The examples in PyTorch learn with exported losses and rewards."""

import subprocess
import sys
from pathlib import Path

import jax
import learned as helper
import numpy as np
import pytest
from scipy import stats

from metaevo import critic_losses, envs, rewards
from metaevo.export import files
from metaevo.storage import artifacts

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
ELSEWHERE = ROOT / ".venv-torch" / "bin" / "python"
AGAINST_ITSELF = HELPERS / "sb3_against_itself.py"
pytestmark = pytest.mark.skipif(
    not ELSEWHERE.exists(), reason="make test-system makes .venv-torch"
)


def export(folder, slot, learned, framework="torch"):
    """The exported function of an artifact in the same folder."""
    params, spec = {slot: helper.away(learned)}, {slot: learned.spec}
    artifacts.save(folder / "solution", params, spec, {}, {})
    return files.write(folder, framework, folder / "evolved.py")


@pytest.fixture
def exported(tmp_path):
    return export(tmp_path, "value_loss", critic_losses.weighted_square())


def printed(*command):
    """The lines that a script prints in the other environment."""
    done = subprocess.run(
        [ELSEWHERE, *map(str, command)],
        env={"PATH": "", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run(*command):
    """The numbers on the last line that it prints."""
    return [float(x) for x in printed(*command)[-1].split()]


def test_exported_loss_trains_the_agent_that_the_loss_by_jax_trains(exported):
    packages = Path(jax.__file__).parents[1]
    script, updates = HELPERS / "torch_against_jax.py", 5  # 80 gradient steps
    by_jax, by_square, moved, apart = run(
        script, exported, exported.parent, updates, ROOT, packages, *sys.path
    )
    assert by_jax < 1e-5
    assert by_square > 1e-3
    assert moved > 1e-2
    assert apart < 1e-5


@pytest.mark.slow
def test_agents_of_the_exported_loss_are_as_good_as_those_of_the_loss_by_jax(tmp_path):
    """At full length rounding has made other agents of them: 16 seeds of each."""
    script, packages = HELPERS / "torch_seeds_against_jax.py", Path(jax.__file__)
    exported = files.write("zoo:value_loss", "torch", tmp_path / "evolved.py")
    given = (script, exported, "zoo:value_loss", 16, ROOT, packages.parents[1])
    scores = np.loadtxt(printed(*given, *sys.path))[:, :2]
    print(scores)
    (mine, theirs), spread = scores.mean(0), scores.var(0, ddof=1) / len(scores)
    # Welch's interval: its degrees of freedom are at least 15.
    assert abs(mine - theirs) <= stats.t.ppf(0.975, 15) * np.sqrt(spread.sum())


def test_loss_takes_the_place_of_the_squared_error_of_stable_baselines(exported):
    square = exported.with_name("square.py")
    square.write_text(
        "def value_loss(value, target, old_value):\n"
        "    return 0.5 * (value - target) ** 2\n"
    )
    by_square, by_exported = run(AGAINST_ITSELF, "sb3_ppo", exported, square)
    assert by_square < 1e-5
    assert by_exported > 1e-3


def test_loss_takes_the_place_of_the_huber_loss_of_stable_baselines(tmp_path):
    exported = export(tmp_path, "td_loss", critic_losses.td_weighted_square())
    huber = tmp_path / "huber.py"
    huber.write_text(
        "def td_loss(q, target):\n"
        "    size = abs(target - q)\n"
        "    return (0.5 * size**2).where(size < 1, size - 0.5)\n"
    )
    by_huber, by_exported = run(AGAINST_ITSELF, "sb3_dqn", exported, huber)
    assert by_huber < 1e-5
    assert by_exported > 1e-3


def test_reward_takes_the_place_of_that_of_a_gymnasium_environment(tmp_path):
    learned = rewards.potential(rewards.units(envs.make("gymnax/MountainCar-v0")))
    exported = export(tmp_path, "reward", learned, "numpy")
    own = tmp_path / "own.py"
    own.write_text(
        "def reward(obs, action, reward, next_obs, terminated):\n    return reward\n"
    )
    by_own, by_exported = run(AGAINST_ITSELF, "sb3_reward", exported, own)
    assert by_own == 0.0
    assert by_exported > 1e-4


def test_the_wrapper_gives_the_reward_of_each_transition(tmp_path):
    """The rewards of an episode that terminates, against those that JAX computes."""
    env = envs.make("gymnax/CartPole-v1")
    learned = rewards.potential(rewards.units(env))
    exported = export(tmp_path, "reward", learned, "numpy")
    transitions = tmp_path / "transitions.npz"
    run(HELPERS / "wrapped_episode.py", exported, transitions)
    found = np.load(transitions)
    reward = artifacts.load(tmp_path).reward
    given = (found[x] for x in ("obs", "action", "reward", "next_obs", "terminated"))
    expected = jax.vmap(reward)(*given)
    np.testing.assert_allclose(found["evolved"], expected, rtol=1e-5, atol=1e-5)
    assert found["terminated"][-1]
    assert not found["terminated"][:-1].any()
