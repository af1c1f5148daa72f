"""Opening files of folders that may come from a stranger."""

import os

import pytest

from metaevo.errors import CheckpointError
from metaevo.storage import _files


def test_links_pipes_and_folders_are_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert _files.read_bytes(tmp_path / "file") == b"data"
    for name in ("link", "pipe", "."):
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.read_bytes(tmp_path / name)
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.replace_file(tmp_path / name, b"other")
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.open_append(tmp_path / name)
    with pytest.raises(CheckpointError, match="larger"):
        _files.read_bytes(tmp_path / "file", 3)
    assert (tmp_path / "file").read_bytes() == b"data"


def test_link_below_a_directory_is_found_and_the_directory_may_be_one(tmp_path):
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("run")
    _files.check_tree(tmp_path / "link")
    _files.check_tree(tmp_path / "missing")
    (tmp_path / "run" / "a" / "b").symlink_to("/")
    for name in ("link", "run"):
        with pytest.raises(CheckpointError, match="symbolic link"):
            _files.check_tree(tmp_path / name)


def test_links_that_wandb_makes_are_allowed_in_its_folder_alone(tmp_path):
    logs = tmp_path / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "wandb" / "latest-run").symlink_to("offline-run-1")
    (logs / "debug-core.log").symlink_to("/elsewhere/wandb/core.log")
    _files.check_tree(tmp_path)
    (tmp_path / "wandb" / "data").symlink_to("/root")
    with pytest.raises(CheckpointError):
        _files.check_tree(tmp_path)
    (tmp_path / "wandb" / "data").unlink()
    (tmp_path / "latest-run").symlink_to("wandb")
    with pytest.raises(CheckpointError):
        _files.check_tree(tmp_path)


def test_json_is_nested_no_deeper_than_its_readers_can_take():
    deepest = b"[" * 64 + b"]" * 64
    assert _files.parse_json(deepest)
    wide = b"[" + b"[]," * 1000 + b"[]]"
    assert len(_files.parse_json(wide)) == 1001
    for depth in (65, 500, 100_000):
        with pytest.raises(ValueError, match="too deeply"):
            _files.parse_json(b"[" * depth + b"]" * depth)
