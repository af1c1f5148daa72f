"""One search over several processes: the bits of one, and one writer."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_search

from metaevo.storage import jsonl

HERE = Path(tiny_search.__file__).parent
OPTIONS = ["run.held_out_seeds=0", "run.wandb=disabled"]
ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
MPIEXEC = ["mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "2"]


def command(directory, *options, program="tiny_search.py"):
    return [sys.executable, program, f"run.directory={directory}", *OPTIONS, *options]


def start(arguments):
    return subprocess.Popen(
        arguments,
        cwd=HERE,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def together(directory, *options, number=2, **settings):
    """Starts the processes of a job without a launcher."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    job = ["run.distributed=true", f"run.coordinator=localhost:{port}"]
    job += [f"run.num_processes={number}"]
    return [
        start(command(directory, *job, f"run.process_id={i}", *options, **settings))
        for i in range(number)
    ]


def done(processes, seconds=300):
    """Exit codes, and what was printed."""
    said = [process.communicate(timeout=seconds)[0] for process in processes]
    return [process.returncode for process in processes], said


def bits(directory):
    newest = max((directory / "checkpoints").iterdir())
    return (newest / "arrays.safetensors").read_bytes()


def wait_for(directory, generations, seconds=120):
    log = directory / "metrics.jsonl"
    deadline = time.monotonic() + seconds
    while not log.exists() or log.read_bytes().count(b"\n") < generations:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not shutil.which("mpiexec"), reason="needs Open MPI")
def test_mpiexec_gives_the_bits_of_one_process(tmp_path):
    sizes = ["num_generations=6"]
    job = [*MPIEXEC, *command(tmp_path / "two", *sizes, "run.distributed=true")]
    for directory, arguments in (
        ("one", command(tmp_path / "one", *sizes)),
        ("two", job),
    ):
        codes, said = done([start(arguments)])
        assert codes == [0], said
        assert (tmp_path / directory / "solution" / "manifest.json").exists()
    assert bits(tmp_path / "one") == bits(tmp_path / "two")
    # Two processes, and each generation is logged once.
    log = jsonl.read(tmp_path / "two" / "metrics.jsonl")
    assert [record["generation"] for record in log] == list(range(6))


def test_agents_that_live_on_over_processes_and_resume_in_one(tmp_path):
    """A signal to any process stops all, between two rounds."""
    settings = {"program": "tiny_lives.py"}
    job = together(tmp_path / "two", **settings)
    wait_for(tmp_path / "two", 2)
    job[1].send_signal(signal.SIGTERM)
    codes, said = done(job)
    assert codes == [75, 0], said
    assert said[1] == "" or "Gloo" in said[1]
    stopped = jsonl.read(tmp_path / "two" / "metrics.jsonl")[-1]["generation"] + 1
    enough = f"num_generations={stopped + 2}"
    for directory in ("two", "one"):
        codes, said = done([start(command(tmp_path / directory, enough, **settings))])
        assert codes == [0], said
    assert bits(tmp_path / "one") == bits(tmp_path / "two")


def test_a_process_that_hangs_ends_the_others_with_75(tmp_path):
    job = together(tmp_path, "num_generations=100000", "run.watchdog=20")
    try:
        wait_for(tmp_path, 2)
        job[1].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        said = job[0].communicate(timeout=60)[0]
        assert job[0].returncode == 75, said
        assert time.monotonic() - stopped < 30
        assert "run.watchdog=20" in said
    finally:
        job[1].kill()
        job[1].communicate()


def test_what_only_the_first_process_finds_out_ends_all(tmp_path):
    job = together(tmp_path, "num_generations=2")
    assert done(job)[0] == [0, 0]
    job = together(tmp_path, "num_generations=2", "population_size=4")
    codes, said = done(job)
    assert codes == [2, 0], said
    assert "holds a run with other settings" in said[0]


@pytest.mark.parametrize(
    "options",
    [
        ["run.coordinator=localhost:1"],
        ["run.distributed=true", "run.process_id=0"],
        ["run.distributed=true", "run.devices=1"],
        ["run.distributed=true", "run.watchdog=0"],
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, options, capsys):
    import metaevo

    with pytest.raises(SystemExit) as exit:
        metaevo.main(tiny_search.search, [f"run.directory={tmp_path}", *options])
    assert exit.value.code == 2
    assert "run." in capsys.readouterr().err


def test_without_a_launcher_it_says_what_to_do(tmp_path):
    codes, said = done([start(command(tmp_path, "run.distributed=true"))])
    assert codes == [2]
    assert "mpiexec" in said[0]
    assert "run.coordinator" in said[0]


def test_an_error_in_one_process_ends_it_at_once(tmp_path):
    """What is left of the job is the launcher's to end."""
    job = together(tmp_path, program="tiny_breaks.py")
    try:
        said = job[1].communicate(timeout=120)[0]
        assert job[1].returncode == 1
        assert "no such luck" in said
    finally:
        job[0].kill()
        job[0].communicate()
