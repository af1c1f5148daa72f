"""`--multirun`: runs of several values by one command."""

from pathlib import Path

import pytest
import runs as files
import tiny_search

import metaevo
from metaevo.cli import multirun
from metaevo.errors import ConfigError

FAST = ("num_generations=2", "run.held_out_seeds=0", "run.wandb=disabled")


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    """Run a command line in an empty folder; returns exit code and output."""
    files.write_short_reports(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*argv):
        with pytest.raises(SystemExit) as end:
            metaevo.main(tiny_search.search, [*FAST, *argv])
        return end.value.code, capsys.readouterr()

    return call


def logs(folder):
    """Lines of the log of each run, by its folder."""
    return {
        str(path.parent.relative_to(folder)): len(path.read_text().splitlines())
        for path in folder.rglob("metrics.jsonl")
    }


def test_each_value_has_a_run_and_the_same_command_goes_on(shell, tmp_path):
    """And more values add runs."""
    given = ["--multirun", "run.directory=runs/x"]
    code, printed = shell(*given, "run.seed=0,1", "run.max_seconds=1e-9")
    assert code == 75
    assert "0/2" in printed.out or "1/2" in printed.out
    began = logs(tmp_path / "runs" / "x")
    assert began.keys() == {"run.seed=0", "run.seed=1"}
    code, printed = shell(*given, "run.seed=0,1,2")
    assert code == 0, printed.err
    ended = logs(tmp_path / "runs" / "x")
    assert ended == {"run.seed=0": 2, "run.seed=1": 2, "run.seed=2": 2}
    assert "run 2 of 3: run.seed=1\n" in printed.out
    rows = [x.split()[1:4] for x in printed.out.splitlines() if " finished " in x]
    assert rows == [[str(i), "finished", "2/2"] for i in range(3)]
    assert "run  run.seed     state  generation" in printed.out


def test_one_that_fails_keeps_no_other_from_running(shell, tmp_path):
    code, printed = shell(
        "--multirun", "fail_below=9,-1", "num_generations=4", "run.directory=runs"
    )
    assert code == 5
    assert logs(tmp_path / "runs")["fail_below=-1"] == 4
    assert "error: " in printed.err


def test_all_values_are_checked_before_the_first_run(shell, tmp_path):
    code, printed = shell("--multirun", "population_size=4,5")
    assert code == 2
    assert "population_size=5" in printed.err
    assert not (tmp_path / "runs").exists()


def test_flags_start_nothing_and_show_each(shell, tmp_path):
    code, printed = shell("--multirun", "population_size=4,6", "--cfg-diff")
    assert code == 0
    lines = printed.out.splitlines()
    assert [x for x in lines if x.startswith("population_size")] == [
        "population_size=4",
        "population_size=6",
    ]
    assert "not started" not in printed.out
    assert not (tmp_path / "runs").exists()


def test_a_list_has_brackets():
    def check(text):
        for one in multirun.combinations([f"inner.features={text}", "a=1,2"], "x"):
            multirun.check_lists(one, {"inner.features": tuple[int, ...], "a": int})

    check("[32,32],[64,64]")
    check("32")
    with pytest.raises(
        ConfigError, match=r"has brackets, as in inner\.features=\[32\]"
    ):
        check("32,64")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["a=1"], "no key has several values"),
        (["a=[1,2]", "b=f(1,2)"], "no key has several values"),
        (["run.directory=a,b"], "no key has several values"),
    ],
)
def test_what_are_no_several_values_is_refused(argv, expected):
    with pytest.raises(ConfigError, match=expected):
        multirun.combinations([multirun.FLAG, *argv], "mine")


def test_several_keys_are_combined_in_the_order_in_which_they_stand():
    argv = ["--multirun", "b=x,y", "c=3", "a=1,2", "run.directory=d", "--cfg"]
    each = multirun.combinations(argv, "mine")
    assert [one.argv for one in each] == [
        ["c=3", "--cfg", f"b={b}", f"a={a}", f"run.directory=d/b={b},a={a}"]
        for b in "xy"
        for a in (1, 2)
    ]
    assert each[1].values == {"b": "x", "a": "2"}


def test_other_settings_have_another_folder_and_a_time_limit_has_not():
    def root(*more):
        (one, _) = multirun.combinations(["a=1,2", *more], "mine")
        assert one.directory.name == "a=1"
        return one.directory.parent

    assert root().parent == Path("runs/mine")
    assert root() == root("run.max_seconds=3")
    assert len({root(), root("c=1"), root("c=2"), root("run.seed=1")}) == 4


def test_folders_of_other_values_differ():
    names = ["gymnax/CartPole-v1", "gymnax-CartPole-v1", "x" * 200, "x" * 201]
    each = multirun.combinations([f"env={','.join(names)}", "run.directory=d"], "x")
    places = [one.argv[-1] for one in each]
    assert len({*places}) == 4
    assert all(x.count("/") == 1 and len(x) < 120 for x in places)
