"""metaevo installed from its wheel, in a folder of one's own.

The wheel is built and installed, beside the dependencies of this environment. This
process does not import metaevo.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pages import FENCE, commands, fits

ROOT = Path(__file__).parents[2]
PACKAGES = ("metaevo", "inner_loops", "strategies", "searches")
SEARCH = '''"""Mine: the toy of the PBT paper, put together by hand."""

import metaevo
from metaevo import fitness, spaces
from searches import _quadratic
from strategies.pbt import pbt


def search(num_generations: int = 2, noise: float = 0.1) -> metaevo.Search:
    space = spaces.prior(h0=spaces.uniform(0.0, 1.0), h1=spaces.uniform(0.0, 1.0))
    explore, start = _quadratic.wander(noise), _quadratic.START
    return metaevo.Search(
        inner_loop=_quadratic.make(4),
        space=space,
        strategy=pbt(space, 2, fraction=0.5, explore=explore, start=start),
        num_generations=num_generations,
        fitness=fitness.final_return,
        segments_per_generation=1,
    )


if __name__ == "__main__":
    metaevo.main(search)
'''
OPTIONS = ("run.held_out_seeds=0", "run.wandb=disabled", "run.devices=1", "noise=0.2")
# What `jax` needs, and what `metaevo.load` needs besides.
LIGHT = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy", "safetensors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: setuptools leaves files in the folder it builds."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "-w", source / "dist", "."]
    out = subprocess.run(
        [sys.executable, *command], cwd=source, capture_output=True, text=True
    )
    if "No matching distribution found for setuptools" in out.stderr:
        pytest.skip("pip reaches no index for setuptools, which builds the wheel")
    assert out.returncode == 0, out.stderr
    (built,) = (source / "dist").glob("metaevo-*.whl")
    return built


def environment(folder, wheel):
    """A virtual environment in `folder`, with metaevo alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    command = ["-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run(
        [sys.executable, *command, "--target", site, wheel], check=True, timeout=300
    )
    return folder / "bin" / "python", site


@pytest.fixture(scope="module")
def user(wheel, tmp_path_factory):
    """Runs a command in a folder with searches of one's own, metaevo installed."""
    python, site = environment(tmp_path_factory.mktemp("venv"), wheel)
    here = sysconfig.get_path("purelib")
    (site / "dependencies.pth").write_text(f"{here}\n")
    home = tmp_path_factory.mktemp("user")
    for place in ("searches/mine.py", "plain.py", "package/module.py"):
        (home / place).parent.mkdir(exist_ok=True)
        (home / place).write_text(SEARCH)
    metaevo = python.parent / "metaevo"
    metaevo.write_text(
        f"#!{python}\nfrom metaevo.cli.main import command\n\ncommand()\n"
    )
    metaevo.chmod(0o755)
    kept = ("PATH", "HOME", "XLA_FLAGS", "LD_LIBRARY_PATH")
    clean = {
        key: value
        for key, value in os.environ.items()
        if key in kept or key.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))
    }
    cache = tmp_path_factory.mktemp("cache")
    clean |= {"XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}

    def run(program, *arguments, cwd=home, fails=False):
        start = {"python": [python], "metaevo": [metaevo]}[program]
        out = subprocess.run(
            [*start, *map(str, arguments)],
            cwd=cwd,
            env=clean,
            capture_output=True,
            text=True,
        )
        assert (out.returncode != 0) == fails, out.stderr
        return out.stderr if fails else out.stdout

    run.home, run.site = home, site
    return run


def test_own_and_shipped_searches_run_as_modules(user):
    """Beside each other, so no package of ours but metaevo may have an init file."""
    printed = user("python", "-c", "import metaevo; print(metaevo.__file__)")
    assert Path(printed.strip()).is_relative_to(user.site)
    for command in ("python -m searches.mine", "metaevo run plain.py"):
        begin = f"usage: {command} [KEY=VALUE ...]\n\nMine: the toy"
        assert user(*command.split(), "--help").startswith(begin)
    assert "env=gymnax" in user("python", "-m", "searches.ppo_value_loss", "--cfg")


REMAKE = """
import sys
from metaevo.cli import runs
for directory in sys.argv[1:]:
    run = runs.opened(directory)
    search = runs.remade(run)
    print(run.source.file.name, run.trusted, search.num_generations, *run.changes)
"""


def test_own_search_is_found_again_however_it_was_started(user, tmp_path):
    """By `resume`, and by what `play`, `compare` and `distill` make a search with."""
    started = {
        "a": ("metaevo", "run", "mine"),
        "b": ("python", "plain.py"),
        "c": ("metaevo", "run", "package.module:search"),
    }
    for name, command in started.items():
        user(*command, *OPTIONS, f"run.directory={tmp_path / name}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = user("python", "-c", REMAKE, *(tmp_path / x for x in started), cwd=elsewhere)
    files = ("mine.py", "plain.py", "module.py")
    for line, file in zip(made.splitlines(), files, strict=True):
        assert line.startswith(f"{file} True 2 noise=0.2")
    more = "num_generations=3"
    printed = user("metaevo", "resume", tmp_path / "b", more, cwd=elsewhere)
    assert "noise=0.2" in printed
    assert len((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()) == 3
    exported = user("metaevo", "export", tmp_path / "b", "to=numpy", cwd=elsewhere)
    assert Path(exported.strip()).is_file()


IN_JAX = """
import sys
import jax, numpy as np
import metaevo

loss = metaevo.load(sys.argv[1]).td_loss
q, target = np.float32(np.linspace(-2, 3, 16)), np.float32(np.cos(np.arange(16)))
value = jax.jit(lambda q: loss(target - q, q, target))
print(*np.asarray(value(q)), *np.asarray(jax.grad(lambda q: value(q).sum())(q)))
print("my_losses" in sys.modules)
"""
TILTED_IN_TORCH = """
import inspect, sys
import numpy as np, torch

sys.path.insert(0, sys.argv[1])
from tilted_torch import td_loss

q = torch.tensor(np.float32(np.linspace(-2, 3, 16)), requires_grad=True)
target = torch.tensor(np.float32(np.cos(np.arange(16))))
given = {"td_error": target - q, "q": q, "target": target}
loss = td_loss(*(given[name] for name in inspect.signature(td_loss).parameters))
loss.sum().backward()
print(*loss.detach().numpy(), *q.grad.numpy())
"""


def test_own_function_as_the_page_on_it_shows(user, tmp_path):
    """`docs/tutorials/own_loss.md` in an empty folder, a colleague's, then PyTorch."""
    page = (ROOT / "docs" / "tutorials" / "own_loss.md").read_text()
    home = tmp_path / "home"
    (home / "searches").mkdir(parents=True)
    ran = 0
    for info, block in FENCE.findall(page):
        if title := re.search(r'title="([^"]+)"', info):
            (home / title[1]).write_text(block)
        for command, shown, code in commands(block) if info == "console own" else ():
            assert code == 0
            printed = user(*shlex.split(command), cwd=home)
            assert fits(shown, printed), f"{command}\n{printed}"
            ran += 1
    assert ran == 5
    run = home / "runs" / "tilted"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    mine, is_imported = user("python", "-c", IN_JAX, run, cwd=tmp_path).splitlines()
    assert is_imported == "True"
    colleague = tmp_path / "colleague"
    shutil.copytree(run / "solution", colleague / "solution")
    user("metaevo", "export", "solution", "to=numpy", "out=tilted.py", cwd=colleague)
    theirs = user("python", "-c", IN_JAX, "solution", cwd=colleague)
    theirs, is_imported = theirs.splitlines()
    assert is_imported == "False"
    numbers = [float(x) for x in mine.split()]
    assert [float(x) for x in theirs.split()] == pytest.approx(numbers, rel=1e-5)
    torch = ROOT / ".venv-torch" / "bin" / "python"
    if not torch.exists():
        pytest.skip("no .venv-torch for the last step; make test-system makes it")
    done = subprocess.run(
        [torch, "-c", TILTED_IN_TORCH, home], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    in_torch = [float(x) for x in done.stdout.split()]
    assert in_torch == pytest.approx(numbers, rel=1e-5, abs=1e-6)


THEIRS = '''"""Theirs: extensions of metaevo in another distribution."""

from inner_loops import ppo
from metaevo import envs
from searches.pbt_toy import search as toy
from strategies.open_es import open_es


def search(num_generations: int = 7):
    """Their search."""
    return toy(num_generations)


def make(env, config: ppo.Config = ppo.Config(9216), meta: ppo.Meta = ppo.Meta()):
    """Their algorithm."""
    return ppo.make(env, config, meta)


def strategy(space, population_size: int):
    """Their strategy."""
    return open_es(space, population_size)
'''
SUITE = '''"""Theirs: a suite of environments."""

from metaevo import envs


def names():
    return ["Pole"]


def make(name):
    return envs.make("gymnax/CartPole-v1")._replace(name=f"theirs/{name}")
'''
ENTRY_POINTS = """[metaevo.searches]
their_search = their_package.parts:search

[metaevo.inner_loops]
their_loop = their_package.parts:make

[metaevo.strategies]
their_strategy = their_package.parts:strategy

[metaevo.envs]
theirs = their_package.suite
"""


THEIR_NAMES = ("their_search", "their_loop", "their_strategy")


def test_other_distributions_add_theirs_by_entry_points(user):
    package = user.site / "their_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text(THEIRS)
    (package / "suite.py").write_text(SUITE)
    info = user.site / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    everything = user("metaevo", "list")
    kinds = ("searches", "algorithms", "strategies")
    for kind, name in zip(kinds, THEIR_NAMES, strict=True):
        assert f" {name}" in everything
        listed = user("metaevo", "list", kind)
        if kind == "searches":  # beside one's own and those shipped
            assert {"mine", "ppo_drift"} <= {*listed.split()}
        (line,) = (x for x in listed.splitlines() if x.startswith(f"  {name} "))
        assert "(their-package)" in line
    assert "\n  theirs/ Pole" in user("metaevo", "list", "environments")
    assert "num_generations=7" in user("metaevo", "run", "their_search", "--cfg")
    printed = user("metaevo", "train", "their_loop", "--cfg")
    assert "inner.total_timesteps=9216" in printed
    made = "from metaevo import envs; print(envs.make('theirs/Pole').name)"
    assert user("python", "-c", made).strip() == "theirs/Pole"
    wrong = "from metaevo import envs; envs.make('their/Pole')"
    assert "Did you mean theirs/Pole?" in user("python", "-c", wrong, fails=True)


LOAD = """
import sys
import jax.numpy as jnp
import metaevo
loaded = metaevo.load(sys.argv[1])
print(*loaded.slots, loaded.describe())
context = metaevo.Context(return_std=1.0)
loss = loaded.value_loss(jnp.ones(3), jnp.zeros(3), jnp.ones(3), context)
print("value_loss of [3]:", loss.shape)
for package in ("optax", "flax", "gymnax", "omegaconf", "wandb", "matplotlib"):
    try:
        __import__(package)
    except ImportError:
        continue
    raise SystemExit(f"{package} is installed")
"""


def test_artifact_loads_with_jax_numpy_and_safetensors_alone(wheel, tmp_path):
    python, site = environment(tmp_path / "venv", wheel)
    here = Path(sysconfig.get_path("purelib"))
    for path in here.iterdir():
        name = path.name.split("-")[0].removesuffix(".libs")
        if name in LIGHT:
            (site / path.name).symlink_to(path)
    for artifact in (ROOT / "tests" / "golden" / "artifact-1", "zoo:value_loss"):
        out = subprocess.run(
            [python, "-c", LOAD, artifact],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        assert out.returncode == 0, out.stderr
        assert "value_loss of [3]: (3,)" in out.stdout
