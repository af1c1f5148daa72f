"""A run directory never steers wandb: the real client, and servers on this machine."""

import base64
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import types
from pathlib import Path

import planted
import pytest
import tiny_search
import wandb_reader
import wandb_server

TINY = Path(tiny_search.__file__)
KEY = "0" * 40
GENERATIONS = 6
PATH = os.pathsep.join(x for x in sys.path if x)
SEARCH = ("run", TINY, "run.held_out_seeds=0", "run.devices=1")


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """One process that has imported metaevo, whose children are the commands."""
    env = os.environ | {"PYTHONPATH": PATH}
    made = planted.Commands(tmp_path_factory.mktemp("commands"), env)
    yield made
    made.close()


class Machine:
    """A user's home, a server that the user named, and one that nobody named."""

    def __init__(self, commands, home, server, foreign):
        self.commands, self.home, self.server = commands, home, server
        self.foreign, self.requests = foreign
        settings = home / ".config" / "wandb" / "settings"
        settings.parent.mkdir(parents=True)
        # As `wandb login --host URL` writes it.
        settings.write_text(f"[default]\nbase_url = {server.url}\n")

    def environment(self):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
        return clean | {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "WANDB_API_KEY": KEY,
        }

    def metaevo(self, *arguments, cwd=TINY.parent, **env):
        """Run a command, with these variables in place of its own; None: without."""
        env = self.environment() | env
        self.commands.env = {k: v for k, v in env.items() if v is not None}
        code, *_ = self.commands.run([*map(str, arguments)], cwd, limit=200)
        out, err = (
            (self.commands.folder / name).read_text() for name in ("stdout", "stderr")
        )
        return types.SimpleNamespace(returncode=code, stdout=out, stderr=err)

    def push(self, run, *arguments, **options):
        return self.metaevo("wandb-push", run, *arguments, **options)

    def python(self, program, *arguments, **options):
        """Run a program in a process of its own."""
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=self.environment() | {"PYTHONPATH": PATH},
            capture_output=True,
            text=True,
            timeout=200,
            **options,
        )


@pytest.fixture
def machine(commands, tmp_path):
    with wandb_server.serve() as server, wandb_server.stranger() as foreign:
        machine = Machine(commands, tmp_path / "home", server, foreign)
        yield machine
        assert machine.requests == []  # whatever a test did
        secret = base64.b64encode(f"api:{KEY}".encode()).decode()
        assert server.keys <= {f"Basic {secret}", None}
        assert server.unknown == []


@pytest.fixture(scope="module")
def whole(commands, tmp_path_factory):
    """A run that no wandb has seen."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    sizes = f"num_generations={GENERATIONS}", "run.wandb=disabled"
    search = [*map(str, SEARCH), f"run.directory={directory}", *sizes]
    code, *_, said = commands.run(search, TINY.parent, limit=200)
    assert code == 0, said
    return directory


@pytest.fixture
def run(whole, tmp_path):
    """The run, as it was downloaded."""
    return Path(shutil.copytree(whole, tmp_path / "downloaded" / "run"))


def sent(server):
    """The only run of a server, and the generations that it has."""
    (found,) = server.runs.values()
    return found, [row["_step"] for row in found.history if "fitness_mean" in row]


def test_the_key_goes_to_the_host_that_the_user_named(machine, run):
    out = machine.push(run)
    assert (out.returncode, out.stderr) == (0, "")
    found, steps = sent(machine.server)
    assert steps == list(range(GENERATIONS))
    assert found.config["run.seed"] == 0
    assert found.tags == ["lr"]
    assert any("# " in (x.asked["description"] or "") for x in found.artifacts)


@pytest.mark.parametrize(
    "place",
    [
        "wandb/settings",
        "wandb/config/settings",
        ".wandb/settings",
        "WANDB/Settings",
        "report/wandb/settings",
        "config-defaults.yaml",
    ],
)
def test_settings_in_a_run_are_refused_before_anything_is_sent(machine, run, place):
    text = f"[default]\nbase_url = {machine.foreign}\n"
    if place.endswith("yaml"):
        text = f"start:\n  value: wandb-artifact://{machine.foreign}/a/b/c:v0\n"
    (run / place).parent.mkdir(parents=True, exist_ok=True)
    (run / place).write_text(text)
    for target, cwd in ((run, TINY.parent), (".", run)):
        out = machine.push(target, cwd=cwd)
        assert out.returncode == 4
        assert "would steer wandb" in out.stderr
        assert "Traceback" not in out.stderr
    assert machine.server.texts == []


def test_settings_of_another_run_that_one_works_in_are_refused(machine, run):
    other = shutil.copytree(run, run.parent / "other")
    (other / "wandb").mkdir()
    settings = other / "wandb" / "settings"
    settings.write_text(f"[default]\nbase_url = {machine.foreign}\n")
    out = machine.push(run, cwd=other)
    assert out.returncode == 4, out.stderr
    assert "would steer wandb" in out.stderr
    assert machine.server.texts == []


def test_an_unfinished_run_of_a_stranger_resumes_on_the_users_host(machine, run):
    more = f"num_generations={GENERATIONS + 2}"
    search = (*SEARCH, f"run.directory={run}", more, "run.wandb=online")
    out = machine.metaevo(*search)
    assert out.returncode == 0, out.stderr
    assert sent(machine.server)[1] == [GENERATIONS, GENERATIONS + 1]
    planted = run / "wandb" / "config" / "settings"
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(f"[default]\nbase_url = {machine.foreign}\n")
    out = machine.metaevo(*search)
    assert out.returncode == 4
    assert "would steer wandb" in out.stderr


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("wandb/settings", "base_url"),
        (".wandb/settings", "base_url"),
        ("wandb/settings", "api_key"),
        ("wandb/settings", "http_proxy"),
    ],
)
def test_settings_beside_a_run_name_no_host_and_no_key(machine, run, name, key):
    """What was unpacked together, one folder above the run."""
    value = "1" * 40 if key == "api_key" else machine.foreign
    options = {"WANDB_API_KEY": None} if key == "api_key" else {}
    beside = run.parent / name
    beside.parent.mkdir()
    beside.write_text(f"[default]\n{key} = {value}\n")
    new = f"run.directory={run.parent}/new", "num_generations=1"
    online = (*SEARCH, *new, "run.wandb=online")
    for command in (("wandb-push", run), online):
        out = machine.metaevo(*command, cwd=run.parent, **options)
        (text,) = out.stderr.strip().splitlines()[-1:]
        assert out.returncode == 2, out.stderr
        assert f"{beside} would steer wandb: it sets {key}, not as your own" in text
        assert f"set WANDB_{key.upper()}, or remove that line" in text
        assert "Traceback" not in out.stderr
    assert machine.server.texts == []


@pytest.mark.parametrize("named", ["file", "environment"])
def test_settings_of_a_users_own_folder_are_obeyed(machine, run, named):
    """As `wandb init` writes them, and a host that is the user's."""
    url, options = machine.server.url, {}
    if named == "environment":
        url, options = machine.foreign, {"WANDB_BASE_URL": machine.server.url}
    settings = run.parent / "wandb" / "settings"
    settings.parent.mkdir()
    settings.write_text(
        f"[default]\nentity = {wandb_server.ENTITY}\nproject = ours\n"
        f"mode = offline\nbase_url = {url}\n"
    )
    out = machine.push(run, cwd=run.parent, **options)
    assert (out.returncode, out.stderr) == (0, "")
    assert sent(machine.server)[1] == list(range(GENERATIONS))
    assert b'"ours"' in b"".join(machine.server.texts)


def test_a_push_leaves_a_run_that_metaevo_takes(machine, run):
    assert list((run / "report").glob("*.png"))
    out = machine.push(run, "offline", WANDB_ALLOW_MEDIA_SYMLINK="true")
    assert (out.returncode, out.stderr) == (0, "")
    out = machine.metaevo("verify", run)
    assert out.returncode == 0, out.stdout + out.stderr


def test_a_push_from_a_folder_that_was_deleted_is_no_traceback(machine, run):
    gone = run.parent / "gone"
    gone.mkdir()
    program = (
        f"import os, sys; os.rmdir({str(gone)!r})\n"
        "sys.argv[0] = 'metaevo'\nfrom metaevo.cli import main\nmain.command()\n"
    )
    out = machine.python(program, "wandb-push", run, "offline", cwd=gone)
    assert "Traceback" not in out.stderr
    assert out.returncode in (0, 1)


def rewrite(run, change):
    """Change the manifest of a run, as a stranger may."""
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_values_of_a_stranger_are_sent_as_text(machine, run):
    value = f"wandb-artifact://{machine.foreign}/entity/project/name:v0"
    typed = {"_type": "artifactVersion", "id": "QXJ0aWZhY3Q6MQ=="}

    def change(manifest):
        settings = manifest["identity"]["settings"]
        settings |= {"sigma": value, "start": {"a": value}, "more": [value, typed]}
        settings |= {"_wandb": {"code_path": "x"}, "dict": typed}
        manifest["identity"]["search"] = value

    rewrite(run, change)
    out = machine.push(run)
    assert (out.returncode, out.stderr) == (0, "")
    found, steps = sent(machine.server)
    assert steps == list(range(GENERATIONS))
    assert found.config["sigma"] == json.dumps(value)
    assert found.config["start.a"] == json.dumps(value)
    assert found.config["more"] == [json.dumps(value), json.dumps(typed)]


def test_git_below_a_run_is_never_asked(machine, run):
    trace = run.parent / "ran"
    program = run / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    git = ["git", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", run], check=True)
    with open(run / ".git" / "config", "a") as file:
        file.write(f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n")
        file.write(f'[diff]\n\texternal = {program}\n[remote "origin"]\n\turl = x\n')
    subprocess.run([*git, "-C", run, "status"], capture_output=True, check=False)
    assert trace.exists()  # the trap works
    trace.unlink()
    for cwd in (run, TINY.parent):
        options = {"WANDB_SAVE_CODE": "true", "WANDB_DISABLE_GIT": "false"}
        out = machine.push(run, cwd=cwd, **options)
        assert (out.returncode, out.stderr) == (0, "")
        assert not trace.exists()


# --- what is said of a push -----------------------------------------------------------


def offline_runs(run):
    return sorted(path.name for path in (run / "wandb").glob("offline-run-*"))


def check_not_sent(machine, run, reason, times=2, **env):
    """Pushes fail with one line and the one place of the data; nothing else."""
    (run / "wandb.json").write_text('{"id": "before", "generation": 3}')
    digest = hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()[:12]
    planted = run / "wandb" / f"offline-run-20260101_000000-push{digest}x1"
    planted.mkdir(parents=True)  # its files could make `wandb sync` upload anything
    places = set()
    for _ in range(times):
        out = machine.push(run, **env)
        assert (out.returncode, out.stdout) == (1, "")
        (text,) = out.stderr.strip().splitlines()
        assert reason in text
        assert "not sent" in text
        places.add(Path(text.partition("wandb sync ")[2].partition(", or ")[0]))
    (place,) = places
    planted.rmdir()
    assert offline_runs(run) == [place.name]
    history, _, _, artifacts = wandb_reader.read(run)
    assert [x["_step"] for x in history if "fitness_mean" in x] == [*range(GENERATIONS)]
    assert len(artifacts) == 1
    state = json.loads((run / "wandb.json").read_text())
    assert state == {"id": "before", "generation": 3}


def test_a_push_without_a_key_says_where_the_data_are(machine, run):
    check_not_sent(machine, run, "no API key", WANDB_API_KEY=None)
    assert machine.server.runs == {}


def test_a_push_that_is_refused_is_none(machine, run):
    machine.server.refuses = 401
    check_not_sent(machine, run, "AuthenticationError")
    assert machine.server.runs == {}


def test_a_push_without_a_server_is_none(machine, run):
    # Bound, so that nobody else listens there meanwhile.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        check_not_sent(machine, run, "", times=1, WANDB_BASE_URL=url)


def test_what_the_server_has_not_got_is_not_sent(machine, run):
    machine.server.forgets = True
    program = (
        "import sys\nfrom metaevo.engine.loggers import wandb_push\n"
        "wandb_push.CONFIRM = 2.0\n"
        "sys.argv = ['metaevo', 'wandb-push', sys.argv[1]]\n"
        "from metaevo.cli import main\nmain.command()\n"
    )
    out = machine.python(program, run)
    assert (out.returncode, out.stdout) == (1, "")
    assert f"the server has 0 of {GENERATIONS} generations" in out.stderr
    place = Path(out.stderr.partition("wandb sync ")[2].partition(", or ")[0])
    assert place.is_dir()
    assert not (run / "wandb.json").exists()


def test_a_push_offline_says_how_to_send_it(machine, run):
    out = machine.push(run, "offline")
    (folder,) = offline_runs(run)
    said = f"{GENERATIONS} generations written: wandb sync {run / 'wandb' / folder}\n"
    assert (out.returncode, out.stderr, out.stdout) == (0, "", said)
    assert machine.server.texts == []


def test_a_push_obeys_the_command_line_before_the_users_settings(machine, run):
    path = machine.home / ".config" / "wandb" / "settings"
    path.write_text(path.read_text() + "mode = offline\nproject = mine\n")
    out = machine.push(run)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout == f"{GENERATIONS} generations sent; the server has them\n"
    assert sent(machine.server)[1] == list(range(GENERATIONS))


def test_no_path_of_the_machine_is_sent(machine, run):
    settings = machine.home / "learned" / "loss"
    rewrite(run, lambda x: x["identity"]["settings"].update(start=str(settings)))
    options = {"WANDB_SAVE_CODE": "true", "WANDB_NOTEBOOK_NAME": str(settings)}
    assert machine.push(run, **options).returncode == 0
    found, _ = sent(machine.server)
    assert found.config["start"] == ".../loss"
    texts = [*machine.server.texts, *found.files.values()]
    private = (str(run.parent), str(machine.home), sys.executable, sys.prefix)
    for text in texts:
        for path in private:
            assert path.encode() not in text
            assert base64.b64encode(path.encode()) not in text


@pytest.mark.parametrize("name", ["no picture", "huge picture", "solution", "card"])
def test_files_that_are_not_sound_are_refused_before_a_server_is_asked(
    machine, run, name
):
    picture, solution = run / "report" / "x.png", run / "solution"
    if name == "no picture":
        picture.write_bytes(b"<svg>")
    elif name == "huge picture":
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        picture.write_bytes(head + struct.pack(">II", 1 << 30, 1 << 30) + bytes(99))
    elif name == "solution":
        (solution / "arrays.safetensors").write_bytes(b"0" * 100)
    else:
        os.truncate(solution / "README.md", 1 << 32)
    out = machine.push(run)
    assert out.returncode == 4, out.stderr
    assert "Traceback" not in out.stderr
    assert machine.server.texts == []
