"""An installed metaevo beside a user's own folders of the same names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("metaevo", "inner_loops", "strategies", "searches")


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with a search of one's own; runs a command there, metaevo installed."""
    site = tmp_path_factory.mktemp("site")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, site / name, ignore=ignored)
    folder = tmp_path_factory.mktemp("user")
    (folder / "searches").mkdir()
    source = (ROOT / "searches" / "ppo_value_loss.py").read_text()
    (folder / "searches" / "mine.py").write_text(source.replace("Evolve", "Mine:", 1))

    def run(*command):
        out = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert out.returncode == 0, out.stderr
        return out.stdout

    return run


METAEVO = "from metaevo.cli.main import command; command()"


def test_own_search_runs_as_a_module(user):
    assert user("-m", "searches.mine", "--help").startswith("Mine: the value loss")


def test_shipped_search_still_runs_as_a_module(user):
    assert user("-m", "searches.ppo_drift", "--help").startswith("Evolve PPO's drift")


def test_own_and_shipped_searches_are_listed(user):
    listed = user("-c", METAEVO, "list", "searches")
    assert "\n  mine " in listed
    assert "\n  ppo_drift " in listed


@pytest.mark.parametrize("name", ["mine", "ppo_value_loss"])
def test_command_runs_own_and_shipped_searches(user, name):
    printed = user("-c", METAEVO, "run", name, "--cfg")
    assert "env=gymnax/CartPole-v1" in printed


def test_no_package_but_metaevo_has_an_init_file():
    """With one, a user's folder of the same name would hide ours, or ours theirs."""
    for name in PACKAGES[1:]:
        assert not (ROOT / name / "__init__.py").exists()
