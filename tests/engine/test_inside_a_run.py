"""Commands in the directory of a stranger's run: nothing that was planted is obeyed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import planted
import pytest
import wandb_server

import metaevo
from searches import pbt_toy

ROOT = Path(__file__).parents[2]
KEY = "0" * 40
CODE = """
jaxlib/__init__.py jaxlib/xla_client.py sitecustomize.py usercustomize.py
jax.py numpy.py wandb.py gymnax.py brax.py tabnanny.py configparser.py matplotlib.py
searches/pbt_toy.py inner_loops/ppo.py strategies/open_es.py metaevo.py
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Make a finished run. Commands with another cache take it for a stranger's."""
    folder = tmp_path_factory.mktemp("whole")
    given = {"held_out_seeds": 0, "devices": 1, "wandb": "disabled"}
    config = metaevo.RunConfig(directory=str(folder / "run"), **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        metaevo.run(pbt_toy.search, config, num_generations=2)
    return folder / "run"


@pytest.fixture
def run(tmp_path, whole):
    """A whole run, in which each file that Python or git would obey leaves a trace."""
    run = tmp_path / "downloads" / "run"
    shutil.copytree(whole, run)
    subprocess.run(["git", "init", "-q", run], check=True)
    canary = tmp_path / "canary"
    canary.mkdir()
    place = {"url": "http://127.0.0.1:9", "canary": str(canary)}
    for name in (*CODE.split(), ".git/config", ".gitattributes"):
        path = run / name
        path.parent.mkdir(exist_ok=True)
        planted.KINDS["host"](path, place)
    ran = subprocess.run([sys.executable, "-c", "import jaxlib"], cwd=run, check=False)
    assert [x.name for x in canary.iterdir()] == ["jaxlib"]  # the traps work
    assert ran.returncode == 1
    (canary / "jaxlib").unlink()
    return run


@pytest.mark.parametrize(
    ("line", "files", "code"),
    [
        ("verify .", (), 0),
        ("wandb-push .", (), 0),
        ("list environments", (), 0),
        ("wandb-push ../whole", ("wandb/settings",), 4),
    ],
)
def test_a_command_obeys_nothing_where_it_works(
    run, whole, tmp_path, line, files, code
):
    """`-P` is how the program `metaevo` starts: without this folder on its path."""
    shutil.copytree(whole, run.parent / "whole")
    home = tmp_path / "home"
    (home / ".config" / "wandb").mkdir(parents=True)
    with wandb_server.serve() as server, wandb_server.stranger() as (url, met):
        settings = f"[default]\nbase_url = {server.url}\n"
        (home / ".config" / "wandb" / "settings").write_text(settings)
        for name in files:
            (run / name).parent.mkdir()
            planted.KINDS["host"](run / name, {"url": url, "canary": ""})
        env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
        env |= {"HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        env |= {"WANDB_API_KEY": KEY, "HTTP_PROXY": url, "NO_PROXY": "127.0.0.1"}
        env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
        out = subprocess.run(
            [sys.executable, "-P", "-m", "metaevo", *line.split()],
            cwd=run,
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert out.returncode == code, out.stdout + out.stderr
        assert met == []
        assert bool(server.texts) == (line == "wandb-push ." and code == 0)
    assert [*(tmp_path / "canary").iterdir()] == []
