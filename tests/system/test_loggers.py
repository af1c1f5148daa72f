"""wandb and TensorBoard mirror a run, and never change, stop or delay it for long."""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny_search
import wandb_reader
from PIL import Image
from runs import records, solution_bytes

from metaevo.engine.loggers import event_files
from metaevo.engine.loggers import wandb as mirror
from metaevo.engine.loggers.tensorboard import TensorboardLogger
from metaevo.errors import ConfigError

TINY = Path(tiny_search.__file__)
LENGTH = 40
"""Generations of a run."""


def start(directory, *arguments, program=None, **env):
    """The tiny search in a process of its own, with these environment variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment |= {k: v for k, v in env.items() if v is not None}
    command = [sys.executable, *(("-c", program) if program else (TINY.name,))]
    command += [f"run.directory={directory}", "run.held_out_seeds=0"]
    return subprocess.Popen(
        [*command, f"num_generations={LENGTH}", *arguments],
        cwd=TINY.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Exit code, stderr and seconds of a process that ends."""
    began = time.monotonic()
    _, stderr = process.communicate(timeout=200)
    return process.returncode, stderr, time.monotonic() - began


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without wandb, and the seconds it took."""
    directory = tmp_path_factory.mktemp("plain") / "run"
    code, _, seconds = finish(start(directory, "run.wandb=disabled"))
    assert code == 0
    assert not (directory / "wandb").exists()
    return directory, seconds


def wait_for(directory, number):
    """Wait until a run has logged so many generations, or for a minute."""
    log = directory / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists() and log.read_bytes().count(b"\n") >= number:
            break
        time.sleep(0.005)


def same_result(directory, plain):
    return solution_bytes(directory) == solution_bytes(plain) and records(
        directory
    ) == records(plain)


def test_an_offline_run_and_event_files_are_mirrors(tmp_path, plain):
    options = "run.wandb=offline", "run.tensorboard=true"
    code, stderr, _ = finish(start(tmp_path / "run", *options))
    assert (code, stderr) == (0, "")
    assert same_result(tmp_path / "run", plain[0])
    history, config, ids, artifacts = wandb_reader.read(tmp_path / "run")
    rows = [row for row in history if "fitness_mean" in row]
    assert [row["_step"] for row in rows] == list(range(LENGTH))
    expected = records(tmp_path / "run")
    for row, record in zip(rows, expected, strict=True):
        assert row["fitness_mean"] == pytest.approx(record["fitness_mean"])
        assert sum(row["population.values"]) == 8
    assert config["population_size"] == 8
    assert config["run.seed"] == 0
    assert len(ids) == 1
    assert artifacts == [f"solution-{ids.pop()}"]
    assert any(key.startswith("report/fitness") for row in history for key in row)
    texts, pictures = {}, []
    for event in events(tmp_path / "run"):
        for value in event.summary.value:
            if value.tensor.string_val:
                text = value.tensor.string_val[0].decode()
                texts[value.tag.partition("/")[0]] = text
            if value.tag == "report/fitness":
                assert event.step == LENGTH - 1
                pictures.append(value.image.encoded_image_string)
    assert "| population_size | 8 |" in texts["configuration"]
    assert "lr" in texts["card"]
    assert Image.open(io.BytesIO(pictures[-1])).size[0] > 100


def test_the_evolved_loss_is_drawn_while_it_evolves(tmp_path):
    search = ["-m", "searches.ppo_value_loss", f"run.directory={tmp_path / 'run'}"]
    sizes = "population_size=2", "num_seeds=1", "inner.total_timesteps=4096"
    out = subprocess.run(
        [sys.executable, *search, *sizes, "num_generations=2", "run.held_out_seeds=0"],
        cwd=TINY.parent.parent,
        capture_output=True,
        text=True,
    )
    assert (out.returncode, out.stderr) == (0, "")
    history, _, _, _ = wandb_reader.read(tmp_path / "run")
    drawn = {row["_step"]: row for row in history if "evolved.path" in row}
    assert 0 in drawn  # later ones only if drawing takes little of the time
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files")
    with Image.open(folder / drawn[0]["evolved.path"]) as picture:
        assert picture.width == 1380
        assert len(picture.getcolors(1 << 20)) > 100  # curves, not an empty page


def test_pictures_are_spread_over_a_run_and_cost_little(tmp_path, monkeypatch):
    import wandb

    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    logged, log = {}, wandb.Run.log

    def spy(self, data, step):
        logged[step] = data
        log(self, data, step=step)

    monkeypatch.setattr(wandb.Run, "log", spy)
    now = [0.0]
    monkeypatch.setattr(mirror, "clock", lambda: now[0])
    png = io.BytesIO()
    Image.new("RGB", (2, 3)).save(png, "png")

    def draw(seconds):
        now[0] += seconds
        return png.getvalue()

    def pictures(seconds, name):
        folder = tmp_path / name
        folder.mkdir()
        logged.clear()
        logger = mirror.WandbLogger(folder, "offline", "x", {}, (), 100)
        for generation in range(100):
            now[0] += 10.0
            record = {"generation": generation, "population": [1.0]}
            logger.log(record, lambda: draw(seconds))
        logger.close()
        wandb.teardown()
        assert list(logged) == list(range(100))
        history, _, _, _ = wandb_reader.read(folder)
        assert [row["_step"] for row in history] == list(range(100))
        return [row["_step"] for row in history if "evolved.path" in row]

    assert pictures(0.1, "cheap") == list(range(0, 100, 5))
    assert pictures(4.0, "expensive") == [0, 40, 80]  # 1 % of 10 s x 40

    def broken():
        raise RuntimeError("no fonts")

    logged.clear()
    (tmp_path / "broken").mkdir()
    logger = mirror.WandbLogger(tmp_path / "broken", "offline", "x", {}, (), 2)
    with pytest.warns(UserWarning, match="no picture of what evolves.*no fonts"):
        logger.log({"generation": 0, "population": [1.0]}, broken)
    assert logged[0]["generation"] == 0  # the mirror goes on
    logger.close()
    wandb.teardown()


# Seconds for wandb to answer at the start, in place of `mirror.START`.
PATIENCE = 8
IMPATIENT = f"""
import sys; sys.argv[0] = 'tiny'
from metaevo.engine.loggers import wandb; wandb.START = {PATIENCE}
import metaevo, tiny_search; metaevo.main(tiny_search.search)
"""


def check_harmless(process, directory, plain, *messages, patience=mirror.START):
    """The same bits, a line that says what happened, and at most a minute more.

    A process with less patience must end as much earlier.
    """
    code, stderr, seconds = finish(process)
    assert code == 0, stderr
    assert stderr.count("UserWarning: wandb") == 1, stderr
    assert same_result(directory, plain[0])
    assert seconds < plain[1] + 60 - (mirror.START - patience)
    assert any(message in stderr for message in messages), stderr


def check_offline(process, directory, plain):
    """It went on offline, in the same process, with every generation."""
    check_harmless(process, directory, plain, "continuing offline", patience=PATIENCE)
    history, _, ids, artifacts = wandb_reader.read(directory)
    steps = [row["_step"] for row in history if "fitness_mean" in row]
    assert steps == list(range(LENGTH))
    assert len(ids) == len(artifacts) == 1


def test_without_the_package(tmp_path, plain):
    program = (
        "import sys; sys.modules['wandb'] = None; sys.argv[0] = 'tiny'\n"
        "import metaevo, tiny_search; metaevo.main(tiny_search.search)"
    )
    process = start(tmp_path / "run", program=program)
    check_harmless(process, tmp_path / "run", plain, "wandb is off from here on")


def test_online_without_a_key_continues_offline(tmp_path, plain):
    process = start(tmp_path / "run", "run.wandb=online", HOME=str(tmp_path))
    check_harmless(process, tmp_path / "run", plain, "continuing offline")
    assert wandb_reader.read(tmp_path / "run")[0]


@pytest.mark.parametrize("hangs", [False, True], ids=["none", "hangs"])
def test_a_server_that_does_not_answer(tmp_path, plain, hangs):
    with socket.socket() as server:
        # Bound, so that nobody else listens there meanwhile.
        server.bind(("127.0.0.1", 0))
        if hangs:
            server.listen(64)  # takes connections and never answers
        process = start(
            tmp_path / "run",
            "run.wandb=online",
            program=IMPATIENT,
            WANDB_BASE_URL=f"http://127.0.0.1:{server.getsockname()[1]}",
            WANDB_API_KEY="0" * 40,
        )
        check_offline(process, tmp_path / "run", plain)


def test_a_service_that_dies_in_mid_run(tmp_path, plain):
    directory = tmp_path / "run"
    process = start(directory)
    wait_for(directory, 12)
    services = psutil.Process(process.pid).children(recursive=True)
    assert services, "no wandb service to kill"
    for service in services:
        service.kill()
    check_harmless(process, directory, plain, "wandb is off from here on")


def test_values_that_are_not_the_sweeps_are_refused(tmp_path, monkeypatch):
    parameters = tmp_path / "config.yaml"
    parameters.write_text("wandb_version: 1\nsigma:\n  value: 0.5\n")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(parameters))
    assert mirror._swept() == {"sigma": 0.5}
    mirror._check_sweep({"sigma": 0.5}, {"sigma": 0.5, "x": 2})
    with pytest.raises(ConfigError, match="sigma: the sweep says"):
        mirror.WandbLogger(tmp_path, "offline", "x", {"sigma": 0.1})


def events(directory):
    """All events of a run's event files, whose checksums are right."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    for path in sorted((directory / "tensorboard").glob("events*")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            size = int.from_bytes(data[position : position + 8], "little")
            body = data[position + 12 : position + 12 + size]
            crc = data[position + 12 + size : position + 16 + size]
            assert masked_crc32c(body) == int.from_bytes(crc, "little")
            yield event_pb2.Event.FromString(body)
            position += 16 + size


def generations_of(directory):
    """The generations whose scalars are in the event files, in order."""
    found = list(events(directory))
    values = [(event.step, x.tag) for event in found for x in event.summary.value]
    return sorted(step for step, tag in values if tag == "fitness_mean")


def test_a_killed_run_misses_nothing_in_tensorboard(tmp_path, plain):
    """And its one run of wandb goes on without doubles."""
    directory = tmp_path / "run"
    for until in (10, 25):
        process = start(directory, "run.tensorboard=true")
        wait_for(directory, until)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert finish(start(directory, "run.tensorboard=true"))[0] == 0
    assert same_result(directory, plain[0])
    assert generations_of(directory) == list(range(LENGTH))
    history, _, ids, _ = wandb_reader.read(directory)
    steps = [row["_step"] for row in history if "fitness_mean" in row]
    assert len(ids) == 1
    assert len(steps) == len(set(steps))  # what a kill lost may be missing
    assert steps[-1] == LENGTH - 1


def test_what_the_event_files_lack_is_written_at_the_next_start(tmp_path, plain):
    directory = Path(shutil.copytree(plain[0], tmp_path / "run"))
    rows = records(directory)
    logger = TensorboardLogger(directory, 0)
    for record in rows[:10]:
        logger.log(record)
    logger.close()
    (file,) = (directory / "tensorboard").iterdir()
    with open(file, "ab") as cut:
        cut.write(b"\x40" + bytes(7) + b"torn")  # what a killed process leaves
    assert event_files.steps(directory / "tensorboard") == set(range(10))
    logger = TensorboardLogger(directory, 30)
    for record in rows[30:]:
        logger.log(record)
    logger.close()
    file.write_bytes(file.read_bytes()[:-12])
    assert generations_of(directory) == list(range(LENGTH))
    written = [x for x in events(directory) if x.step == 20 and x.summary.value]
    values = {x.tag: x.simple_value for x in written[0].summary.value}
    assert values["fitness_mean"] == pytest.approx(rows[20]["fitness_mean"])


def test_what_a_later_start_drops_is_written_again(tmp_path, plain):
    """A process that was killed before its checkpoint, twice."""
    directory = Path(shutil.copytree(plain[0], tmp_path / "run"))
    rows = records(directory)
    for first, last in ((0, 20), (5, 7), (12, LENGTH)):
        logger = TensorboardLogger(directory, first)
        for record in rows[first:last]:
            logger.log(record)
        logger.close()
        time.sleep(1)  # files are named by the second
    again = range(5, 20)  # by the second process and the third
    assert generations_of(directory) == sorted([*range(LENGTH), *again])
    assert event_files.steps(directory / "tensorboard") == set(range(LENGTH))


def test_event_files_of_a_stranger_are_read_in_bounds(tmp_path):
    (tmp_path / "events.folder").mkdir()
    (tmp_path / "events.link").symlink_to("/dev/zero")
    (tmp_path / "events.noise").write_bytes(os.urandom(5000))
    (tmp_path / "events.long").write_bytes(b"\xff" * 100)
    with open(tmp_path / "events.sparse", "wb") as file:
        file.truncate(1 << 34)
    began = time.monotonic()
    assert event_files.steps(tmp_path) == set()
    assert time.monotonic() - began < 1
