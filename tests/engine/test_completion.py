"""Completion: its candidates, its speed, and the function of bash."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metaevo.cli import commands, completion, new, shells

ROOT = Path(__file__).parents[2]
OWN = '''"""Mine."""
import nothing_that_is_installed
from typing import Literal
from inner_loops import dqn

def search(size: int = 3, kind: Literal["a", "b"] = "a", *, flag: bool = False,
           inner: dqn.Config = dqn.Config(), meta: dqn.Meta = dqn.Meta()):
    ...
'''


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of this file's own, filled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def after(line):
    return completion.candidates(line)


def test_commands_names_keys_and_values():
    assert after("metaevo comp") == ["compare ", "completion "]
    assert {f"{x} " for x in commands.COMMANDS} < {*after("metaevo ")}
    assert after("metaevo run ppo_w") == ["ppo_weighted_value_loss "]
    assert after("metaevo train pp") == ["ppo ", "ppo_rnn "]
    assert after("metaevo list fu") == ["functions "]
    assert after("metaevo new ") == sorted(f"{x} " for x in [*new.TEMPLATES, "--help"])
    assert after("metaevo play RUN a") == ["agent="]
    assert "agent=hand-made " in after("metaevo play RUN agent=")
    assert after("metaevo run ppo_value_loss sig") == ["sigma="]
    assert after("metaevo run ppo_value_loss sigma=1 sig") == []
    assert after("metaevo run ppo_value_loss start=r") == ["start=residual "]
    assert after("metaevo run ppo_value_loss --m") == ["--multirun "]
    assert "run.directory=" in after("metaevo run ppo_value_loss run.d")
    assert after("metaevo train ppo preset=min") == ["preset=minatar "]
    assert after("metaevo train ppo inner.activation=tan") == ["inner.activation=tanh "]
    assert after("metaevo train ppo inner.anneal_lr=") == [
        "inner.anneal_lr=false ",
        "inner.anneal_lr=true ",
    ]


def test_keys_of_a_strategy_that_is_named():
    line = "metaevo run ppo_value_loss strategy=open_es strategy."
    assert "strategy.sigma_decay=" in after(line)
    assert after("metaevo run ppo_value_loss strategy.") == []


def test_environments_by_their_suite():
    assert after("metaevo train ppo env=gymnax/CartP") == ["env=gymnax/CartPole-v1 "]


def test_what_is_no_command_has_no_candidates():
    assert after("metaevo cook ") == []
    assert after("metaevo run nothing_of_this_name si") == []


def test_a_file_of_ones_own_is_parsed_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "searches").mkdir()
    (tmp_path / "searches" / "mine.py").write_text(OWN)
    (tmp_path / "inner_loops").mkdir()
    (tmp_path / "inner_loops" / "my_loop.py").write_text(
        new.text("loop", "my_loop") + "1 / 0\n"
    )
    (tmp_path / "searches" / "broken.py").write_text("def search(:\n")
    assert after("metaevo run mi") == ["mine "]
    assert after("metaevo run mine siz") == ["size="]
    assert after("metaevo run mine fla") == ["flag="]
    assert after("metaevo run searches/mine.py siz") == ["size="]
    assert "strategy=snes " in after("metaevo run mine strategy=")
    assert "env=grid/maze " in after("metaevo run mine env=grid/")
    assert "inner.target_period=" in after("metaevo run mine inner.ta")
    assert "meta.td_loss=" in after("metaevo run mine meta.")
    assert "run.seed=" in after("metaevo run mine run.")
    assert "run.seed=" in after("metaevo run broken run.")
    assert after("metaevo train my_loop meta.g") == ["meta.gae_lambda=", "meta.gamma="]
    assert after("metaevo train my_loop inner.feat") == ["inner.features="]


def test_strategies_and_environments_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "my_way.py").write_text("1 / 0\n")
    (tmp_path / "room.py").write_text(new.text("env", "room") + "1 / 0\n")
    (tmp_path / "other.py").write_text("def make():\n    return 1\n")
    assert after("metaevo run ppo_value_loss strategy=my") == ["strategy=my_way "]
    assert after("metaevo train ppo env=ro") == ["env=room:make "]
    assert after("metaevo train ppo env=ot") == []


def complete(folder, shell, line):
    """The process that a shell starts: lines that it prints, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(
        [sys.executable, "-P", "-m", "metaevo.cli.completion", shell, line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
    return out.stdout.splitlines(), seconds


def test_a_key_is_there_at_once_and_without_jax(tmp_path):
    line = "metaevo run ppo_value_loss sig"
    assert after(line) == ["sigma="]  # it is in the cache
    found, seconds = min((complete(tmp_path, "bash", line) for _ in range(3)), key=str)
    assert found == ["sigma="]
    assert seconds < 0.3
    program = (
        "import sys; from metaevo.cli import completion\n"
        f"assert completion.candidates({line!r})\n"
        "assert not {'jax', 'numpy'} & sys.modules.keys()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, check=True
    )


def test_bash_gets_what_follows_the_sign_at_which_it_breaks_words(tmp_path):
    line = "metaevo train ppo env=gymnax/CartP"
    assert after(line)
    assert complete(tmp_path, "bash", line)[0] == ["gymnax/CartPole-v1 "]
    assert complete(tmp_path, "zsh", line)[0] == ["env=gymnax/CartPole-v1 "]
    assert complete(tmp_path, "fish", line)[0] == ["env=gymnax/CartPole-v1"]


TYPED = {
    "metaevo run ppo_weig": "ppo_weighted_value_loss ",
    "metaevo run ppo_value_loss sig": "sigma=",
    "metaevo run ppo_value_loss start=resid": "residual ",
}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_the_function_of_bash_fills_its_reply(tmp_path):
    for line in TYPED:
        assert after(line)
    words = "\n".join(
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _metaevo; "
        'printf "%s|" "${COMPREPLY[@]}"'
        for line in TYPED
    )
    out = subprocess.run(
        ["bash", "-c", f"{shells.script('bash')}\n{words}\ncomplete -p metaevo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    *shown, defined = out.stdout.split("|")
    assert shown == [*TYPED.values()]
    assert "-F _metaevo metaevo" in defined


@pytest.mark.parametrize("shell", shells.SCRIPTS)
def test_a_script_is_right_for_its_shell(shell):
    text = shells.script(shell)
    assert "COMMAND" not in text
    assert sys.executable in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)
