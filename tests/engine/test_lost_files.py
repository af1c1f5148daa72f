"""Files of a run that vanish, are altered, or were never the run's."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_search
from runs import sign

import metaevo
from metaevo.cli import findings, main, verify
from metaevo.config import RunConfig
from metaevo.engine import finish, loop
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import checkpoint, history, jsonl, provenance, run_directory


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def started(directory, num_generations=4, should_stop=lambda: False, **config):
    options = {"held_out_seeds": 0, "wandb": "disabled", "devices": 1} | config
    config = RunConfig(directory=str(directory), **options)
    search = tiny_search.search(num_generations=num_generations)
    return metaevo.run(search, config, "tiny", should_stop=should_stop)


@pytest.fixture
def run(tiny_run, tmp_path, monkeypatch):
    """A copy of a finished run; runs that continue it end without a report."""
    shutil.copytree(tiny_run, tmp_path / "run")
    monkeypatch.setattr(finish, "finish", lambda *args: None)
    return tmp_path / "run"


def contents(directory):
    files = sorted(p for p in Path(directory).rglob("*") if p.is_file())
    return {str(p): p.read_bytes() for p in files}


# --- in the middle of a run -----------------------------------------------------------


def replace(path):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def append(path):
    with open(path, "ab") as file:
        file.write(b"{}\n")


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("metrics.jsonl", append),
        (".lock", replace),
        ("manifest.json", Path.unlink),
        ("", shutil.rmtree),
    ],
)
def test_run_whose_files_vanish_stops_at_the_next_checkpoint(
    name, act, tmp_path, monkeypatch
):
    monkeypatch.setattr(finish, "finish", lambda *args: None)
    directory, acted = tmp_path / "run", []

    def should_stop():
        log = directory / "metrics.jsonl"
        if not acted and log.exists() and log.read_bytes().count(b"\n") == 2:
            acted.append(act(directory / name))
        return False

    with pytest.raises(CheckpointError, match="nothing after generation 2 is saved"):
        started(directory, num_generations=50, should_stop=should_stop)
    assert acted
    if not name:
        assert not directory.exists()
    else:
        assert checkpoint.Store(directory / "checkpoints").generations() == [2, 1]


def test_log_that_is_not_the_one_that_was_opened_is_noticed(tmp_path):
    for number, (act, problem) in enumerate(
        ((Path.unlink, "vanished"), (replace, "replaced"), (append, "written to"))
    ):
        path = tmp_path / f"{number}.jsonl"
        log = jsonl.JsonlLogger(path)
        log.log({"generation": 0})
        log.check()
        act(path)
        with contextlib.closing(log), pytest.raises(CheckpointError, match=problem):
            log.check()


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["metaevo", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main.command()
    return exit.value.code


@pytest.mark.parametrize("word", ["report", "wandb-push"])
def test_read_only_run_is_one_line(word, run, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    for name in ("replace", "unlink"):
        monkeypatch.setattr(os, name, fail)
    monkeypatch.setattr(Path, "unlink", fail)
    assert command(monkeypatch, word, run) in (2, 6)
    assert "Permission denied" in capsys.readouterr().err.splitlines()[-1]


# --- between two starts ---------------------------------------------------------------


def test_edited_log_of_the_same_length_is_noticed(run):
    log = run / "metrics.jsonl"
    data = log.read_bytes()
    at = data.index(b"fitness_best") + len(b'fitness_best": -')
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert log.stat().st_size == len(data)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl was altered"):
        started(run, 5)
    assert findings.failures(verify.verify(run)) == ["metrics.jsonl"]


def test_lost_log_is_refused_with_the_way_out(run):
    (run / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"is missing; restore it.*start_from"):
        started(run, 5)
    assert not (run / "metrics.jsonl").exists()


def edited(run, **fields):
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_edited_manifest_is_noticed(run):
    edited(run, chunk_size=4)
    with pytest.raises(CheckpointError, match="not the manifest under which"):
        started(run, 5)
    assert findings.failures(verify.verify(run)) == ["manifest.json"]


def test_deleted_and_rewritten_manifest_is_noticed(run):
    """Another seed would go on with the state of the first one."""
    identity = run_directory.read_manifest(run)["identity"] | {"seed": 77}
    (run / "manifest.json").rename(run.parent / "manifest.json")
    with pytest.raises(ConfigError, match=r"no run \(no manifest\.json"):
        started(run, 5, seed=77)
    (run.parent / "manifest.json").rename(run / "manifest.json")
    edited(run, identity=identity)
    with pytest.raises(CheckpointError, match="not the manifest under which"):
        started(run, 5, seed=77)


def test_other_versions_device_and_flags_are_named_and_kept(run, capsys):
    manifest = run_directory.read_manifest(run)
    versions = manifest["versions"] | {"jax": "0.4.1"}
    edited(run, versions=versions, device="1 x H100", xla_flags="--none")
    sign(run)
    started(run, 5)
    printed = " ".join(capsys.readouterr().out.split())
    events = [line["event"] for line in history.read(run)]
    for name in ("version of jax was '0.4.1'", "device was '1 x H100'", "xla_flags"):
        assert f"warning: {name}" in printed
        assert any(event.startswith(name) for event in events)
    assert printed.count("warning:") == 3


OTHER_SETTINGS = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 1,
    "jax_default_matmul_precision": "float32",
    "jax_numpy_dtype_promotion": "strict",
    "jax_disable_jit": True,
}


def test_other_settings_of_jax_are_named_and_kept(run, capsys, monkeypatch):
    manifest = run_directory.read_manifest(run)
    # A generation is left out: it may take long.
    monkeypatch.setattr(loop, "_search", lambda job, journal, progress: progress)
    for setting, value in OTHER_SETTINGS.items():
        before = jax.config.values[setting]
        jax.config.update(setting, value)
        try:
            (said,) = provenance.changes(
                manifest, manifest["device"], manifest["sources"]
            )
            if setting == "jax_threefry_partitionable":
                started(run, 5)
                printed = " ".join(capsys.readouterr().out.split())
                assert f"warning: {said}" in printed
                assert [x["event"] for x in history.read(run)].count(said) == 1
        finally:
            jax.config.update(setting, before)
        assert said.startswith(f"{setting} was ")
        assert f"and is {value!r}" in said


def test_half_a_first_record_without_a_checkpoint_starts_over(run):
    shutil.rmtree(run / "checkpoints")
    log = run / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:40])
    started(run)
    assert log.read_bytes().count(b"\n") == 4


def test_a_run_goes_on_in_silence_beside_copies_and_unfinished_checkpoints(run, capsys):
    """And with fewer versions recorded, as earlier ones of metaevo did."""
    versions = run_directory.read_manifest(run)["versions"]
    assert {"numpy", "scipy"} <= versions.keys()
    edited(run, versions={"jax": versions["jax"]})
    sign(run)
    newest = run / "checkpoints" / "generation-00000004"
    for name in ("generation-00000004.bak", "generation-00000009-copy"):
        shutil.copytree(newest, newest.with_name(name))
    unfinished = run / "checkpoints" / ".generation-00000009.tmp"
    unfinished.mkdir()
    (unfinished / "arrays.safetensors").write_bytes(b"half")
    started(run, 5)
    assert "warning" not in capsys.readouterr().out
    assert checkpoint.Store(run / "checkpoints").generations() == [5, 4, 3]
    assert len(list((run / "checkpoints").iterdir())) == 5
    assert not unfinished.exists()
    assert findings.failures(verify.verify(run)) == []


def test_finished_run_that_lost_its_results_is_not_whole(run):
    assert findings.failures(verify.verify(run)) == []
    for name in ("agents/hand-made", "agents", "held_out", "solution"):
        shutil.rmtree(run / name)
        assert name in findings.failures(verify.verify(run))


def test_only_pictures_and_the_solution_are_sent(run):
    (run / "solution" / "notes.txt").write_text("secret")
    (run / "report" / "mine.txt").write_text("secret")
    names = [str(p.relative_to(run)) for p in run_directory.artifact_files(run)]
    solution = ("arrays.safetensors", "manifest.json", "README.md")
    assert names[-3:] == [f"solution/{name}" for name in solution]
    assert names[:-3]
    assert all(x.startswith("report/") and x.endswith(".png") for x in names[:-3])


# --- files of others ------------------------------------------------------------------


def test_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    for number, names in enumerate(
        (
            ("agents/code.py", "solution/code.py", "held_out/code.py"),
            ("notes.txt",),
            ("manifest.json", "index.html"),
            (".lock", ".git/config"),
        )
    ):
        project = tmp_path / str(number)
        for name in names:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text('{"name": "my app"}')
        before = contents(project)
        with pytest.raises(ConfigError, match="give an empty or a new directory"):
            started(project)
        assert contents(project) == before
    with pytest.raises(SystemExit) as exit:
        metaevo.main(tiny_search.search, [f"run.directory={project}"])
    assert exit.value.code == 2
    assert contents(project) == before


def test_start_that_was_cut_short_before_the_manifest_can_be_repeated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(finish, "finish", lambda *args: None)
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / ".lock").touch()
    (directory / ".manifest.json.123.tmp").write_text("{")
    started(directory, 1)
    assert run_directory.has_manifest(directory)


def test_folder_with_files_of_others_is_not_replaced(tmp_path):
    folder = tmp_path / "solution"
    checkpoint.write(folder, {"x": np.zeros(3)}, {})
    (folder / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        checkpoint.write(folder, {"x": np.ones(3)}, {})
    assert contents(tmp_path) == before
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(CheckpointError, match="symbolic link"):
        checkpoint.write(tmp_path / "link", {"x": np.ones(3)}, {})
    assert contents(folder) == {k: x for k, x in before.items() if "solution" in k}


def test_what_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("metaevo.storage.verified.MAX_JSON", 1000)
    checkpoint.write(tmp_path / "x", {"x": np.zeros(3)}, {})
    many = {f"array {i}": np.zeros(1) for i in range(100)}
    with pytest.raises(CheckpointError, match="100 arrays are too many"):
        checkpoint.write(tmp_path / "x", many, {})
    assert list(checkpoint.read(tmp_path / "x")[0]) == ["x"]


# --- where the sources came from ------------------------------------------------------


def git(folder, *arguments):
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    provenance._git(folder, *name, *arguments)


def test_untracked_and_modified_sources_are_never_recorded_as_clean(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "_git", provenance._git.__wrapped__)
    for name in ("tracked.py", "new.py", "ignored.py"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "tracked.py", ".gitignore")
    git(tmp_path, "commit", "-qm", "first")
    clean = provenance.git_state([tmp_path / "tracked.py"])
    assert clean["uncommitted"] == []
    assert clean["git"]
    assert "dirty" not in clean["git"]
    for name in ("new.py", "ignored.py"):
        found = provenance.git_state([tmp_path / name])
        assert found["git"] == f"{clean['git']}-dirty"
        assert found["uncommitted"] == [f"{tmp_path.name}/{name}: untracked"]
    (tmp_path / "tracked.py").write_text("x = 2\n")
    found = provenance.git_state([tmp_path / "tracked.py"])
    assert found["git"] == f"{clean['git']}-dirty"
    assert found["uncommitted"] == [f"{tmp_path.name}/tracked.py: modified"]
