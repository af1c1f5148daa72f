"""The run directory: its manifest, read and written in one place."""

import json
import shutil
import subprocess

import matplotlib
import numpy as np
import pytest
from planted import sparse

from metaevo.analysis.plots import figures
from metaevo.cli import main
from metaevo.config import RunConfig
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import manifests, nearby, provenance, run_directory, verified
from metaevo.storage.manifests import Settings
from metaevo.types import Search


def create(directory, settings=None, name="toy", **config):
    settings = Settings(settings or {"sigma": 0.5})
    search = Search(None, None, None, 1, None, chunk_size=2)
    return run_directory.create_manifest(
        directory, name, RunConfig(**config), settings, search, "1 x cpu", ["sigma=0.5"]
    )


def test_damaged_manifest_is_a_checkpoint_error(tmp_path):
    identity = b'{"identity": {"search": "toy", "seed": 0, "settings": {}}'
    for content in (
        b"",
        b'{"identity": {"search": "toy"',
        b"[]",
        b"{}",
        b"[" * 100_000,
        bytes(range(256)),
        identity + b', "chunk_size": 2}',
        identity.replace(b'"toy"', b"1") + b', "chunk_size": 2, "changes": []}',
    ):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
            run_directory.read_manifest(tmp_path)
    assert CheckpointError.exit_code == 4


def test_runs_below_a_folder_are_found_by_their_manifests(tmp_path):
    runs = tmp_path / "runs"
    made = ["b", "a/seed0-1", "a/sweep-x/y"]
    for name in made:
        (runs / name).mkdir(parents=True)
        create(runs / name)
    inside = runs / "b" / "checkpoints" / "copy"
    inside.mkdir(parents=True)
    create(inside)  # of a run, and none of its own
    for name, text in (("c", "{}"), ("d", "[]"), ("e", "{"), ("f", "[" * 9_999)):
        (runs / name).mkdir()
        (runs / name / "manifest.json").write_text(text)
    (runs / "loop").symlink_to(runs)
    found = nearby.below(runs)
    assert found == sorted(runs / name for name in made)
    assert nearby.hint(runs).startswith(f"{runs} holds 3 runs: {runs}/a/seed0-1, ")
    assert nearby.hint(runs / "c") == nearby.hint(tmp_path / "nowhere") == ""
    assert nearby.hint(runs / "a" / "sweep-x").endswith("holds 1 run: " + str(found[1]))


def test_a_key_forges_no_line_of_what_differs():
    old = {"search": "a", "seed": 0, "settings": {"a\n  whole: everything verified": 1}}
    (told,) = manifests.describe_changes(old, old | {"settings": {}})
    assert told.startswith("a\\n  whole: everything verified: 1 -> ")
    (told,) = manifests.describe_changes(old | {"search": "b\n  whole"}, old)
    assert told == "search: b\\n  whole -> a"


def test_a_folder_of_very_many_entries_is_looked_at_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(nearby, "MOST_LOOKED_AT", 5)
    for i in range(8):
        (tmp_path / str(i)).mkdir()
        create(tmp_path / str(i))
    assert len(nearby.below(tmp_path)) <= 5


def test_a_folder_of_very_large_manifests_is_looked_at_in_part(tmp_path):
    text = json.dumps({"identity": {}, "padding": "x" * (5 << 20)})
    for i in range(8):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "manifest.json").write_text(text)
    assert len(nearby.below(tmp_path)) == 3


def test_manifest_of_a_newer_schema_is_refused(tmp_path):
    manifest = create(tmp_path) | {"schema": 99}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"newer.*update metaevo"):
        run_directory.read_manifest(tmp_path)


def test_other_settings_are_refused_with_the_keys_that_differ(tmp_path):
    def check(settings, name="toy", **config):
        run_directory.check_same_run(
            tmp_path, manifest, name, RunConfig(**config), Settings(settings)
        )

    manifest = create(tmp_path, {"sigma": 0.5, "num_generations": 3, "a": {"b": 1}})
    check({"sigma": 0.5, "num_generations": 9, "a": {"b": 1}})
    with pytest.raises(ConfigError, match=r"a\.b: 1 -> 2; sigma: 0\.5 -> 1"):
        check({"sigma": 1, "a": {"b": 2}})
    with pytest.raises(ConfigError, match="seed: 0 -> 3"):
        check({"sigma": 0.5, "a": {"b": 1}}, seed=3)
    with pytest.raises(ConfigError, match=r"run\.resume=false"):
        check({"sigma": 0.5, "a": {"b": 1}}, resume=False)


def same(tmp_path, then, now):
    """Checks a run of `then` against `now`: the values and the defaults of each."""
    then, now = (
        Settings({"inner": values}, {"inner": defaults})
        for values, defaults in (then, now)
    )
    created = {"identity": manifests.identity("toy", RunConfig(), then)}
    run_directory.check_same_run(tmp_path, created, "toy", RunConfig(), now)


def test_values_that_differ_are_those_that_were_typed(tmp_path):
    """Also where one is the default, of a version without the setting as well."""
    known = {"num_step_return": 1, "torso": "mlp"}

    def refused(then, now):
        with pytest.raises(ConfigError) as error:
            same(tmp_path, (then, known if then else {}), (now, known if now else {}))
        return str(error.value)

    assert "inner.num_step_return: 3 -> 1." in refused(
        {"num_step_return": 3}, {"num_step_return": 1}
    )
    assert "inner.num_step_return: 1 -> 3." in refused({}, {"num_step_return": 3})
    assert "inner.num_step_return: 3 -> 1." in refused({"num_step_return": 3}, {})
    assert "inner.torso: mlp -> cnn." in refused({"torso": "mlp"}, {"torso": "cnn"})


def test_a_setting_that_is_new_does_not_tell_runs_apart_at_its_default(tmp_path):
    old = {"num_envs": 4}, {"num_envs": 8}
    new = old[0] | {"torso": "mlp"}, old[1] | {"torso": "mlp"}
    same(tmp_path, old, new)
    same(tmp_path, new, old)
    other = new[0] | {"torso": "cnn"}, new[1]
    with pytest.raises(ConfigError, match=r"inner\.torso: mlp -> cnn"):
        same(tmp_path, old, other)
    directories = [
        run_directory.default_directory(
            "toy", 0, Settings(*({"inner": x} for x in one))
        )
        for one in (old, new, other)
    ]
    assert directories[0] == directories[1] != directories[2]


def test_a_changed_default_is_refused_with_both_values(tmp_path):
    """The values count, not that both stand at the default of their time."""
    then, now = ({"num_envs": 4}, {"num_envs": 4}), ({"num_envs": 8}, {"num_envs": 8})
    with pytest.raises(ConfigError, match=r"inner\.num_envs: 4 -> 8"):
        same(tmp_path, then, now)


def test_a_structure_that_one_run_lacks_is_named_as_a_whole(tmp_path):
    """A second task, say, of which only the Config has defaults."""
    task = {"env": "a", "config": {"num_envs": 4}}
    now = {"task1": task}, {"task1": {"config": {"num_envs": 4}}}
    with pytest.raises(ConfigError, match=r"inner\.task1: None -> {'env': 'a', "):
        same(tmp_path, ({}, {}), now)


def test_default_directory_depends_on_all_settings_but_the_horizon(monkeypatch):
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)

    def directory(seed=0, **settings):
        return run_directory.default_directory("toy", seed, Settings(settings))

    assert directory(a=1, num_generations=3) == directory(a=1, num_generations=4)
    assert len({directory(a=1), directory(a=2), directory(a=1, seed=1)}) == 3


def test_interrupted_write_of_json_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "data.json"
    run_directory.write_json_atomic(path, {"x": 1})

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        run_directory.write_json_atomic(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["data.json"]


def test_errors_of_the_disk_keep_their_number(tmp_path):
    with pytest.raises(FileNotFoundError):
        verified._write_arrays(tmp_path / "missing" / "x", {"a": np.zeros(3)})


def test_parts_of_an_interrupted_write_are_replaced(tmp_path):
    """A process killed while the arrays were written leaves them under odd names."""
    left = tmp_path / ".folder.tmp"
    left.mkdir()
    (left / ".tmpa1B2c3").write_bytes(b"half")
    verified.write(tmp_path / "folder", {"a": np.arange(3)}, {"x": 1})
    arrays, manifest = verified.read(tmp_path / "folder")
    assert (arrays["a"].tolist(), manifest["x"]) == ([0, 1, 2], 1)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# --- working directories of a stranger ------------------------------------------------


def git(folder, *arguments):
    names = ("-c", "user.name=x", "-c", "user.email=x@y")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, timeout=20)


def committed(folder):
    """A repository with a file whose changes a filter sees."""
    git(folder, "init", "-q")
    (folder / "file.py").write_text("1")
    (folder / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")


def assert_git_alone_runs_them(folder):
    """Those of `program`: what was called before this did not."""
    assert not list(folder.glob("ran-*"))
    subprocess.run(["git", "status"], check=False, timeout=20, capture_output=True)
    assert list(folder.glob("ran-*"))


def program(folder, name):
    """A program that leaves a file when it is run."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ntouch {folder}/ran-{name}\ncat\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_runs_no_program_that_a_repository_names(tmp_path, monkeypatch):
    ours, repository = tmp_path / "programs", tmp_path / "repository"
    for folder in (ours, repository / "inner"):
        folder.mkdir(parents=True)
    for folder in (repository / "inner", repository):
        committed(folder)
        for name in ("clean", "process", "smudge"):
            git(folder, "config", f"filter.evil.{name}", program(ours, name))
        for key in ("core.fsmonitor", "diff.external", "diff.evil.textconv"):
            git(folder, "config", key, program(ours, key.replace(".", "-")))
        hooks = folder / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for hook in ("post-index-change", "pre-commit"):
            shutil.copy(program(ours, hook), hooks / hook)
        (folder / "file.py").write_text("2")  # git must read it again
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "*")
    found = provenance.git_state([repository / "file.py"])
    assert found["git"].endswith("-dirty")
    assert found["uncommitted"] == ["repository/file.py: modified"]
    assert_git_alone_runs_them(ours)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_outside_git_the_commit_is_that_of_metaevos_checkout(tmp_path, monkeypatch):
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    for folder in (checkout, elsewhere):
        folder.mkdir()
    committed(checkout)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(provenance, "_INSTALLED", elsewhere)
    assert provenance.git_state()["git"] is None
    monkeypatch.setattr(provenance, "_INSTALLED", checkout)
    head = (checkout / ".git" / "HEAD").read_text().split()[1]
    commit = (checkout / ".git" / head).read_text()
    assert provenance.git_state()["git"] == commit[:12]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("where", [".gitmodules", ".git/config"])
def test_git_looks_into_no_submodule(tmp_path, monkeypatch, where):
    """Its filters are not in the settings of the repository around it."""
    ours, repository = tmp_path / "programs", tmp_path / "repository"
    submodule = repository / "submodule"
    for folder in (ours, submodule):
        folder.mkdir(parents=True)
    for folder in (submodule, repository):
        committed(folder)
        (folder / ".gitmodules").write_text("")
        with open(folder / where, "a") as file:
            file.write('[submodule "submodule"]\n\tpath = submodule\n\tignore = none\n')
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "second")
    git(submodule, "config", "filter.evil.clean", program(ours, "clean"))
    (submodule / "file.py").write_text("2")
    monkeypatch.chdir(repository)
    found = provenance.git_state([repository / "file.py"])
    assert found["uncommitted"] == []
    assert not found["git"].endswith("-dirty")
    assert_git_alone_runs_them(ours)


def test_a_matplotlibrc_in_a_run_directory_is_refused_from_there(
    tmp_path, monkeypatch, capsys
):
    create(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "matplotlibrc").write_text("text.usetex: True\n")
    with pytest.raises(CheckpointError, match="would steer matplotlib"):
        run_directory.read_manifest(tmp_path)
    for folder, code in ((tmp_path / "report", 4), (tmp_path.parent, 0)):
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["metaevo", "list", "zoo"])
        with pytest.raises(SystemExit) as exit:
            main.command()
        assert exit.value.code == code
    assert "matplotlibrc would steer matplotlib" in capsys.readouterr().err


def test_figures_are_drawn_in_our_style_alone(monkeypatch):
    def draw(panel):
        panel.plot([1, 2], [1, 2])
        panel.set_title("title")

    ours = figures.png(draw, 1, dpi=40)
    for key, value in (("text.usetex", True), ("lines.linewidth", 30.0)):
        monkeypatch.setitem(matplotlib.rcParams, key, value)
        assert figures.png(draw, 1, dpi=40) == ours
        assert matplotlib.rcParams[key] == value


def test_no_file_of_terabytes_is_sent(tmp_path):
    for name in ("report/a.png", "solution/README.md"):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("x")
        assert run_directory.artifact_files(tmp_path) == [path]
        sparse(path, 1 << 42)
        with pytest.raises(CheckpointError, match="larger than 64 MiB"):
            run_directory.artifact_files(tmp_path)
        path.unlink()


def test_a_choice_that_was_stopped_is_told_from_a_missing_run(tmp_path):
    (tmp_path / "run-choices").mkdir()
    with pytest.raises(ConfigError, match="the same command again continues that"):
        run_directory.read_manifest(tmp_path / "run")
