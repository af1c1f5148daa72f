"""The shape of the packages: who imports whom, and what is where."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A folder may import from itself and from these; siblings are checked apart.
MAY_IMPORT = {
    "metaevo": {"metaevo"},
    "inner_loops": {"metaevo"},
    "strategies": {"metaevo"},
    "searches": {"metaevo", "inner_loops", "strategies"},
}
OURS = set(MAY_IMPORT) | {"tests", "benchmarks", "examples", "experiments"}
# Inside metaevo a module may import what stands left of it or above it, and its folder.
ORDER = """
types errors config text keys _jax
slots
fitness population envs
learned
losses critic_losses drifts activations optimizers schedules policies
rl
rewards advantages messages exploration closed_forms formulas spaces
evaluators
portable
storage
export
analysis
engine
cli
__main__
"""
LAYERS = ORDER.split()
# Suites and libraries that few modules may import.
ONLY_IMPORTER = {
    "gymnax": {"metaevo/envs/gymnax.py"},
    "brax": {"metaevo/envs/brax.py"},
    "evosax": {"strategies/_evosax.py"},
    "ray": {"metaevo/evaluators/ray.py", "metaevo/evaluators/ray_hosts.py"},
}


def files(*folders):
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))]


def relative(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


def imports(path):
    """Every imported module, as dotted names, also inside functions and conditions."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


OWN = files(*MAY_IMPORT)
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for p in OWN
}


def module_of(name):
    """The longest part of a dotted name that is a module of ours, or None."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def imported_modules(path):
    """Modules of ours that a file imports."""
    return {found for name in imports(path) if (found := module_of(name))}


# --- imports --------------------------------------------------------------------------


def crossings(place, names):
    """Imported modules that the file at `place`, relative to the root, may not have."""
    folder = place.split("/")[0]
    for name in names:
        top, *rest = name.split(".")
        allowed = ONLY_IMPORTER.get(top)
        if top in OURS and top != folder and top not in MAY_IMPORT[folder]:
            yield name
        elif top == folder != "metaevo" and not (rest and rest[0].startswith("_")):
            # Siblings do not import each other; shared private parts are `_*.py`.
            yield name
        elif allowed is not None and place not in allowed:
            yield name


def test_imports_between_packages_point_one_way():
    wrong = [
        f"{relative(path)} imports {name}"
        for path in OWN
        for name in crossings(relative(path), imports(path))
    ]
    assert wrong == []


def test_an_import_across_packages_is_seen():
    names = ["strategies.snes", "inner_loops.dqn", "brax.envs", "inner_loops._ppo"]
    assert list(crossings("inner_loops/ppo.py", names)) == names[:3]


def layer(module):
    """The place in LAYERS of a module of metaevo."""
    return LAYERS.index(module.split(".")[1])


def upward(name, imported):
    """Modules that a module imports although they stand right of it.

    The package itself gives public names on first use, and stands right of all.
    """
    for other in imported:
        if other == "metaevo" or layer(other) > layer(name):
            yield other


def test_modules_of_metaevo_import_only_what_stands_left_of_them():
    wrong = [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        if name.startswith("metaevo.")
        for other in upward(name, imported_modules(path))
        if not (name.startswith("metaevo.cli") and other == "metaevo")
    ]
    assert not wrong


def test_every_part_of_metaevo_has_a_place_in_the_order():
    parts = {name.split(".")[1] for name in MODULES if name.startswith("metaevo.")}
    assert parts == set(LAYERS)


def test_an_import_against_the_order_is_seen():
    assert list(upward("metaevo.slots", {"metaevo.types", "metaevo.rl.replay"})) == [
        "metaevo.rl.replay"
    ]
    assert list(upward("metaevo.rl.replay", {"metaevo"})) == ["metaevo"]


APART = ("metaevo.rl", "inner_loops", "strategies")


def shared(paths):
    """Imports by which independent agents would share code with the inner loops."""
    for path in paths:
        for name in imports(path):
            if any(f"{name}.".startswith(f"{other}.") for other in APART):
                yield f"{relative(path)} imports {name}"


def test_independent_agents_share_no_code_with_the_inner_loops():
    """Nor do modules of ours that they import."""
    start = files("metaevo/analysis/independent")
    assert {p.stem for p in start} >= {"ppo", "dqn", "judge"}
    waiting, seen = list(start), set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            found = imported_modules(path) - {"metaevo"}
            waiting += [MODULES[name] for name in found]
    assert not list(shared(seen))
    assert list(shared([ROOT / "inner_loops/ppo.py"]))


def circle(graph):
    """Modules that import each other in a ring, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        found = next(filter(None, map(visit, sorted(graph[name]))), None)
        path.pop()
        done.add(name)
        return found

    return next(filter(None, map(visit, sorted(graph))), None)


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    # Public names of the package are imported on first use, from everywhere.
    graph["metaevo"] = set()
    found = circle(graph)
    assert found is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_the_examples_of_use_elsewhere_share_no_code_with_us():
    runs_a_search = {"ray_hosts.py", "sb3_trainer.py"}
    for path in (ROOT / "examples").glob("*.py"):
        if path.name in runs_a_search:
            continue
        ours = {n for n in imports(path) if n.split(".")[0] in OURS}
        assert ours <= {"metaevo"}, path


def of_experiments(path, names):
    """Imported modules of experiments, but for those in the file's own folder."""
    own = ".".join(path.relative_to(ROOT).parts[:2])
    for name in names:
        if f"{name}.".startswith("experiments.") and not name.startswith(f"{own}."):
            yield name


def test_nothing_imports_an_experiment():
    """An experiment is frozen: nobody can rely on it, another experiment included."""
    folders = "tests", "benchmarks", "examples", "scripts", "experiments", ".github"
    wrong = [
        f"{relative(path)} imports {name}"
        for path in files(*MAY_IMPORT, *folders)
        for name in of_experiments(path, imports(path))
    ]
    assert not wrong


def test_an_import_of_an_experiment_is_seen():
    names = ["experiments.pb2.run", "experiments.drifts", "benchmarks.measure"]
    assert list(of_experiments(ROOT / "tests/unit/test_pbt.py", names)) == names[:2]
    assert list(of_experiments(ROOT / "experiments/pb2/run.py", names)) == names[1:2]


# --- sizes ----------------------------------------------------------------------------


def test_the_root_of_metaevo_is_small():
    entries = [p for p in (ROOT / "metaevo").iterdir() if p.name != "__pycache__"]
    # The zoo, the presets and the kept rivals have files of data, no modules.
    data = ("zoo", "presets", "rivals")
    assert sum(p.is_dir() for p in entries if p.name not in data) <= 10
    for name in data:
        assert not [*(ROOT / "metaevo" / name).rglob("*.py")]
    # Neither the package itself nor the entry of `python -m metaevo` is a module.
    made = ast.FunctionDef | ast.ClassDef | ast.Assign
    entry = tree(ROOT / "metaevo" / "__main__.py")
    assert not any(isinstance(node, made) for node in ast.walk(entry))
    names = {p.name for p in entries if p.suffix == ".py"}
    assert len(names - {"__init__.py", "__main__.py"}) <= 23


def test_a_search_is_at_most_sixty_lines():
    """It is read at a glance, and copied. Elsewhere one idea is one file."""
    searches = (ROOT / "searches").glob("[a-z]*.py")
    lines = {path.stem: len(path.read_text().splitlines()) for path in searches}
    assert {name: number for name, number in lines.items() if number > 60} == {}


# --- files of text --------------------------------------------------------------------

READS_OR_WRITES = {"open", "read_text", "write_text"}


def unnamed_encodings(text):
    """Return the lines that read or write text without naming its encoding."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        words = {word.arg: word.value for word in node.keywords}
        mode = node.args[1] if len(node.args) > 1 else words.get("mode")
        binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
        os_open = ast.unparse(node.func) in ("os.open", "Image.open")
        as_text = isinstance(words.get("text"), ast.Constant)
        if "encoding" not in words and (
            as_text or (name in READS_OR_WRITES and not binary and not os_open)
        ):
            yield node.lineno


def test_text_is_written_and_read_in_a_named_encoding():
    found = {
        relative(path): list(unnamed_encodings(path.read_text(encoding="utf-8")))
        for path in OWN
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_an_unnamed_encoding_is_seen():
    calls = {
        "open(p)": True,
        "open(p, 'rb')": False,
        "path.read_text()": True,
        "path.write_text(x, encoding='utf-8')": False,
        "subprocess.run(c, text=True)": True,
        "os.open(p, 1)": False,
    }
    assert {call: bool([*unnamed_encodings(call)]) for call in calls} == calls
