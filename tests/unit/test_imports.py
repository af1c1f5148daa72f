"""What is expensive to import is imported where it is needed."""

import subprocess
import sys

LIGHT = """
import sys
from metaevo.cli import commands, main
commands.usage()
commands.command_help("run")
commands.execute("list", ["searches"])
commands.execute("runs", ["{runs}"])
print(*({{"jax", "optax", "scipy", "matplotlib"}} & sys.modules.keys()), "imported")
"""

PICTURES = """
import sys
from metaevo import envs
envs.make("gymnax/CartPole-v1")
print(*({"seaborn", "pandas", "matplotlib.pyplot"} & sys.modules.keys()), "imported")
from gymnax.environments.misc import pong
print(len(pong.sns.color_palette("cubehelix", 3)), pong.plt.__name__)
"""


def last_lines(program, count):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return [line.strip() for line in done.stdout.splitlines()[-count:]]


def test_help_and_lists_import_no_jax(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"identity": {}}')
    assert last_lines(LIGHT.format(runs=tmp_path), 1) == ["imported"]


def test_environments_of_gymnax_do_not_import_what_its_pictures_need():
    """They get it when they are drawn."""
    expected = ["imported", "3 matplotlib.pyplot"]
    assert last_lines(PICTURES, 2) == expected
