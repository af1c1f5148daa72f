"""The run directory: its manifest, read and written in one place."""

import functools
import json

import numpy as np
import pytest

from metaevo.config import RunConfig
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import run_directory, verified


def create(directory, settings=None, name="toy", **config):
    settings = settings or {"sigma": 0.5}
    return run_directory.create_manifest(
        directory, name, RunConfig(**config), settings, 2, "1 x cpu", ["sigma=0.5"]
    )


def test_manifest_written_then_read_is_the_same(tmp_path):
    assert create(tmp_path) == run_directory.read_manifest(tmp_path)
    assert run_directory.has_manifest(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_missing_manifest_is_a_config_error_that_names_the_remedy(tmp_path):
    with pytest.raises(ConfigError, match="give the directory that the run printed"):
        run_directory.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"identity": {"search": "toy"',
        b"[]",
        b"{}",
        b"[" * 100_000,
        bytes(range(256)),
        b'{"identity": {"search": "toy", "seed": 0, "settings": {}}, "chunk_size": 2}',
        b'{"identity": {"search": 1, "seed": 0, "settings": {}}, "chunk_size": 2, '
        b'"changes": []}',
    ],
)
def test_damaged_manifest_is_a_checkpoint_error(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        run_directory.read_manifest(tmp_path)
    assert CheckpointError.exit_code == 4


def test_manifest_of_a_newer_schema_is_refused(tmp_path):
    manifest = create(tmp_path) | {"schema": 99}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"newer.*update metaevo"):
        run_directory.read_manifest(tmp_path)


@pytest.mark.parametrize(("old", "new"), run_directory.RENAMED_SEARCHES.items())
def test_renamed_search_of_version_0_1_is_found_under_its_new_name(tmp_path, old, new):
    manifest = create(tmp_path, name=old)
    assert run_directory.read_manifest(tmp_path)["identity"]["search"] == old
    del manifest["schema"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert run_directory.read_manifest(tmp_path)["identity"]["search"] == new


def test_other_settings_are_refused_with_the_keys_that_differ(tmp_path):
    def check(settings, name="toy", **config):
        run_directory.check_same_run(
            tmp_path, manifest, name, RunConfig(**config), settings
        )

    manifest = create(tmp_path, {"sigma": 0.5, "num_generations": 3, "a": {"b": 1}})
    check({"sigma": 0.5, "num_generations": 9, "a": {"b": 1}})
    with pytest.raises(ConfigError, match=r"a\.b: 1 -> 2; sigma: 0\.5 -> 1"):
        check({"sigma": 1, "a": {"b": 2}})
    with pytest.raises(ConfigError, match="seed: 0 -> 3"):
        check({"sigma": 0.5, "a": {"b": 1}}, seed=3)
    with pytest.raises(ConfigError, match=r"run\.resume=false"):
        check({"sigma": 0.5, "a": {"b": 1}}, resume=False)


def test_default_directory_depends_on_all_settings_but_the_horizon(monkeypatch):
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)

    def directory(seed=0, **settings):
        return run_directory.default_directory("toy", seed, settings)

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


def test_settings_of_version_0_1_that_are_retired_do_not_tell_runs_apart(tmp_path):
    task = {"num_segments": 4, "meta": {"lr": 0.1}}
    now = {"inner": {"num_steps": 4}, "search": {"tasks": [task]}}
    old_task = task | {"meta": {"lr": 0.1, "diversity_coef": 0.0}}
    old = {
        "inner": {"num_steps": 4, "shared_critic": False},
        "search": {"tasks": [old_task]},
    }
    manifest = create(tmp_path, settings=old)
    first = {key: x for key, x in manifest.items() if key != "schema"}
    check = functools.partial(
        run_directory.check_same_run, tmp_path, name="toy", config=RunConfig()
    )
    check(manifest=first, settings={}, settings_0_1=now)
    other = now | {"inner": {"num_steps": 5}}
    with pytest.raises(ConfigError, match=r"inner\.num_steps: 4 -> 5"):
        check(manifest=first, settings={}, settings_0_1=other)
    # A run of this version is held to its own settings.
    with pytest.raises(ConfigError, match="shared_critic"):
        check(manifest=manifest, settings=now, settings_0_1=now)


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
