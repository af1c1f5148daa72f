"""Files that a stranger may plant in a run directory."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path


@contextlib.contextmanager
def nested(path, num):
    """Make `num` folders, each in the one before, and remove them at the end.

    Neither this nor what cleans up after pytest may name such a path: it is longer than
    the system allows.
    """
    path.mkdir(parents=True, exist_ok=True)
    here = os.open(path, os.O_RDONLY)
    for _ in range(num):
        os.mkdir("d", dir_fd=here)
        here = _moved(here, "d")
    try:
        yield
    finally:
        for _ in range(num):
            here = _moved(here, "..")
            os.rmdir("d", dir_fd=here)
        os.close(here)


def _moved(handle, name):
    """Return an open folder beside or below another, which is closed."""
    found = os.open(name, os.O_RDONLY, dir_fd=handle)
    os.close(handle)
    return found


def sparse(path, size):
    """Make a file of `size` bytes that takes no room on a disk, or extend it."""
    with open(path, "ab") as file:
        file.truncate(size)


# --- what is planted ------------------------------------------------------------------

EXIT_CODES = (0, 2, 4)
"""With which a command ends that was given a run of a stranger."""
SECRET = "the-secret-of-this-user"
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that steer a terminal, or that nobody sees."""

FORGED = (
    "x\x1b]0;PWNED\x07\x1b[2J\x1b[32mwhole: everything verified\x1b[0m\r\u202e\u2066"
)
NEWEST = "checkpoints/generation-00000003"

OTHERS = """
wandb/settings wandb/config/settings .wandb/settings config-defaults.yaml
wandb/sweep-config.yaml wandb/offline-run-1-x/files/config.yaml
wandb/offline-run-1-x/files/wandb-metadata.json wandb/offline-run-1-x/run-x.wandb
wandb/data/artifacts/staging/x wandb/debug.log wandb/offline-run-1-x/logs/debug-core.log
.netrc matplotlibrc report/matplotlibrc stylelib/evil.mplstyle
.git/config .git/HEAD .git/hooks/post-index-change .gitattributes .gitmodules .gitconfig
sitecustomize.py usercustomize.py metaevo.py jax.py payload.py searches/pbt_toy.py
inner_loops/ppo.py __init__.py evil.pth pyvenv.cfg jax_cache/jit_f-0-cache
tensorboard/events.out.tfevents.9.x.0 play/solution.gif compare/index.html
conclusion/x/manifest.json earlier_solutions/generation-00000001/manifest.json
closed_form/manifest.json closed_form/verdict.json independent/manifest.json
.manifest.json.1.tmp report/fitness.csv report/fitness.png solution/README.md
"""
"""Files that wandb, matplotlib, git, Python and JAX read in some folder, and files of a
run that the commands read rarely."""

OURS = f"""
manifest.json metrics.jsonl history.jsonl wandb.json .lock report/index.html
{NEWEST}/manifest.json {NEWEST}/arrays.safetensors held_out/manifest.json
held_out/arrays.safetensors agents/best/manifest.json agents/best/arrays.safetensors
agents/scores.json solution/manifest.json solution/arrays.safetensors
"""
"""Files that the commands read."""

NAMES = (*OTHERS.split(), *OURS.split())


def _write(path, data):
    path.write_bytes(data)


def _host(path, place):
    """Name a host that the user did not, in the form that the file's reader expects."""
    url = place["url"]
    settings = f"[default]\nbase_url = {url}\napi_key = x\nentity = evil\n"
    git = '[core]\n\tfsmonitor = "touch {c}/git"\n\thooksPath = hooks\n'
    git += '[filter "x"]\n\tclean = "touch {c}/git"\n'
    code = f"from pathlib import Path\nPath({place['canary']!r}, __name__).touch()\n"
    code += f"import urllib.request\nurllib.request.urlopen({url!r})\n"
    texts = {
        "settings": settings,
        "config": git.replace("{c}", place["canary"]),
        ".gitconfig": git.replace("{c}", place["canary"]),
        ".gitattributes": "* filter=x diff=x\n",
        "matplotlibrc": "backend: module://payload\ntext.usetex: True\n",
        "evil.mplstyle": "backend: module://payload\ntext.usetex: True\n",
        ".netrc": f"machine api.wandb.ai login user password {'0' * 40}\n",
        "evil.pth": f"import os; os.mkdir({place['canary'] + '/pth'!r})\n",
    }
    name = path.name
    kind = {".py": code, ".json": f'{{"id": "{url}", "generation": 0}}'}
    kind[".yaml"] = f"base_url: {{value: {url}}}\n"
    _write(path, texts.get(name, kind.get(path.suffix, settings)).encode())


def _escapes(path, place):
    text = json.dumps({FORGED: FORGED}, ensure_ascii=False)
    _write(path, f"{text}\n{FORGED}\n".encode())


def _special(make):
    def plant(path, place):
        path.unlink(missing_ok=True)
        make(path, place)

    return plant


def _socket(path, place):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as found:
            found.bind(path.name)
    finally:
        os.chdir(here)


def _folder(path, place):
    path.mkdir()
    (path / "inner").write_text("x")


KINDS = {
    "host": _host,
    "escapes": _escapes,
    "bytes": lambda path, place: _write(path, b"\xff\xfe\x00\xed\xa0\x80" * 500),
    "empty": lambda path, place: _write(path, b""),
    "deep": lambda path, place: _write(path, b"[" * 100_000),
    "huge": lambda path, place: sparse(path, 1 << 42),
    "long": lambda path, place: _write(path, b'{"' + b"x" * 100_000 + b'": 1}\n'),
    "folder": _special(_folder),
    "pipe": _special(lambda path, place: os.mkfifo(path)),
    "socket": _special(_socket),
    "link": _special(lambda path, place: path.symlink_to(place["secret"])),
    "hard link": _special(lambda path, place: os.link(place["secret"], path)),
    "device": _special(
        lambda path, place: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    ),
}
REFUSED = ("pipe", "socket", "link", "hard link", "device")
"""Kinds that no command goes on with, wherever they are."""
SEVERAL = ("host", "escapes", "huge", "folder", *REFUSED)
"""Kinds that are planted in place of files that the commands read rarely."""

CASES = {
    f"{kind} as {name}": (kind, name)
    for name in NAMES
    for kind in (KINDS if name in OURS.split() else SEVERAL)
}


def plant(case, run, place):
    """Plant a case in the run directory `run`.

    Args:
        place: `url` of a host that nobody named, `canary`, a folder in which code that
            is run leaves a file, and `secret`, a file of the user's.

    Raises:
        PermissionError: a device, which only a superuser can make.
    """
    kind, name = CASES[case]
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path, {key: str(x) for key, x in place.items()})


# --- who is watched -------------------------------------------------------------------


@contextlib.contextmanager
def listener():
    """Yield the URL of a host that nobody named, and what connected to it."""
    met = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.settimeout(1)
                        with contextlib.suppress(OSError):
                            met.append(connection.recv(200))

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", met


class Commands:
    """A process that runs commands of metaevo in children; see `forked_commands`."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env
        program = Path(__file__).with_name("forked_commands.py")
        self._process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self._process.stdout.readline() == "ready\n"

    def run(self, arguments, cwd, limit=60):
        """Return exit code, seconds, those of CPU, peak in MiB and what was printed."""
        files = {name: str(self.folder / name) for name in ("stdout", "stderr")}
        request = {"arguments": arguments, "cwd": str(cwd), "limit": limit}
        line = json.dumps(request | files | {"env": self.env})
        print(line, file=self._process.stdin, flush=True)
        code, wall, cpu, peak = json.loads(self._process.stdout.readline())
        said = [Path(x).read_bytes().decode("utf-8", "replace") for x in files.values()]
        return code, wall, cpu, peak / 1024, "".join(said)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
