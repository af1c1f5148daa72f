"""Set-up of a process: no search touches JAX before the devices are chosen."""

import os
import pkgutil
import subprocess
import sys

import jax
import pytest

import metaevo
import searches
from inner_loops import ppo
from metaevo import envs
from metaevo.cli import main
from metaevo.config import RunConfig
from metaevo.engine import loop
from metaevo.errors import ConfigError
from metaevo.evaluators import surroundings
from searches import pbt_toy

SEARCHES = [m.name for m in pkgutil.iter_modules(searches.__path__)]


def python(program):
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return out.stdout.strip(), out.stderr


def test_importing_searches_leaves_the_devices_to_be_chosen():
    """All in one process: the first that touches JAX is found by its output."""
    imports = "".join(
        f"import searches.{name}\nstarted += [{name!r}] * backends_are_initialized()\n"
        for name in SEARCHES
    )
    stdout, stderr = python(
        "from jax._src.xla_bridge import backends_are_initialized\nstarted = []\n"
        + imports
        + "import metaevo; metaevo.configure(3)\n"
        "import jax; print(started[:1], jax.device_count())"
    )
    assert stdout == "[] 3"
    assert "JAX was in use" not in stderr


def test_set_up_that_comes_too_late_warns():
    stdout, stderr = python(
        "import jax; jax.devices(); import metaevo; metaevo.configure(3)\n"
        "print(jax.device_count())"
    )
    assert stdout == "1"
    assert "1 of 3 CPU cores are devices. An earlier cell or line" in stderr
    assert "restart, and begin with metaevo.configure()" in stderr


def test_a_program_is_told_of_what_it_imports(tmp_path):
    """`__main__` has a file: nobody typed the line that used JAX."""
    file = tmp_path / "program.py"
    file.write_text(
        "import jax; jax.devices(); import metaevo; metaevo.configure(3)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Something imported by the search runs JAX at import" in done.stderr
    assert "earlier cell" not in done.stderr


# --- flags, platforms and settings that cannot work -----------------------------------


def commanded(line, **environment):
    out = subprocess.run(
        [sys.executable, "-m", "metaevo", *line.split()],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return out.returncode, out.stdout, out.stderr


@pytest.fixture
def ended(monkeypatch, capsys, tmp_path):
    """Run a command line in this process; return its code and the line it prints."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["metaevo", *line.split()])
        with pytest.raises(SystemExit) as exit:
            main.command()
        (shown,) = capsys.readouterr().err.splitlines()
        assert list(tmp_path.iterdir()) == []
        return exit.value.code, shown

    return run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--xla_foo_bar=1", "Unknown flag --xla_foo_bar=1"),
        ("no_such_file", 'Could not open file "no_such_file"'),
    ],
)
def test_a_wrong_flag_of_xla_is_one_line(flags, said, ended, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    for command in ("run pbt_toy", "doctor", "list environments", "verify nowhere"):
        code, shown = ended(command)
        assert code == 2
        assert shown.startswith(f"error: XLA_FLAGS={flags}: {said}")
    with pytest.raises(ConfigError, match="XLA_FLAGS="):
        metaevo.run(pbt_toy.search)


def test_right_flags_of_xla_are_taken(monkeypatch):
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_dump_to=/tmp"
    )
    surroundings.check_flags()
    monkeypatch.setenv("XLA_FLAGS", surroundings.ONE_THREAD)
    monkeypatch.setattr(subprocess, "run", None)  # our own flag needs no process
    surroundings.check_flags()


@pytest.mark.parametrize("command", ["run pbt_toy", "doctor"])
def test_a_platform_that_is_not_there_is_named(command):
    code, printed, errors = commanded(command, JAX_PLATFORMS="nowhere")
    assert code == 2
    said = "JAX_PLATFORMS=nowhere: Unable to initialize backend 'nowhere'"
    assert said in (printed if command == "doctor" else errors)
    assert len(errors.splitlines()) == 1
    assert "set JAX_PLATFORMS=cpu, or leave it out" in printed + errors


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """A finished run that this user has no record of, and a folder without records."""
    root = tmp_path_factory.mktemp("downloaded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "elsewhere"))
        options = {"wandb": "disabled", "held_out_seeds": 2}
        config = RunConfig(directory=str(root / "run"), **options)
        metaevo.run(pbt_toy.search, config, num_generations=2)
    return root


def test_no_run_is_blamed_for_a_platform_that_is_not_there(downloaded):
    code, _, errors = commanded(
        f"verify {downloaded / 'run'}",
        JAX_PLATFORMS="nowhere",
        XDG_CACHE_HOME=str(downloaded / "cache"),
    )
    assert code == 2
    assert errors.startswith("error: JAX_PLATFORMS=nowhere: Unable to initialize")
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    program = (
        "import metaevo\nfrom searches import pbt_toy\n"
        "try: metaevo.run(pbt_toy.search)\n"
        "except metaevo.ConfigError as error: print(error)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cuda"},
    )
    assert out.stdout.startswith("JAX_PLATFORMS=cuda: ")
    assert out.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["run pbt_toy --cfg", "train ppo", "list gymnax/CartPole-v1"]
)
def test_types_of_64_bits_are_refused_before_anything_runs(command, ended):
    with jax.enable_x64(True):
        code, shown = ended(command)
    assert code == 2
    assert shown.startswith("error: jax_enable_x64=True (JAX_ENABLE_X64): ")
    assert "set JAX_ENABLE_X64=0" in shown


def test_types_of_64_bits_are_refused_in_python_too(tmp_path):
    search, made = pbt_toy.search(), ppo.make(envs.make("gymnax/CartPole-v1"))
    config = metaevo.RunConfig(directory=str(tmp_path / "run"))
    calls = [
        lambda: metaevo.run(pbt_toy.search),
        lambda: metaevo.run(pbt_toy.search, config, num_generations=2),
        lambda: loop.run(search, config),
        lambda: metaevo.train(made, 1),
    ]
    for call in calls:
        with jax.enable_x64(True), pytest.raises(ConfigError, match="jax_enable_x64"):
            call()
    assert not (tmp_path / "run").exists()
