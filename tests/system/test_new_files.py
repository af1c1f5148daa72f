"""What `metaevo new` writes trains, in a folder of one's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("inner.total_timesteps=4096", "inner.num_segments=2", "run.wandb=disabled")
SEARCH = (
    *("population_size=4", "num_generations=2", "num_seeds=1"),
    *("run.held_out_seeds=0", "run.directory=out"),
)
# A search and an environment are written as the docs show them, where `test_docs` runs
# them.
COMMANDS = {
    "loss": ("run", "mine", *SEARCH),
    "strategy": ("run", "ppo_value_loss", "strategy=mine", *SEARCH),
    "loop": ("train", "mine", "num_seeds=2", "run.directory=out"),
}


def metaevo(folder, *arguments):
    out = subprocess.run(
        [sys.executable, "-m", "metaevo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_new_file_is_run_by_the_command_that_it_names(kind, tmp_path):
    told = metaevo(tmp_path, "new", kind, "mine").splitlines()
    command = COMMANDS[kind]
    assert told[-1].startswith(f"use it: metaevo {command[0]} {command[1]}")
    metaevo(tmp_path, *command, *SMALL)
    assert (tmp_path / "out" / "report" / "index.html").exists()
    if kind == "loss":
        exported = metaevo(tmp_path, "export", "out", "to=numpy", "out=evolved.py")
        assert (tmp_path / exported.strip()).is_file()
