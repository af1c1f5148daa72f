"""Of wandb's files in a run directory, only those are allowed that steer nothing."""

import json
import os
from pathlib import Path

import pytest

from metaevo.engine.loggers import wandb_client
from metaevo.errors import CheckpointError
from metaevo.storage import _files, obeyed, own_wandb

LINKS_OF_WANDB = """
wandb/latest-run wandb/debug.log wandb/debug-internal.log
wandb/offline-run-20260101_000000-a/logs/debug-core.log
wandb/run-20260101_000000-a/logs/debug-core.log
"""
OTHER_LINKS = """
wandb/data wandb/data/latest-run wandb/data/artifacts/staging/debug.log
wandb/offline-run-1/files/latest-run wandb/offline-run-1/logs/x/debug-core.log
wandb/run-1/debug.log wandb/debug-core.log report/wandb/latest-run latest-run
"""


def test_a_pipe_where_wandb_makes_a_link_is_refused(tmp_path):
    (tmp_path / "wandb").mkdir()
    os.mkfifo(tmp_path / "wandb" / "debug.log")
    with pytest.raises(CheckpointError, match="a pipe"):
        _files.check_tree(tmp_path)


def test_links_of_wandb_are_allowed_where_it_makes_them(tmp_path):
    for place in (*LINKS_OF_WANDB.split(), *OTHER_LINKS.split()):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/etc/hostname")
        if place in LINKS_OF_WANDB.split():
            _files.check_tree(tmp_path)
        else:
            with pytest.raises(CheckpointError, match="symbolic link"):
                _files.check_tree(tmp_path)
        path.unlink()


def test_settings_are_refused_at_any_depth(tmp_path):
    for place in ("wandb/settings", "a/b/.wandb/SETTINGS", "a\nb/config-defaults.yaml"):
        path = tmp_path / place
        path.parent.mkdir(parents=True)
        path.write_text("")
        with pytest.raises(CheckpointError, match="would steer wandb"):
            _files.check_tree(tmp_path)
        path.unlink()


def test_what_wandb_writes_is_allowed(tmp_path):
    names = "settings.json", "config.yaml", "wandb-metadata.json", "run-a.wandb"
    for name in names:
        path = tmp_path / "wandb" / "offline-run-1" / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    _files.check_tree(tmp_path)


def test_settings_are_a_runs_where_a_manifest_is_around_them(tmp_path, monkeypatch):
    names = "wandb/settings", ".wandb/settings"
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("")
    monkeypatch.chdir(tmp_path)
    assert obeyed.planted(*names) is None
    (tmp_path / "manifest.json").write_text("{}")
    assert obeyed.planted(*names) == tmp_path / "wandb" / "settings"
    below = tmp_path / "report"
    (below / ".wandb").mkdir(parents=True)
    monkeypatch.chdir(below)
    assert obeyed.planted(*names) is None
    (below / ".wandb" / "settings").symlink_to("nothing")
    assert obeyed.planted(*names) == below / ".wandb" / "settings"


def test_values_reach_wandb_as_text_that_it_does_not_resolve():
    reference = "wandb-artifact://http://127.0.0.1:1/a/b/c:v0"
    config = {
        "a": reference,
        "b": [reference, {"_type": "artifactVersion"}],
        "c": "WANDB-client-artifact://x",
        "d": {},
        "e": ("gymnax/CartPole-v1", 3, None, True, 0.5),
        "--_wandb": "hidden",
        "f": "C:\\Users\\me\\loss",
        "g": str(Path.home() / "runs" / "loss"),
        "h": {"deep": [{"start": Path.home() / "Jane Doe" / "old"}]},
        "/home/me/i": "['/home/Jane Doe/x']",
        "j": "key=file:///home/me/x",
    }
    assert wandb_client.plain(config) == {
        "a": json.dumps(reference),
        "b": [json.dumps(reference), '{"_type": "artifactVersion"}'],
        "c": '"WANDB-client-artifact://x"',
        "d": "{}",
        "e": ["gymnax/CartPole-v1", 3, None, True, 0.5],
        "f": ".../loss",
        "g": ".../loss",
        "h": '{"deep": [{"start": ".../old"}]}',
        ".../i": "['.../x']",
        "j": "key=.../x",
    }


def test_a_wandb_run_is_remembered_by_place_and_manifest(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    own_wandb.remember(tmp_path / "a", "mine")
    assert own_wandb.recall(tmp_path / "a") == "mine"
    assert own_wandb.recall(tmp_path / "b") is None
    (tmp_path / "a" / "manifest.json").write_text("[]")
    assert own_wandb.recall(tmp_path / "a") is None
    (tmp_path / "cache").rename(tmp_path / "gone")
    (tmp_path / "cache").write_text("no folder")
    own_wandb.remember(tmp_path / "a", "mine")  # a run goes on without a cache
    assert own_wandb.recall(tmp_path / "a") is None
