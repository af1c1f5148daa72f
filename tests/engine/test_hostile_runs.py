"""Run directories of strangers: nothing is executed, followed or shown as a traceback.

Each case alters one thing in a copy of a finished run, and all commands are then used
on it, in a folder that holds payloads where imports would find them.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import sys
import unicodedata

import matplotlib.font_manager  # noqa: F401 - it makes a folder of the user's at first
import planted
import pytest
import wandb_server
from planted import EXIT_CODES, FORGED, SECRET, UNSEEN, nested
from runs import sign

import metaevo
from metaevo.analysis import holdout, results
from metaevo.cli import main, runs, verify
from metaevo.engine import compare, finish
from metaevo.engine.loggers import wandb_push
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import (
    artifacts,
    checkpoint,
    history,
    jsonl,
    numpy_reference,
    own_runs,
    run_directory,
)
from metaevo.storage.own_runs import Source

COMMANDS = ("report", "resume", "play", "compare", "distill", "verify", "wandb-push")
COMMANDS += ("trials", "scores")

SEARCH = """
import optax
import toys
import metaevo
from metaevo import envs, fitness
from strategies.open_es import open_es

def search(env: str = "", population_size: int = 4, num_generations: int = 2):
    if env:
        envs.make(env)
    strategy = open_es(toys.space(), population_size, 0.5, optax.adam(0.1))
    return toys.search(strategy, num_generations=num_generations, chunk_size=2)

if __name__ == "__main__":
    metaevo.main(search)
"""
PAYLOAD = """
from pathlib import Path
(Path({canary!r}) / __name__).touch()
def search(env: str = "", population_size: int = 4, num_generations: int = 2): ...
def go(): ...
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An installation with a search, and a finished run of it."""
    root = tmp_path_factory.mktemp("made")
    file = root / "installed" / "searches" / "tiny.py"
    file.parent.mkdir(parents=True)
    file.write_text(SEARCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        directory = root / "run"
        manifest = {"identity": {"search": "tiny"}}
        run = runs.Run(directory, manifest, Source(file), (), True)
        with runs.importing(run):
            search = runs.function(run)
        arguments = [f"run.directory={directory}", "run.held_out_seeds=2"]
        arguments += ["run.wandb=disabled", "run.devices=1"]
        with pytest.raises(SystemExit) as exit:
            metaevo.main(search, arguments)
        assert exit.value.code == 0
    return root


class Place:
    """A folder with a downloaded run, and what surrounds it.

    Attributes:
        run: the run directory, `downloads/evil`; `downloads` is the working folder.
        home: files of the user.
        canary: a folder in which every payload that is executed leaves a file.
    """

    def __init__(self, root, made):
        self.run, self.home = root / "downloads" / "evil", root / "home"
        self.canary, self.cache = root / "canary", root / "cache"
        for folder in (self.home, self.canary, self.cache):
            folder.mkdir()
        for name in ("strategy.csv", "index.html", "manifest.json", "metrics.jsonl"):
            (self.home / name).write_text(SECRET)
        payload = PAYLOAD.format(canary=str(self.canary))
        shutil.copytree(made / "run", self.run)
        beside = self.run.parent
        for folder in (beside, self.run):
            modules = ("searches/evil", "searches/tiny", "strategies/evil")
            for name in ("payload", "toys", *modules):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / f"{name}.py").write_text(payload)
        (self.run / "__init__.py").write_text(payload)


@pytest.fixture(scope="module")
def server():
    """The server that this user named; runs are really sent there."""
    import wandb

    with wandb_server.serve() as server:
        wandb.teardown()
        yield server
        wandb.teardown()


@pytest.fixture
def new_place(made, tmp_path, monkeypatch, server):
    """Make a place of its own, and work in it."""
    numbers = itertools.count()

    def make():
        root = tmp_path / str(next(numbers))
        root.mkdir()
        place = Place(root, made)
        monkeypatch.chdir(place.run.parent)
        monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
        monkeypatch.setenv("HOME", str(place.home))
        return place

    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setattr(runs, "INSTALLED", made / "installed")
    monkeypatch.setattr(compare, "compare", compared)
    monkeypatch.setattr(finish, "finish", lambda *args: None)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    return make


@pytest.fixture
def place(new_place):
    return new_place()


def compared(groups, make, *rest, **options):
    for group in groups.values():
        for run in group:
            make(run, ())
    return []


# --- what is watched ------------------------------------------------------------------

WATCHED: list[tuple[str, ...]] = []
OPENED: list[str] = []


def _audit(event, args):
    if WATCHED and event == "open" and isinstance(args[0], str | bytes):
        path = os.path.realpath(os.fsdecode(args[0]))
        if path.startswith(WATCHED[0]) and not os.path.isdir(path):
            OPENED.append(path)


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(place):
    """Collect the files of the user, and payloads, that are opened."""
    OPENED.clear()
    payloads = map(str, place.run.parent.rglob("*.py"))
    WATCHED.append((str(place.home), *payloads))
    try:
        yield OPENED
    finally:
        WATCHED.clear()


def outside(place):
    """All files that are not the run's, with their contents."""
    root = place.run.parents[1]
    return {
        str(p): p.read_bytes() if p.is_file() else None
        for p in sorted(root.rglob("*"))
        if place.run not in (p, *p.parents) and place.cache not in (p, *p.parents)
    }


def command(name, *arguments):
    """The exit code of a command, which ends with one and no other exception."""
    sys.argv = ["metaevo", name, *map(str, arguments)]
    with pytest.raises(SystemExit) as exit:
        main.command()
    return exit.value.code


# --- what a stranger may alter --------------------------------------------------------


def altered(name, *keys, **fields):
    """Other fields in an object of a JSON file, found by keys; all is signed again."""

    def alter(place):
        path = place.run / name
        data = json.loads(path.read_text())
        functools.reduce(lambda x, key: x[key], keys, data).update(fields)
        path.write_text(json.dumps(data))
        sign(place.run)

    return alter


manifest = functools.partial(altered, "manifest.json")
identity = functools.partial(altered, "manifest.json", "identity")
slots = functools.partial(altered, "solution/manifest.json", "slots", "lr")


def facts(folder, **fields):
    return altered(f"{folder}/manifest.json", **fields)


def changes(*lines):
    return manifest(changes=list(lines))


def content(name, data):
    def alter(place):
        (place.run / name).parent.mkdir(exist_ok=True)
        (place.run / name).write_bytes(data)

    return alter


def plant(kind, name, secret="strategy.csv"):
    """A file of `planted.KINDS` in place of what is there; a link is to the user's."""

    def alter(place):
        path = place.run / name
        path.parent.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        planted.KINDS[kind](path, {"secret": place.home / secret})

    return alter


def metric(name, value=1.0):
    """A further metric in every record of the log."""

    def alter(place):
        path = place.run / "metrics.jsonl"
        records = [json.loads(x) | {name: value} for x in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(x) + "\n" for x in records))
        sign(place.run, log=True)

    return alter


CHECKPOINT = "checkpoints/generation-00000002"
NAN = float("nan")
DEEP = b'{"identity":' + b"[" * 100_000

FILES = ("manifest.json", "metrics.jsonl", "history.jsonl", ".lock", "wandb.json")
FILES += ("report/index.html", "report/fitness.png", "report/strategy.csv")
FILES += ("solution/arrays.safetensors",)
FOLDERS = ("checkpoints", "solution", "report", "agents", "agents/solution")

HOSTILE = {
    "imports": {
        "strategy": changes("strategy=evil"),
        "environment in the run": changes("env=evil.payload:go"),
        "environment beside the run": changes("env=payload:go"),
        "environment of the library": changes("env=os:getcwd"),
        "environment in a list": changes("env=[payload:go]"),
        "environment with a quote": changes('env="payload:go"'),
        "environment in brackets": changes("[env]=payload:go"),
        "search beside the run": identity(search="evil"),
        "search shadowed beside the run": identity(search="tiny"),
        "search with dots": identity(search="..evil.searches.evil"),
        "search with a slash": identity(search="../../downloads/searches/evil"),
        "search by path": identity(search="/etc/passwd"),
        "search of a private name": identity(search="_private"),
        "search without a name": identity(search=""),
        "search of a package": identity(search="evil.payload"),
    },
    "settings": {
        "variable of the environment": changes("env=${oc.env:MY_KEY}"),
        "variable, escaped": changes('env="\\x24{oc.env:MY_KEY}"'),
        "variable in a number": changes("population_size=${oc.env:MY_KEY}"),
        "variable in a key": changes("${oc.env:MY_KEY}=3"),
        "address of a cluster": changes("run.evaluator=ray", "run.ray_address=evil:1"),
        "online": changes("run.wandb=online"),
        "another directory": changes("run.directory=../../home/new"),
        "another directory in brackets": changes("run[directory]=../../home/new"),
        "start from a file of the user": changes("run.start_from=../../home"),
        "unknown key": changes("no_such_key=1"),
        "no key": changes("", "=", "--help"),
        "absurd number": changes("population_size=-1"),
        "changes of numbers": changes(1, None, {}),
        "changes as text": manifest(changes="env=payload:go"),
    },
    "types": {
        "seed of text": identity(seed="0"),
        "seed too large": identity(seed=1 << 70),
        "seed that is not a number": identity(seed=NAN),
        "settings as a list": identity(settings=[]),
        "chunk size that is not a number": manifest(chunk_size=NAN),
        "chunk size of text": manifest(chunk_size="$(touch x)"),
        "negative chunk size": manifest(chunk_size=-1),
        "seeds in one vmap as text": manifest(seeds_at_once="2"),
        "versions as a list": manifest(versions=[1]),
        "schema of text": manifest(schema="2"),
        "device of lists": manifest(device=[[]], git={}, python=[]),
        "sources of lists": manifest(sources={"a": []}),
        "run as text": manifest(run="x"),
    },
    "JSON": {
        "deep manifest": content("manifest.json", DEEP),
        "manifest nested under the limit": identity(
            settings={"a": json.loads("[" * 500 + "]" * 500)}
        ),
        "cut manifest": content("manifest.json", b'{"identity": {"search"'),
        "manifest of bytes": content("manifest.json", b"\xff\xfe\x00"),
        "empty manifest": content("manifest.json", b""),
        "huge manifest": content("manifest.json", b"[" + b"1," * (9 << 20) + b"1]"),
        "manifest of an application": content("manifest.json", b'{"name": "my app"}'),
        "log of bytes": content("metrics.jsonl", b"\xff\xfe\x00\n"),
        "log of lists": content("metrics.jsonl", b"[]\n[]\n"),
        "deep log": content("metrics.jsonl", b"[" * 100_000 + b"\n"),
        "empty log": content("metrics.jsonl", b""),
        "history of lists": content("history.jsonl", b"[]\n"),
        "history of wrong times": content("history.jsonl", b'{"time": 1e300}\n'),
        "history with parts outside": content(
            "history.jsonl", b'{"time": 1, "event": "x", "parts": ["../../home", 3]}\n'
        ),
        "wandb.json of bytes": content("wandb.json", b"\xff"),
        "scores of text": content("agents/scores.json", b'{"evaluations": {"a": "x"}}'),
        "scores of lists": content("agents/scores.json", b"[]"),
        "verdict of lists": content("closed_form/verdict.json", b"[]"),
    },
    "metrics": {
        "metric with a command": metric("$(touch PWNED)"),
        "metric with half a formula": metric(r"$\frac{$"),
        "metric with a script": metric("<script>alert(1)</script>"),
        "metric with an absolute path": metric("/etc/passwd"),
        "metric with a path": metric("../../../home/x"),
        "metric of text": metric("update_norm", "text"),
        "metric of a dict": metric("update_norm", {}),
        "infinite metric": metric("update_norm", 1e308),
        "metric of digits": metric("update_norm", 10**400),
        "failed of lists": metric("failed", [1, 2]),
        "infinite failures": metric("failed", float("inf")),
        "fitness of lists": metric("fitness_best", []),
        "population of text": metric("population", "x"),
        "parents that are none": metric("parents", [99, -7, 0, 0]),
        "parents of text": metric("parents", "abcd"),
    },
    "arrays": {
        "checkpoint of text": facts(CHECKPOINT, generation="two"),
        "checkpoint that is not a number": facts(CHECKPOINT, log_bytes=NAN),
        "checkpoint before the first": facts(CHECKPOINT, generation=-1),
        "checkpoint of a huge log": facts(CHECKPOINT, log_bytes=1 << 62),
        "checkpoint of other arrays": facts(CHECKPOINT, arrays={}),
        "checkpoint beside": plant("folder", "checkpoints/generation-00000009.bak"),
        "checkpoint without files": plant("folder", "checkpoints/generation-00000009"),
        "checkpoint of an odd name": plant("folder", "checkpoints/generation-9e9"),
        "held-out names outside": facts("held_out", names=["../../home"]),
        "held-out names of numbers": facts("held_out", names=3),
        "held-out frames of text": facts("held_out", frames_per_segment=["x"]),
        "held-out measure of a formula": facts("held_out", measure=r"$\frac{$"),
        "held-out measure of lists": facts("held_out", measure=[]),
        "held-out noise of text": facts("held_out", noise="x"),
        "held-out noise of seeds alone": facts("held_out", noise={"num_seeds": 2}),
        "agents of nothing": facts("agents/solution", arrays={}),
        "slot that is a module": slots(op="os.system"),
        "slot of text": slots(value="x"),
        "solution without slots": facts("solution", slots={}),
        "slots as a list": facts("solution", slots=[]),
        "slot with a path": facts("solution", slots={"../x": {"op": "number"}}),
        "reference of lists": facts("solution", reference=[1]),
        "reference of nothing": facts("solution", reference={"lr": {"value": []}}),
        "solution altered": content("solution/arrays.safetensors", b"x"),
    },
    "places": {
        **{f"folder as {name}": plant("folder", name) for name in FILES},
        **{f"file as {name}": plant("empty", name) for name in FOLDERS},
    },
}
LINKED_FOLDERS = f"""
report solution held_out agents agents/solution checkpoints {CHECKPOINT} closed_form
play compare wandb wandb/data tensorboard
"""
LINKED_FILES = """
report/strategy.csv report/index.html solution/notes.txt solution/manifest.json .lock
manifest.json metrics.jsonl history.jsonl wandb.json
"""
PIPES = ("manifest.json", "metrics.jsonl", "history.jsonl", "wandb.json", ".lock")
PIPES += ("solution/arrays.safetensors", "agents/scores.json", "report/index.html")
LONG = "x" * 100_000


REFUSED = {
    **{f"link as {name}": plant("link", name, ".") for name in LINKED_FOLDERS.split()},
    **{f"link as {name}": plant("link", name) for name in LINKED_FILES.split()},
    **{f"pipe as {name}": plant("pipe", name) for name in PIPES},
    "socket": plant("socket", "s"),
    "hard link": plant("hard link", "history.jsonl"),
    "lone surrogate": manifest(git="\ud800x"),
    "long name of a search": identity(search=LONG),
    "long change": changes(f"env={LONG}"),
    "many changes": changes(*["num_generations=2"] * 100_000),
    "settings of wandb": content("wandb/settings", b"[default]\nbase_url=http://x\n"),
}
"""Directories that no command goes on with."""


def history_of(text, part):
    line = json.dumps({"time": 1, "event": text, "parts": [part]})
    return content("history.jsonl", line.encode() + b"\n")


def together(*alterations):
    def alter(place):
        for each in alterations:
            each(place)

    return alter


FORGING = {
    "search": identity(search=f"{FORGED}\nwhole: everything verified"),
    "changes": changes(f"env={FORGED}", FORGED),
    "manifest": together(
        manifest(sources={FORGED: "0" * 64}, versions={"jax": FORGED}),
        manifest(device=FORGED, git=FORGED, python=FORGED),
        identity(settings={FORGED: FORGED, "num_generations": 2}),
    ),
    "results": together(
        metric(FORGED),
        history_of(FORGED, FORGED),
        facts("solution", provenance={"search": FORGED}, evidence={"date": FORGED}),
        facts("held_out", names=[FORGED, "hand-made"]),
    ),
    "slot": slots(op=FORGED),
}
LONG_NAMES = {
    "results": together(
        metric(LONG),
        history_of(LONG, "solution/" + LONG),
        facts("held_out", names=[LONG, "hand-made"]),
        manifest(sources={LONG: LONG}, versions={"jax": LONG}, device=LONG),
    ),
    "settings": identity(settings={LONG: LONG, "num_generations": 2}),
    "slot": slots(op=LONG),
}

# --- what becomes of it ---------------------------------------------------------------

FILES_READ_BY = {
    "manifest": run_directory.read_manifest,
    "search": lambda run: runs.arguments(runs.opened(run)),
    "history": history.read,
    "generations done": history.generations_done,
    "generations asked": history.generations_asked,
    "log": lambda run: jsonl.read_generations(run / "metrics.jsonl"),
    "checkpoints": lambda run: checkpoint.Store(run / "checkpoints").load(),
    "comparison": lambda run: holdout.load(run / "held_out"),
    "scores": results.read_scores,
    "agents": lambda run: checkpoint.read(run / "agents" / "solution"),
    "push": wandb_push.checked,
    "verify": verify.verify,
    "artifact": metaevo.load,
    "params": artifacts.params,
}
"""Functions that read files of a run. They raise metaevo's errors alone."""


def read_by(names, run):
    """Read a run by some readers, and in numpy; return those that refused it."""
    refused = set()
    for name in names:
        read = FILES_READ_BY[name]
        try:
            read(run)
        except metaevo.errors.MetaevoError:
            refused.add(name)
    with contextlib.suppress(ValueError):
        numpy_reference.load(run)
    return refused


@contextlib.contextmanager
def harmless(place, capsys):
    """Nothing is executed, read or written outside of a run, or copied into it."""
    before = outside(place)
    with watched(place) as opened:
        yield
    assert opened == []
    assert not list(place.canary.iterdir())
    assert outside(place) == before
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
    for path in place.run.rglob("*"):
        # A pipe is no file, and a link may lead to one of the user's.
        ours = path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1
        if ours and path != place.run / "manifest.json":
            assert SECRET.encode() not in path.read_bytes(), path


@contextlib.contextmanager
def named(name):
    """Name the directory in which an assertion failed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in: {name}")
        raise


def command_for(group, name):
    """The command that reads most of what is altered."""
    if name.startswith("checkpoint"):
        return "resume"
    return "compare" if group in ("imports", "settings") else "report"


@pytest.mark.parametrize("group", HOSTILE)
def test_readers_of_a_run_execute_nothing_and_raise_errors_of_metaevo(
    group, new_place, capsys
):
    for name, alter in HOSTILE[group].items():
        place = new_place()
        alter(place)
        with named(name), harmless(place, capsys):
            read_by(FILES_READ_BY, place.run)
            assert command(command_for(group, name), "evil") in EXIT_CODES


ALL_COMMANDS = (
    *(("imports", "environment in the run"), ("settings", "another directory")),
    *(("types", "sources of lists"), ("JSON", "history with parts outside")),
    *(("metrics", "infinite metric"), ("arrays", "checkpoint of a huge log")),
    *(("arrays", "slot of text"), ("places", "folder as report/fitness.png")),
)


@pytest.mark.parametrize(("group", "name"), ALL_COMMANDS)
def test_nothing_is_executed_or_read_outside_and_no_command_ends_in_a_traceback(
    group, name, place, capsys
):
    HOSTILE[group][name](place)
    with harmless(place, capsys):
        for word in COMMANDS:
            assert command(word, "evil") in EXIT_CODES, word
        read_by(FILES_READ_BY, place.run)


def test_half_a_formula_is_no_formula_in_figures(place, capsys, drawn):
    HOSTILE["metrics"]["metric with half a formula"](place)
    HOSTILE["arrays"]["held-out measure of a formula"](place)
    with harmless(place, capsys):
        assert command("report", "evil") in EXIT_CODES


@pytest.mark.parametrize("name", FORGING)
def test_text_of_a_run_steers_neither_terminal_nor_report(name, place, request, capsys):
    if name == "results":
        request.getfixturevalue("drawn")
    FORGING[name](place)
    for word in COMMANDS:
        assert command(word, "evil") in EXIT_CODES, word
        said = "".join(capsys.readouterr())
        page = place.run / "report" / "index.html"
        for text in (said, page.read_text(encoding="utf-8", errors="replace")):
            seen = {c for c in text if unicodedata.category(c) in UNSEEN} - {*"\n\t"}
            assert not seen, (word, seen)
        # A line of ours says whole; the run's own words are quoted in other lines.
        if word != "verify" or "not whole" in said:
            assert "whole: everything verified" not in said.splitlines()


def test_the_question_for_trust_is_not_worded_by_the_run(place, capsys):
    identity(search="x, which is verified and harmless. Ignore this: ")(place)
    for word in ("resume", "play", "rerun"):
        assert command(word, "evil") == 2
        said = capsys.readouterr().err
        assert "trust=true, which imports 'x, which is verified" in said


def test_special_files_and_odd_text_are_refused_before_anything_is_read(
    new_place, capsys
):
    """A pipe is never waited for; every command begins with `read_manifest`."""
    for name, alter in REFUSED.items():
        place = new_place()
        alter(place)
        inside = sorted(place.run.rglob("*"))
        with named(name), harmless(place, capsys):
            with pytest.raises(CheckpointError) as refusal:
                run_directory.read_manifest(place.run)
            assert len(str(refusal.value)) < 2000
            names = ("manifest", "search", "push", "generations asked")
            assert read_by(names, place.run) == {*names}
            read_by(("verify", "artifact", "params"), place.run)
        assert sorted(place.run.rglob("*")) == inside, name


@pytest.mark.parametrize(
    "name", ["link as wandb/data", "pipe as wandb.json", "hard link", "many changes"]
)
def test_every_command_refuses_a_special_file_and_odd_text(name, place, capsys):
    (place.run / "wandb").mkdir(exist_ok=True)
    REFUSED[name](place)
    inside = sorted(place.run.rglob("*"))
    with harmless(place, capsys):
        for word in COMMANDS:
            assert command(word, "evil") == 4, word
            said = "".join(capsys.readouterr())
            assert SECRET not in said
            assert len(said) < 2000
    assert sorted(place.run.rglob("*")) == inside


def test_deeply_nested_folders_in_a_run_directory_are_refused(place, capsys):
    with nested(place.run / "report" / "deep", 1200):
        for word in COMMANDS:
            assert command(word, "evil") == 4, word
        assert "nested more than 32 deep" in capsys.readouterr().err


@pytest.mark.parametrize("name", LONG_NAMES)
def test_long_names_end_no_command_in_a_traceback(name, place, request, capsys):
    if name == "results":
        request.getfixturevalue("drawn")
    LONG_NAMES[name](place)
    for word in ("verify", *COMMANDS):  # the others may mend it
        assert command(word, "evil") in EXIT_CODES, word
        assert len(capsys.readouterr().err) < 10_000


# --- what is one's own ----------------------------------------------------------------


def test_run_of_a_stranger_with_an_installed_search_can_be_used(place):
    with watched(place) as opened:
        for word in ("report", "resume", "compare", "verify", "wandb-push"):
            assert command(word, "evil") == 0, word
    assert opened == []


def test_trust_imports_what_the_manifest_names_but_nothing_below_the_run(
    place, made, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(made / "installed")
    (place.run.parent / "searches" / "tiny.py").unlink()
    changes("env=payload:go")(place)
    assert command("compare", "evil") == 2
    error = capsys.readouterr().err
    assert "payload:go" in error
    assert "trust=true" in error
    assert command("compare", "evil", "trust=true") == 2  # it returns no Env
    assert [p.name for p in place.canary.iterdir()] == ["payload"]
    changes("env=evil.payload:go")(place)
    capsys.readouterr()
    for word in ("compare", "resume"):
        assert command(word, "evil", "trust=true") == 2
        assert "from which nothing is imported" in capsys.readouterr().err
    assert [p.name for p in place.canary.iterdir()] == ["payload"]


@pytest.mark.parametrize("start", ["../../home", "/etc", 3])
def test_rerun_reads_no_folder_that_a_stranger_names(place, capsys, start):
    run = json.loads((place.run / "manifest.json").read_text())["run"]
    manifest(run=run | {"start_from": start})(place)
    with watched(place) as opened:
        assert command("rerun", "evil", "generation=0", "member=0") == 2
    assert opened == []
    assert "run.start_from=" in capsys.readouterr().err


def test_own_run_is_found_again_by_its_record(made, place, monkeypatch):
    """By the file and the arguments that the user gave, not those of the manifest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(made / "cache"))
    found = runs.opened(made / "run")
    assert found.trusted
    assert found.source.file == made / "installed" / "searches" / "tiny.py"
    assert "run.devices=1" in found.changes
    link = place.home / "link"
    link.symlink_to(made / "run")
    assert runs.opened(link).trusted
    # The same run at another place, and another run at the same place.
    assert not runs.opened(place.run).trusted
    manifest = run_directory.read_manifest(made / "run")
    manifest["identity"]["seed"] = 5
    assert own_runs.recall(made / "run", manifest) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
    assert not runs.opened(made / "run").trusted


def test_search_that_is_not_installed_needs_trust(place):
    identity(search="evil")(place)
    with pytest.raises(ConfigError, match=r"trust=true, which imports searches\.evil"):
        runs.opened(place.run)
    assert runs.opened(place.run, trust=True).source.file.name == "evil.py"


def test_settings_of_a_stranger_are_those_of_the_search_alone(place):
    changes("population_size=4", "run.wandb=online", "run.seed=3")(place)
    given = runs.arguments(runs.opened(place.run))
    assert given == ["run.seed=0", f"run.directory={place.run}"]
    changes("num_generations=3", "run.wandb=online")(place)
    given = runs.arguments(runs.opened(place.run))
    assert given[0] == "num_generations=3"
    assert len(given) == 3
    given = runs.arguments(runs.opened(place.run, trust=True))
    assert "run.wandb=online" in given
    # Another spelling does not get past the check.
    changes("run[wandb]=online")(place)
    with pytest.raises(ConfigError, match=r"unknown key 'run\[wandb\]'"):
        runs.arguments(runs.opened(place.run))
