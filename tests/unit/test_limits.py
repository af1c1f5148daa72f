"""Loggers whose service, folder or state is broken never stop a run."""

import json
import os
import shutil
import sys
import time
import warnings

import numpy as np
import pytest
import wandb_reader
import wandb_server

from metaevo.analysis import holdout, results
from metaevo.analysis.holdout import HeldOut
from metaevo.engine.loggers import tensorboard, wandb
from metaevo.engine.loggers.tensorboard import TensorboardLogger
from metaevo.engine.loggers.wandb import WandbLogger
from metaevo.storage import run_directory, verified

CALLS = {
    "init": "wandb.init",
    "define_metric": "wandb.Run.define_metric",
    "log": "wandb.Run.log",
    "Histogram": "wandb.Histogram.__init__",
    "Artifact": "wandb.Artifact.__init__",
    "update": "wandb.sdk.wandb_summary.SummaryDict.update",
    "finish": "wandb.Run.finish",
}
"""Calls of the package, and their places in it."""


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The package wandb, for a user who has a key and set nothing else."""
    import wandb

    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.teardown()
    yield wandb
    monkeypatch.undo()
    wandb.teardown()


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def named_server(home, server):
    """What `wandb login --host URL` writes."""
    path = home / ".config" / "wandb" / "settings"
    path.parent.mkdir(parents=True)
    path.write_text(f"[default]\nbase_url = {server.url}\n")


def used(directory, mode="offline"):
    """A logger that was taken through a whole run of three generations."""
    solution = run_directory.paths(directory).solution
    solution.mkdir(exist_ok=True)
    (solution / verified.FILES[0]).touch()
    logger = WandbLogger(directory, mode, "toy", {"sigma": 0.5})
    for generation in range(3):
        logger.log({"generation": generation, "population": [1.0, np.nan], "x": 1.0})
    logger.finish(directory)
    logger.close()
    return logger


def logged_steps(directory):
    """The generations and the ids of all offline runs of a directory."""
    sys.modules["wandb"].teardown()  # its service writes late
    history, _, ids, _ = wandb_reader.read(directory)
    return [row["_step"] for row in history if "x" in row], ids


@pytest.mark.parametrize(
    ("broken", "strict"), [*((x, False) for x in CALLS), ("init", True)]
)
def test_whatever_of_wandb_breaks_is_one_warning(
    directory, client, monkeypatch, broken, strict
):
    def raising(*_, **__):
        raise SystemExit(f"{broken} is broken")

    monkeypatch.setattr(CALLS[broken], raising)
    with warnings.catch_warnings(record=not strict) as seen:
        warnings.simplefilter("error" if strict else "always")
        used(directory)
    if not strict:
        (warning,) = [x for x in seen if "wandb: " in str(x.message)]
        assert f"SystemExit: {broken} is broken; wandb is off" in str(warning.message)


def test_a_damaged_state_file_gives_a_new_run(directory, client):
    path = directory / "wandb.json"
    for content in ("", "[]", "3", '{"id": "a"}', "\udcff", "[" * 9999, '{"id": "a'):
        path.write_bytes(content.encode(errors="surrogateescape"))
        assert wandb._read_state(path) is None
    used(directory)
    steps, ids = logged_steps(directory)
    assert steps == [0, 1, 2]
    assert json.loads(path.read_text()) == {"id": ids.pop(), "generation": 2}
    used(directory)
    assert logged_steps(directory)[0] == [0, 1, 2]  # nothing twice
    assert len(logged_steps(directory)[1]) == 1


def test_a_wandb_run_that_this_user_did_not_begin_is_not_continued(
    directory, client, monkeypatch
):
    path = directory / "wandb.json"
    path.write_text('{"id": "victim", "generation": -1}')
    used(directory)
    (own,) = logged_steps(directory)[1]
    assert own != "victim"
    copied = shutil.copytree(directory, directory.parent / "copied", symlinks=True)
    used(copied)
    (other,) = logged_steps(copied)[1] - {own}
    assert json.loads((copied / "wandb.json").read_text())["id"] == other
    # A user who names it means it.
    path.write_text('{"id": "victim", "generation": 1}')
    monkeypatch.setenv("WANDB_RUN_ID", "victim")
    client.teardown()
    used(directory)
    assert logged_steps(directory)[1] == {own, "victim"}


def test_state_that_cannot_be_written_turns_wandb_off(directory, client):
    (directory / "wandb.json").mkdir()
    with pytest.warns(UserWarning, match="wandb is off from here on"):
        used(directory)


def test_offline_follows_online_after_the_service_is_ended(
    directory, client, monkeypatch
):
    calls = []

    def spied(name):
        body = getattr(client, name)

        def call(*args, **options):
            calls.append((name, options.get("mode")))
            return body(*args, **options)

        monkeypatch.setattr(client, name, call)

    spied("init")
    spied("teardown")
    with wandb_server.serve() as server:
        server.refuses = 403
        named_server(directory.parent / "home", server)
        with pytest.warns(UserWarning, match="CommError: .*403.*; continuing offline"):
            used(directory, "online")
    assert calls[:3] == [("init", "online"), ("teardown", None), ("init", "offline")]
    assert logged_steps(directory)[0] == [0, 1, 2]
    assert server.runs == {}


def test_what_a_server_does_not_take_in_time_is_warned_of(
    directory, client, monkeypatch
):
    monkeypatch.setattr(wandb, "FINISH", 6.0)  # 5 of them are to spare
    with wandb_server.serve() as server:
        named_server(directory.parent / "home", server)
        logger = WandbLogger(directory, "online", "toy", {})
        server.refuses = 503
        logger.log({"generation": 0, "population": [1.0]})
        with pytest.warns(UserWarning, match="TimeoutError: .*; wandb is off"):
            logger.close()
    assert not logger.complete


def test_folders_are_the_runs_own_and_the_environment_is_restored(
    tmp_path, client, monkeypatch
):
    seen, init = [], client.init

    def spy(**options):
        seen.append({k: v for k, v in os.environ.items() if k.startswith("WANDB_")})
        return init(**options)

    monkeypatch.setattr(client, "init", spy)
    monkeypatch.setenv("WANDB_DISABLE_GIT", "false")
    before = dict(os.environ)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        used(tmp_path / name)
        assert {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} == before
    folders = [str(tmp_path / x / "wandb" / "data") for x in "ab"]
    assert [x["WANDB_DATA_DIR"] for x in seen] == folders
    for variables in seen:
        assert "WANDB_CONFIG_DIR" not in variables  # it names the user's server
        assert variables["WANDB_ERROR_REPORTING"] == "false"
        assert variables["WANDB_DISABLE_GIT"] == "true"
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "own"))
    used(tmp_path / "a")
    assert seen[2]["WANDB_DATA_DIR"] == str(tmp_path / "own")


def test_a_run_tells_wandb_what_it_came_to(directory, client):
    def runs(mean):
        x = np.array([[mean, mean + 1.0, np.nan]])
        return HeldOut(x, 10 * x, ({},))

    held_out = {"solution": runs(2.0), "hand-made": runs(1.0)}
    holdout.save(directory / "held_out", held_out, {"measure": "area"})
    scores = results.Scores(0, {results.BEST: np.array([3.0, 5.0])})
    results.write_scores(directory, scores)
    with wandb_server.serve() as server:
        named_server(directory.parent / "home", server)
        used(directory, "online")
    (found,) = server.runs.values()
    told = found.summary
    assert told["held_out/solution/fitness"] == 2.5
    assert told["held_out/hand-made/final_return"] == 15.0
    assert told["agents/best agent/return"] == 4.0
    assert told["held_out/verdict/fitness/difference"] == 1.0
    assert told["held_out/verdict/final_return/difference"] == 10.0
    # Two equal differences are too few for a verdict.
    assert told["held_out/verdict/fitness/verdict"] == "no difference"


# --- TensorBoard ----------------------------------------------------------------------


def logged(directory):
    logger = TensorboardLogger(directory, 0)
    for generation in range(3):
        logger.log({"generation": generation, "$\\frac{$ <b>": 1.0, "population": [1]})
    logger.finish(directory)
    logger.close()


def test_an_unwritable_folder_turns_tensorboard_off(tmp_path):
    (tmp_path / "tensorboard").write_text("not a folder")
    with pytest.warns(UserWarning, match="tensorboard is off") as seen:
        logged(tmp_path)
    assert len(seen) == 1


def test_a_folder_that_hangs_turns_tensorboard_off(tmp_path, monkeypatch):
    from tensorboardX import event_file_writer

    monkeypatch.setattr(tensorboard, "START", 0.2)
    monkeypatch.setattr(event_file_writer, "RecordWriter", lambda _: time.sleep(5))
    began = time.monotonic()
    with pytest.warns(UserWarning, match=r"no answer within.*tensorboard is off"):
        logged(tmp_path)
    assert time.monotonic() - began < 3


def test_what_works_is_not_turned_off(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logged(tmp_path)
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.stat().st_size > 100
