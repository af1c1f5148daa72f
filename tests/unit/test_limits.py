"""Loggers whose service, folder or state is broken never stop a run."""

import errno
import json
import os
import sys
import time
import types
import warnings

import numpy as np
import pytest

from metaevo.analysis import holdout, results
from metaevo.analysis.holdout import HeldOut
from metaevo.engine.loggers import tensorboard
from metaevo.engine.loggers.limits import Limited
from metaevo.engine.loggers.tensorboard import TensorboardLogger
from metaevo.engine.loggers.wandb import WandbLogger
from metaevo.storage import run_directory, verified

CALLS = "init", "define_metric", "log", "Histogram", "Artifact", "update", "finish"


class Service:
    """A stand-in for the package wandb that keeps what it is told.

    Args:
        broken: calls that raise.
    """

    def __init__(self, *broken):
        self.broken, self.calls, self.logged, self.told = set(broken), [], {}, {}
        self.folders = []
        run = types.SimpleNamespace(
            log=self.named("log", lambda data, step: self.logged.update({step: data})),
            define_metric=self.named("define_metric"),
            summary=types.SimpleNamespace(
                update=self.named("update", lambda data: self.told.update(data))
            ),
            finish=self.named("finish"),
            log_artifact=self.named("log_artifact"),
        )

        def init(mode, id, **_):
            self.ids = id
            self.folders.append(os.environ["WANDB_DATA_DIR"])
            if mode == "online":
                raise OSError("no network")
            return run

        self.module = types.SimpleNamespace(
            init=self.named("init", init),
            Settings=dict,
            Histogram=self.named("Histogram", list),
            Image=str,
            Artifact=self.named(
                "Artifact",
                lambda *_, **__: types.SimpleNamespace(add_file=self.named("add_file")),
            ),
            teardown=self.named("teardown"),
        )

    def named(self, name, body=lambda *_, **__: None):
        def call(*args, **options):
            self.calls.append((name, options.get("mode")))
            if name in self.broken:
                raise SystemExit(f"{name} is broken")
            return body(*args, **options)

        return call


@pytest.fixture
def service(monkeypatch):
    def install(*broken):
        found = Service(*broken)
        monkeypatch.setitem(sys.modules, "wandb", found.module)
        return found

    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    return install


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


@pytest.mark.parametrize("broken", CALLS)
@pytest.mark.parametrize("strict", [False, True], ids=["warned", "warnings are errors"])
def test_whatever_of_wandb_breaks_is_one_warning(tmp_path, service, broken, strict):
    service(broken)
    with warnings.catch_warnings(record=not strict) as seen:
        warnings.simplefilter("error" if strict else "always")
        used(tmp_path)
    if not strict:
        (warning,) = seen
        assert f"SystemExit: {broken} is broken; wandb is off" in str(warning.message)


@pytest.mark.parametrize(
    "content", ["", '{"id": "a', "[]", "3", '{"id": "a"}', "\udcff", "[" * 9999]
)
def test_a_damaged_state_file_gives_a_new_run(tmp_path, service, content):
    path = tmp_path / "wandb.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    found = service()
    used(tmp_path)
    assert sorted(found.logged) == [0, 1, 2]
    assert json.loads(path.read_text()) == {"id": found.ids, "generation": 2}
    again = service()
    used(tmp_path)
    assert (again.ids, again.logged) == (found.ids, {})


def test_state_that_cannot_be_written_turns_wandb_off(tmp_path, service):
    (tmp_path / "wandb.json").mkdir()
    service()
    with pytest.warns(UserWarning, match="wandb is off from here on"):
        used(tmp_path)


def test_offline_follows_online_after_the_service_is_ended(tmp_path, service):
    found = service()
    with pytest.warns(UserWarning, match="OSError: no network.; continuing offline"):
        used(tmp_path, "online")
    assert found.calls[:3] == [
        ("init", "online"),
        ("teardown", None),
        ("init", "offline"),
    ]
    assert sorted(found.logged) == [0, 1, 2]


def test_folders_are_the_runs_own_and_the_environment_is_restored(
    tmp_path, service, monkeypatch
):
    found, before = service(), dict(os.environ)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        used(tmp_path / name)
        assert dict(os.environ) == before
    assert found.folders == [str(tmp_path / x / "wandb" / "data") for x in "ab"]
    monkeypatch.setenv("WANDB_DATA_DIR", "/users/own")
    used(tmp_path / "a")
    assert found.folders[2:] == ["/users/own"]


def test_a_run_tells_wandb_what_it_came_to(tmp_path, service):
    def runs(mean):
        x = np.array([[mean, mean + 1.0, np.nan]])
        return HeldOut(x, 10 * x, ({},))

    held_out = {"solution": runs(2.0), "hand-made": runs(1.0)}
    holdout.save(tmp_path / "held_out", held_out, {"measure": "area"})
    scores = results.Scores(0, {results.BEST: np.array([3.0, 5.0])})
    results.write_scores(tmp_path, scores)
    found = service()
    used(tmp_path)
    assert found.told["held_out/solution/fitness"] == 2.5
    assert found.told["held_out/hand-made/final_return"] == 15.0
    assert found.told["agents/best agent/return"] == 4.0
    assert found.told["held_out/verdict/fitness/difference"] == 1.0
    assert found.told["held_out/verdict/final_return/difference"] == 10.0
    # Two equal differences are too few for a verdict.
    assert found.told["held_out/verdict/fitness/verdict"] == "no difference"


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


def test_a_full_disk_turns_tensorboard_off(tmp_path, monkeypatch):
    from tensorboardX import event_file_writer

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(event_file_writer.RecordWriter, "flush", flush)
    with pytest.warns(UserWarning, match="No space left.*tensorboard is off") as seen:
        logged(tmp_path)
    assert len(seen) == 1


def test_a_folder_that_hangs_turns_tensorboard_off(tmp_path, monkeypatch):
    from tensorboardX import event_file_writer

    monkeypatch.setattr(tensorboard, "LIMIT", 0.2)
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
    limited = Limited("x", "off")
    done = []
    limited.call(lambda: done.append(1), 5.0)
    assert limited.alive
    assert done == [1]
