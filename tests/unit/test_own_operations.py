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
import jax.numpy as jnp
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
from metaevo.storage import artifacts, own_runs, stored_functions, verified

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


def assert_tilted(loss):
    found = of_q(loss, Q, TARGET)
    np.testing.assert_allclose(found, expected(Q, TARGET), rtol=1e-6)


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
        assert_tilted(metaevo.load(home / "solution").td_loss)
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
    assert f"{home.name}/my_losses.py" in manifest_of(home / "runs/a")["sources"]
    command("export", "runs/a", "to=numpy", "out=here.py")
    # A colleague has the run's folder alone.
    (home / "my_losses.py").unlink()
    command("export", "runs/a", "to=numpy", "out=there.py")
    x = np.asarray(artifacts.params(home / "runs/a")["td_loss"]["x"])
    for name in ("here.py", "there.py"):
        found = exported(home / name)
        np.testing.assert_allclose(found, expected(Q, TARGET, x), rtol=1e-6)


RUN = {"identity": {"search": "tilted_toy", "settings": {}}}


def source_in(home):
    return own_runs.Source(home / "searches/tilted_toy.py", "searches.tilted_toy")


def test_ones_own_run_is_loaded_by_its_source_from_any_folder(saved, monkeypatch):
    home = saved.parent
    run = home / "runs" / "a"
    run.mkdir(parents=True)
    saved.rename(run / "solution")
    (run / "manifest.json").write_text(json.dumps(RUN))
    monkeypatch.chdir("/")
    assert_tilted(metaevo.load(run).td_loss)
    assert not is_imported()
    own_runs.remember(run, RUN, source_in(home), [])
    assert_tilted(metaevo.load(run).td_loss)
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
    (run / "manifest.json").write_text(json.dumps(RUN))
    own_runs.remember(run, RUN, source_in(home), [])
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


def test_a_module_in_folders_that_are_no_packages_is_imported(home):
    (home / "parts" / "of").mkdir(parents=True)
    (home / "my_losses.py").rename(home / "parts" / "of" / "losses.py")
    run = save_as_ones_own(home, "parts.of.losses")
    assert_tilted(metaevo.load(run).td_loss)
    assert "parts.of.losses" in sys.modules


@pytest.mark.parametrize("trust", [False, True])
def test_a_source_that_cannot_be_imported_is_replaced_by_the_program(home, trust):
    (home / "needed.py").write_text("")
    (home / "my_losses.py").write_text(f"import needed\n{LOSS}")
    run = save_as_ones_own(home)
    (home / "needed.py").rename(run / "needed.py")
    with pytest.MonkeyPatch.context() as there:
        there.chdir(run)
        assert_tilted(metaevo.load(".", trust=trust).td_loss)
    assert not is_imported()


# --- elsewhere ------------------------------------------------------------------------


def test_elsewhere_it_runs_by_its_stored_program(saved):
    artifact = metaevo.load(saved)
    loss = artifact.td_loss
    assert not is_imported()
    assert "td_loss: my_losses.tilted" in str(artifact)
    program = jax.jit(lambda q, target: of_q(loss, q, target))
    for shape in ((4,), (4, 1)):
        q, target = Q.reshape(shape), TARGET.reshape(shape)
        found = program(q, target)
        np.testing.assert_allclose(found, expected(q, target), rtol=1e-6)
        assert found.dtype == np.float32
    np.testing.assert_allclose(program(2.0, -3.0), expected(2.0, -3.0), rtol=1e-6)

    @jax.jit
    def slopes(q):
        each = jax.vmap(jax.grad(lambda q, target: of_q(loss, q, target)))
        second = jax.grad(lambda q: each(q, TARGET).sum())(q)
        forward = jax.jvp(lambda q: of_q(loss, q, TARGET), (q,), (jnp.ones(4),))[1]
        return each(q, TARGET), forward, second

    *first, second = slopes(Q)
    for found in first:
        np.testing.assert_allclose(found, slope(Q, TARGET), rtol=1e-6)
    np.testing.assert_allclose(second, np.ones(4))


def test_an_agent_learns_with_the_stored_program_as_with_the_source(saved):
    loop = toys.values()

    def trained(loss):
        meta = slots.checked(loop.meta._replace(td_loss=loss))
        state = jax.jit(loop.init)(jax.random.key(0), meta)
        train = jax.jit(lambda state: loop.train(jax.random.key(1), meta, state)[0])
        return np.asarray(train(train(state)).agent)

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
    assert_tilted(metaevo.load(again).td_loss)
    written = files.write(again, "numpy", tmp_path / "loss.py")
    np.testing.assert_allclose(exported(written), expected(Q, TARGET), rtol=1e-6)
    assert not is_imported()


def test_with_trust_its_source_is_imported_if_it_is_the_same(saved):
    metaevo.load(saved, trust=True)
    assert is_imported()
    forget()
    changed = LOSS.replace("* scale *", "* 100 *")
    (saved.parent / "my_losses.py").write_text(f"{changed}\nraise SystemExit('ran')\n")
    assert_tilted(metaevo.load(saved, trust=True).td_loss)
    assert not is_imported()


def test_a_function_that_was_changed_since_is_not_used_in_its_place(saved, monkeypatch):
    changed = LOSS.replace("* scale *", "* 100 *")
    (saved.parent / "my_losses.py").write_text(changed)
    monkeypatch.syspath_prepend(saved.parent)
    importlib.import_module("my_losses")
    assert_tilted(metaevo.load(saved).td_loss)


def test_nothing_is_imported_from_the_artifacts_own_folder(saved, monkeypatch):
    (saved.parent / "my_losses.py").rename(saved / "my_losses.py")
    monkeypatch.chdir(saved)
    assert_tilted(metaevo.load(".", trust=True).td_loss)
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


def manifest_of(path):
    return json.loads((path / "manifest.json").read_text())


def write(path, manifest):
    """Write the manifest with a digest of its own."""
    manifest["digest"] = verified.digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def edited(path, **changes):
    """Change the entry under `sources`."""
    manifest = manifest_of(path)
    manifest["sources"]["td_loss"] |= changes
    write(path, manifest)


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
        assert_tilted(metaevo.load(saved, trust=True).td_loss)
    assert "antigravity" not in sys.modules


def test_a_program_of_a_stranger_is_checked_before_it_is_carried_out(saved):
    manifest = manifest_of(saved)
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
        write(saved, manifest)
        with pytest.raises(ArtifactError) as error:
            metaevo.load(saved)
        assert "\n" not in str(error.value)


def test_arrays_that_an_entry_claims_are_compared_before_they_are_made(saved):
    manifest = manifest_of(saved)
    op = manifest["slots"]["td_loss"]
    manifest["slots"]["td_loss"] = stored_functions.resolved(saved, manifest, False)[
        "slots"
    ]["td_loss"]
    assert op != manifest["slots"]["td_loss"]
    del manifest["sources"]
    write(saved, manifest)
    assert metaevo.load(saved).td_loss(Q, Q, Q).shape == (4,)
    arrays = manifest["slots"]["td_loss"]["arrays"]
    for claimed in ([[10**13], "float32"], [[10**30], "float64"]):
        for name in arrays:
            arrays[name] = claimed
        program = manifest["slots"]["td_loss"]["program"]["value"]
        program["shapes"][: len(arrays)] = [claimed[0]] * len(arrays)
        write(saved, manifest)
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
    assert "function" not in manifest_of(home / "a")["sources"]["td_loss"]
    forget()
    assert_tilted(metaevo.load(home / "a", trust=True).td_loss)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(x + 0.5) * e**2 * context.return_std", r"runs: declare .*reads=lambda op"),
        ("((x + 0.5) * e**2).mean()", r"leave out .mean\(\)"),
        ("[][x.ndim] * e", r"IndexError in line \d+ of .*: list index out of range$"),
        ("(x + 1) * e**2", "it starts as .* where the hand-made function is "),
        ("0.5 * e**2", "its values do not depend on its numbers"),
    ],
)
def test_what_is_wrong_with_a_function_is_said_before_it_trains(
    body, expected, monkeypatch
):
    monkeypatch.setattr(operations, "_OWN", {})

    @operations.operation("mine", slot="td_loss", hand_made=losses.td_square)
    def mine() -> Learned:
        def apply(params, td_error, q, target, context=None):
            return eval(body, {"x": params["x"], "e": td_error, "context": context})

        return Learned(
            lambda key: {"x": jax.numpy.zeros(())}, apply, starts_hand_made=True
        )

    space = spaces.replace(td_loss=mine())
    params = jax.eval_shape(space.init, jax.random.key(0))
    with pytest.raises(ConfigError, match=rf"td_loss=mine: .*{expected}"):
        elements.check_own(space.spec, params)


@pytest.mark.parametrize(
    ("slot", "values", "expected"),
    [
        ("reward", lambda x, o, a, r, n, t: jax.numpy.stack([r, x]), "one transition"),
        ("exploration", lambda x, q, e: q + x, "as a probability"),
        ("td_loss", lambda x, e, q, t: None, "it returns None; expected one"),
    ],
)
def test_what_another_slot_cannot_take_is_said_before_it_trains(
    slot, values, expected, monkeypatch
):
    monkeypatch.setattr(operations, "_OWN", {})

    @operations.operation("mine", slot=slot)
    def mine() -> Learned:
        return Learned(
            lambda key: {"x": jax.numpy.zeros(())},
            lambda params, *inputs: values(params["x"], *inputs[:-1]),
        )

    space = spaces.replace(**{slot: mine()})
    params = jax.eval_shape(space.init, jax.random.key(0))
    with pytest.raises(ConfigError, match=rf"{slot}=mine: .*{expected}"):
        elements.check_own(space.spec, params)
