"""A learned function of one's own in a file beside the search, as a newcomer writes it.

Nothing is packaged or declared. `tests/system/test_installed.py` follows the page on it
to the letter, with the wheel.
"""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import pytest
import toys
from runs import undrawn

import metaevo
from metaevo import losses, slots, spaces
from metaevo.cli import main, program
from metaevo.engine import elements
from metaevo.errors import ArtifactError, ConfigError, NotImportedError
from metaevo.export import files
from metaevo.learned import operations
from metaevo.learned.functions import Learned
from metaevo.portable import jax_operations, numpy_operations
from metaevo.storage import artifacts, own_runs

ROOT = Path(__file__).parents[2]
LOSS = '''
"""A loss of the temporal difference that is lower where values are."""

import jax
import jax.numpy as jnp

from metaevo import losses
from metaevo.learned.functions import Learned
from metaevo.learned.operations import operation


@operation("tilted", slot="td_loss", hand_made=losses.td_square)
def tilted(scale: float = 1.0) -> Learned:
    def apply(params, td_error, q, target, context=None):
        usual = losses.td_square(td_error, q, target)
        return usual + params["x"] * scale * jax.nn.relu(q)

    return Learned(lambda key: {"x": jnp.zeros(())}, apply, starts_hand_made=True)
'''
SEARCH = '''"""Evolve how far a loss pulls values down."""

import optax
import toys

import metaevo
from metaevo import fitness, spaces
from my_losses import tilted
from strategies.open_es import open_es


def search(num_generations: int = 1) -> metaevo.Search:
    space = spaces.replace(td_loss=tilted(scale=0.5))
    return metaevo.Search(
        toys.values(2), space, open_es(space, 2, 0.3, optax.adam(0.1)),
        num_generations, fitness.final_return,
    )
'''
PARAMS = {"td_loss": {"x": np.float32(0.7)}}
Q = np.float32([-1.0, 0.0, 0.0, 2.0])
TARGET = np.float32([0.5, 0.0, 1.0, -3.0])


def expected(q, target, x=0.7, scale=0.5):
    return 0.5 * (target - q) ** 2 + x * scale * np.maximum(q, 0)


def slope(q, target, x=0.7, scale=0.5):
    """In q, the temporal difference being target - q; relu's is 0 at 0."""
    return q - target + x * scale * (q > 0)


def of_q(loss, q, target):
    return loss(target - q, q, target)


def forget():
    """As in a new process, which has imported nothing of the user's."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("my_losses", "tilted_toy", "parts", "needed"):
            del sys.modules[name]
    sys.modules.pop("searches.tilted_toy", None)
    operations._OWN.clear()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a search and, beside it, a file with a learned function."""
    (tmp_path / "searches").mkdir()
    (tmp_path / "my_losses.py").write_text(LOSS)
    (tmp_path / "searches" / "tilted_toy.py").write_text(SEARCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def saved(home, monkeypatch):
    """An artifact of the function, in a process that has not imported it."""
    with monkeypatch.context() as there:
        there.syspath_prepend(home)
        tilted = importlib.import_module("my_losses").tilted
        spec = {"td_loss": dict(tilted(scale=0.5).spec)}
        artifacts.check(PARAMS, spec)
        artifacts.save(home / "solution", PARAMS, spec, {}, {})
        np.testing.assert_allclose(
            of_q(metaevo.load(home / "solution").td_loss, Q, TARGET),
            expected(Q, TARGET),
        )
    forget()
    return home / "solution"


def is_imported():
    return "my_losses" in sys.modules


# --- in the folder where it was made --------------------------------------------------


@pytest.fixture
def command(home, monkeypatch):
    """The program `metaevo`, which has not the current folder on its path, as by `-P`.

    As if each command ran in a process of its own.
    """
    undrawn(monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [*sys.modules]:
        if name.partition(".")[0] == "searches":
            monkeypatch.delitem(sys.modules, name)

    def command(*arguments):
        forget()
        with pytest.raises(SystemExit) as end:
            sys.exit(program.guard(lambda: main._dispatch(arguments)))
        assert not end.value.code

    yield command
    for name in [*sys.modules]:
        if name.partition(".")[0] == "searches":
            del sys.modules[name]


def exported(path):
    """Return what a written file computes."""
    module: dict = {}
    exec(path.read_text(), module)
    return module["td_loss"](Q, TARGET)


def test_a_search_with_a_function_beside_it_runs_resumes_and_is_exported(home, command):
    options = ("run.directory=runs/a", "run.held_out_seeds=0", "run.wandb=disabled")
    command("run", "tilted_toy", "run.devices=1", *options)
    command("resume", "runs/a", "num_generations=2")
    sources = json.loads((home / "runs/a/manifest.json").read_text())["sources"]
    assert f"{home.name}/my_losses.py" in sources
    command("export", "runs/a", "to=numpy", "out=here.py")
    # A colleague has the run's folder alone.
    (home / "my_losses.py").unlink()
    command("export", "runs/a", "to=numpy", "out=there.py")
    x = np.asarray(artifacts.params(home / "runs/a")["td_loss"]["x"])
    for name in ("here.py", "there.py"):
        found = exported(home / name)
        np.testing.assert_allclose(found, expected(Q, TARGET, x), rtol=1e-6)


def test_ones_own_run_is_loaded_by_its_source_from_any_folder(saved, monkeypatch):
    home = saved.parent
    run = home / "runs" / "a"
    run.mkdir(parents=True)
    saved.rename(run / "solution")
    manifest = {"identity": {"search": "tilted_toy", "settings": {}}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.chdir("/")
    loss = metaevo.load(run).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET))
    assert not is_imported()
    source = own_runs.Source(home / "searches/tilted_toy.py", "searches.tilted_toy")
    own_runs.remember(run, manifest, source, [])
    loss = metaevo.load(run).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET))
    assert is_imported()


def save_as_ones_own(home, name="my_losses"):
    """Save an artifact of the function of a module, in a run that this user started."""
    run = home / "runs" / "a"
    run.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as there:
        there.syspath_prepend(home)
        tilted = importlib.import_module(name).tilted
        spec = {"td_loss": dict(tilted(scale=0.5).spec)}
        artifacts.save(run / "solution", PARAMS, spec, {}, {})
    forget()
    manifest = {"identity": {"search": "tilted_toy", "settings": {}}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    source = own_runs.Source(home / "searches/tilted_toy.py", "searches.tilted_toy")
    own_runs.remember(run, manifest, source, [])
    return run


def test_what_it_imports_is_not_found_in_a_run_that_one_works_in(
    home, command, monkeypatch, capsys
):
    """By the program `metaevo` and by `python -m metaevo`."""
    imports = f"import sys, tabnanny\nsys.stderr.write(tabnanny.__file__)\n{LOSS}"
    (home / "my_losses.py").write_text(imports)
    run = save_as_ones_own(home)
    sys.modules.pop("tabnanny")
    (run / "tabnanny.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(run)
    capsys.readouterr()
    arguments = ("export", ".", "to=numpy")
    command(*arguments, "out=../program.py")
    said = [capsys.readouterr().err]
    done = subprocess.run(
        [sys.executable, "-m", "metaevo", *arguments, "out=../module.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    said.append(done.stderr)
    for text, name in zip(said, ("program.py", "module.py"), strict=True):
        assert str(Path(sysconfig.get_path("stdlib"), "tabnanny.py")) in text
        found = exported(home / "runs" / name)
        np.testing.assert_allclose(found, expected(Q, TARGET), rtol=1e-6)


@pytest.mark.parametrize("trust", [False, True])
def test_a_module_in_folders_that_are_no_packages_is_imported(home, monkeypatch, trust):
    (home / "parts" / "of").mkdir(parents=True)
    (home / "my_losses.py").rename(home / "parts" / "of" / "losses.py")
    run = save_as_ones_own(home, "parts.of.losses")
    loss = metaevo.load(run, trust=trust).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET))
    assert "parts.of.losses" in sys.modules


@pytest.mark.parametrize("trust", [False, True])
def test_a_source_that_cannot_be_imported_is_replaced_by_the_program(home, trust):
    (home / "needed.py").write_text("")
    (home / "my_losses.py").write_text(f"import needed\n{LOSS}")
    run = save_as_ones_own(home)
    (home / "needed.py").rename(run / "needed.py")
    with pytest.MonkeyPatch.context() as there:
        there.chdir(run)
        loss = metaevo.load(".", trust=trust).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)
    assert not is_imported()


# --- elsewhere ------------------------------------------------------------------------


def test_elsewhere_it_runs_by_its_stored_program(saved):
    artifact = metaevo.load(saved)
    loss = artifact.td_loss
    assert not is_imported()
    assert "td_loss: my_losses.tilted" in str(artifact)
    for shape in ((4,), (2, 2), (4, 1)):
        q, target = Q.reshape(shape), TARGET.reshape(shape)
        found = jax.jit(lambda q, target: of_q(loss, q, target))(q, target)
        np.testing.assert_allclose(found, expected(q, target), rtol=1e-6)
        assert found.dtype == np.float32
    np.testing.assert_allclose(of_q(loss, 2.0, -3.0), expected(2.0, -3.0), rtol=1e-6)
    each = jax.vmap(jax.grad(lambda q, target: of_q(loss, q, target)))
    np.testing.assert_allclose(each(Q, TARGET), slope(Q, TARGET), rtol=1e-6)
    second = jax.grad(lambda q: each(q, TARGET).sum())(Q)
    np.testing.assert_allclose(second, np.ones(4))
    forward = jax.jvp(lambda q: of_q(loss, q, TARGET), (Q,), (np.ones_like(Q),))[1]
    np.testing.assert_allclose(forward, slope(Q, TARGET), rtol=1e-6)


def test_an_agent_learns_with_the_stored_program_as_with_the_source(saved):
    loop = toys.values()

    def trained(loss):
        meta = slots.checked(loop.meta._replace(td_loss=loss))
        state = loop.init(jax.random.key(0), meta)
        train = jax.jit(lambda state: loop.train(jax.random.key(1), meta, state)[0])
        return train(train(state)).agent

    stored = trained(metaevo.load(saved).td_loss)
    assert not is_imported()
    source = trained(metaevo.load(saved, trust=True).td_loss)
    assert is_imported()
    np.testing.assert_allclose(stored, source, rtol=1e-5, atol=1e-6)
    assert np.abs(stored - trained(losses.td_square)).max() > 1e-2


def test_it_is_a_start_of_a_search_and_is_saved_and_exported_again(saved, tmp_path):
    space, params = artifacts.as_space(saved)
    again = tmp_path / "again"
    artifacts.check(params, space.spec)
    artifacts.save(again, params, space.spec, {}, {})
    loss = metaevo.load(again).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)
    written = files.write(again, "numpy", tmp_path / "loss.py")
    np.testing.assert_allclose(exported(written), expected(Q, TARGET), rtol=1e-6)
    assert not is_imported()


def test_with_trust_its_source_is_imported_if_it_is_the_same(saved):
    metaevo.load(saved, trust=True)
    assert is_imported()
    forget()
    changed = LOSS.replace("* scale *", "* 100 *")
    (saved.parent / "my_losses.py").write_text(f"{changed}\nraise SystemExit('ran')\n")
    loss = metaevo.load(saved, trust=True).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)
    assert not is_imported()


def test_a_function_that_was_changed_since_is_not_used_in_its_place(saved, monkeypatch):
    changed = LOSS.replace("* scale *", "* 100 *")
    (saved.parent / "my_losses.py").write_text(changed)
    monkeypatch.syspath_prepend(saved.parent)
    importlib.import_module("my_losses")
    loss = metaevo.load(saved).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)


def test_nothing_is_imported_from_the_artifacts_own_folder(saved, monkeypatch):
    (saved.parent / "my_losses.py").rename(saved / "my_losses.py")
    monkeypatch.chdir(saved)
    loss = metaevo.load(".", trust=True).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)
    assert not is_imported()


def test_jax_and_numpy_carry_out_the_same_operations():
    assert jax_operations.OPERATIONS.keys() == numpy_operations.OPERATIONS.keys()


# --- what is refused ------------------------------------------------------------------

NO_PROGRAM = LOSS.replace("jax.nn.relu(q)", "jnp.sort(q)")


def test_without_a_program_it_is_refused_with_the_remedy(home, monkeypatch):
    (home / "my_losses.py").write_text(NO_PROGRAM)
    with monkeypatch.context() as there:
        there.syspath_prepend(home)
        tilted = importlib.import_module("my_losses").tilted
        artifacts.save(home / "a", PARAMS, {"td_loss": tilted().spec}, {}, {})
    forget()
    with pytest.raises(NotImportedError) as error:
        metaevo.load(home / "a")
    text = str(error.value)
    assert error.value.exit_code == 4
    assert "\n" not in text
    assert "my_losses:tilted" in text
    assert "import my_losses first, or load with trust=True" in text
    assert not is_imported()
    assert metaevo.load(home / "a", trust=True).td_loss(Q, Q, Q).shape == (4,)


def edited(path, **changes):
    """Change the entry under `sources`; the digest is again that of the manifest."""
    from metaevo.storage import verified

    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sources"]["td_loss"] |= changes
    manifest["digest"] = verified.digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


MALFORMED = (
    {"slot": "os"},
    {"title": "\x1b[2J"},
    {"title": ""},
    {"function": "my_losses:tilted()"},
    {"function": "../my_losses:tilted"},
    {"function": 3},
    {"sha256": "0"},
    {"sha256": None},
    {"reads": [1]},
    {"reads": ["a b"]},
    {"reads": ["lambda"]},
    {"reads": ["a.b"]},
    {"reads": None},
    {"more": 1},
)


def test_an_entry_of_a_stranger_that_is_malformed_is_one_line(saved):
    whole = (saved / "manifest.json").read_text()
    for changes in MALFORMED:
        (saved / "manifest.json").write_text(whole)
        edited(saved, **changes)
        for trust in (False, True):
            with pytest.raises(ArtifactError, match="sources") as error:
                pytest.fail(f"{changes}: {metaevo.load(saved, trust=trust)}")
            assert "\n" not in str(error.value)
            assert "\x1b" not in str(error.value)
    assert not is_imported()


def test_another_module_is_not_imported_in_its_place(saved):
    modules = ("sys:exit", "antigravity:tilted", "no.such:tilted", "losses:tilted")
    for function in modules:
        edited(saved, function=function)
        loss = metaevo.load(saved, trust=True).td_loss
        found = of_q(loss, Q, TARGET)
        np.testing.assert_allclose(found, expected(Q, TARGET), rtol=1e-6)
    assert "antigravity" not in sys.modules


def test_a_program_of_a_stranger_is_checked_before_it_is_carried_out(saved):
    from metaevo.storage import verified

    manifest = json.loads((saved / "manifest.json").read_text())
    program = manifest["reference"]["td_loss"]["value"]
    before = [*program["equations"]]
    for equation in (
        ["eval", [0], 99, {}],
        ["broadcast_in_dim", [0], 99, {"shape": [1 << 40], "axes": []}],
        ["iota", [], 99, {"shape": [8], "axis": 0, "type": "object"}],
        ["integer_pow", [1], 99, {"y": "__import__('os')"}],
        ["reduce_sum", [1], 99, {"axes": ["print()"]}],
        ["add", [98, 1], 99, {}],
        ["add", [1], 99, {}],
        ["reshape", [1], 99, {"shape": [7]}],
    ):
        program["equations"] = [equation, *before]
        manifest["digest"] = verified.digest(manifest)
        (saved / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ArtifactError) as error:
            metaevo.load(saved)
        assert "\n" not in str(error.value)


def test_arrays_that_an_entry_claims_are_compared_before_they_are_made(saved):
    from metaevo.storage import stored_functions, verified

    def write(manifest):
        manifest["digest"] = verified.digest(manifest)
        (saved / "manifest.json").write_text(json.dumps(manifest))

    manifest = json.loads((saved / "manifest.json").read_text())
    op = manifest["slots"]["td_loss"]
    manifest["slots"]["td_loss"] = stored_functions.resolved(saved, manifest, False)[
        "slots"
    ]["td_loss"]
    assert op != manifest["slots"]["td_loss"]
    del manifest["sources"]
    write(manifest)
    assert metaevo.load(saved).td_loss(Q, Q, Q).shape == (4,)
    arrays = manifest["slots"]["td_loss"]["arrays"]
    for claimed in ([[10**13], "float32"], [[10**30], "float64"]):
        for name in arrays:
            arrays[name] = claimed
        program = manifest["slots"]["td_loss"]["program"]["value"]
        program["shapes"][: len(arrays)] = [claimed[0]] * len(arrays)
        write(manifest)
        with pytest.raises(ArtifactError, match="do not fit its settings") as error:
            metaevo.load(saved)
        assert len(str(error.value)) < 300


def test_two_functions_of_one_name_are_refused(home, monkeypatch):
    monkeypatch.syspath_prepend(home)
    importlib.import_module("my_losses")
    importlib.reload(sys.modules["my_losses"])
    with pytest.raises(ConfigError, match=r"'tilted' is both my_losses\.tilted and"):

        @operations.operation("tilted", slot="td_loss")
        def other():
            pass

    with pytest.raises(ConfigError, match="slot='tdloss'"):
        operations.operation("another", slot="tdloss")


def test_a_function_named_like_one_of_metaevos_is_refused(home):
    @operations.operation("td_network", slot="td_loss")
    def td_network():
        pass

    with pytest.raises(ArtifactError, match=r"'td_network' is both losses\.td_network"):
        operations.get("td_network")


def test_a_function_made_in_a_cell_is_saved_with_its_program_alone(home):
    """It has no file that another process could import."""
    module: dict = {"__name__": "__main__"}
    exec(LOSS, module)
    space = spaces.replace(td_loss=module["tilted"](scale=0.5))
    artifacts.check(PARAMS, space.spec)
    artifacts.save(home / "a", PARAMS, space.spec, {}, {})
    manifest = json.loads((home / "a" / "manifest.json").read_text())
    assert "function" not in manifest["sources"]["td_loss"]
    forget()
    loss = metaevo.load(home / "a", trust=True).td_loss
    np.testing.assert_allclose(of_q(loss, Q, TARGET), expected(Q, TARGET), rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("td_error**2 * context.return_std", r"td_loss=mine: .*reads=lambda op"),
        ("(td_error**2).mean()", r"td_loss=mine: .*leave out .mean\(\)"),
    ],
)
def test_what_could_not_be_saved_is_refused_before_it_trains(
    body, expected, monkeypatch
):
    monkeypatch.setattr(operations, "_OWN", {})
    value = eval(f"lambda td_error, context: {body}")

    @operations.operation("mine", slot="td_loss", hand_made=losses.td_square)
    def mine() -> Learned:
        def apply(params, td_error, q, target, context=None):
            return params["x"] * value(td_error, context)

        return Learned(lambda key: {"x": jax.numpy.ones(())}, apply)

    space = spaces.replace(td_loss=mine())
    params = jax.eval_shape(space.init, jax.random.key(0))
    with pytest.raises(ConfigError, match=expected):
        elements.check_own(space.spec, params)
