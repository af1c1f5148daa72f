"""Contract of every learned function in the registry, and of a toy in one file.

A function is found by `metaevo.learned.operations`; nothing here names one. Those of
one kind of slot share one program in single and one in double precision, and those that
fit a loop one program of it.
"""

import functools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest
from lifetimes import same
from matplotlib.figure import Figure

import metaevo
from metaevo import drifts, losses, optimizers, slots, spaces
from metaevo.analysis.plots import gallery
from metaevo.errors import ArtifactError, ConfigError
from metaevo.learned import operations, portraits
from metaevo.portable import tracing
from metaevo.slots import Context
from metaevo.storage import artifacts, numpy_reference, stored_functions
from metaevo.storage.sources import SourceEntry

FOLDER = Path(__file__).parents[2] / "docs"
PAGES = [FOLDER / "spaces.md", *sorted(FOLDER.glob("learned/*.md"))]
DOCS = "\n".join(page.read_text() for page in PAGES)
CASES = helper.cases()
KINDS = {name: case.operation.slot for name, case in CASES.items()}
FUNCTIONS = [name for name, kind in KINDS.items() if kind != "optimizer"]
OPTIMIZERS = [name for name, kind in KINDS.items() if kind == "optimizer"]
# Those of another package are apart, so that these tests of one are quick.
GROUPS = {
    name: (KINDS[name], case.operation.build.__module__.partition(".")[0])
    for name, case in CASES.items()
}
CLIP = {"clip_eps": 0.2}
# The starts that are no algorithm to compare with.
NOTHING = (losses.zero, drifts.zero)


each = functools.partial(helper.each, group="learned")
every_operation = pytest.mark.parametrize("name", operations.everything())


# --- a function, saved and loaded -----------------------------------------------------


@functools.cache
def start_and_noise(name):
    return helper.moved(CASES[name].make(), 1.0)


def moved(name, by, sign=1):
    """Params that lie `by` off the start."""
    start, noise = start_and_noise(name)
    return jax.tree.map(lambda x, e: x + np.float32(sign * by) * e, start, noise)


@functools.cache
def saved(name):
    """Params off the start, the artifact, its function, and the numpy reference."""
    case = CASES[name]
    made, folder = case.make(), FOLDER / name.replace(" ", "_")
    params = moved(name, 0.3)
    spec = {case.slot: dict(made.spec)}
    artifacts.check(jax.eval_shape(lambda: {case.slot: params}), spec)
    artifacts.save(folder, {case.slot: params}, spec, {}, {})
    mine = getattr(numpy_reference.load(folder), case.slot)
    return params, metaevo.load(folder).slots[case.slot], mine


@functools.cache
def by_program(name):
    """The function that JAX makes of the stored program, and its entry."""
    saved(name)
    case, folder = CASES[name], FOLDER / name.replace(" ", "_")
    manifest = json.loads((folder / "manifest.json").read_text())
    op = manifest["slots"][case.slot]
    reads = case.operation.reads(op)
    origin = SourceEntry(case.operation.slot, case.operation.title, reads)
    entry = stored_functions.entry(case.slot, op, origin, manifest)
    return operations.get(entry["op"]).rebuild(entry), entry


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory):
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("artifacts")
    yield
    for cached in (saved, by_program, program, evaluated, stepper, loop_program):
        cached.cache_clear()


FOLDER: Path


# --- all functions of a kind, in one program ------------------------------------------


@functools.cache
def program(group, x64):
    """`(params, loaded, inputs, along) -> [values, gradients]` of each function.

    All are dicts by case. A case has its searched function, the one that was loaded and
    its stored program, each in a context; in double precision the searched function
    alone, without a context where it reads none.
    """
    names = [name for name in FUNCTIONS if GROUPS[name] == group]
    stored = {name: by_program(name)[0] for name in names}

    def evaluate(name, function, inputs, along, context):
        case = CASES[name]
        given, seen, call = tracing.signature(case.make().spec)

        def values(*inputs):
            now = context
            if seen:
                scalars = dict(zip(seen, inputs[len(given) :], strict=True))
                now = tracing.context_of(scalars)
            if case.temporal:
                now = now._replace(stats={**now.stats, **CLIP})
            arrays = inputs[: len(given)]
            return call(lambda _, *args: function(*args), (), arrays, now)

        value, pull = jax.vjp(values, *inputs)
        return value, pull(jnp.broadcast_to(along, value.shape).astype(value.dtype))

    @jax.jit
    def every(params, loaded, inputs, along):
        found = {}
        for name in names:
            made = CASES[name].make()
            functions, context = [made.bind(params[name])], None
            if not x64:
                functions += [loaded[name], stored[name].bind(params[name])]
                context = Context(0.7, 2.0, CLIP)
            found[name] = [
                evaluate(name, f, inputs[name], along[name], context) for f in functions
            ]
        return found

    return names, every


@functools.cache
def evaluated(group, by=0.3, sign=1, huge=False, progress=None, x64=False):
    """Of every case, with params `by` off the start: as `program`.

    Args:
        progress: of temporal functions, in place of that of their inputs.
        x64: True for double precision, with random weights of the values.
    """
    dtype = np.float64 if x64 else np.float32
    cast = functools.partial(jax.tree.map, dtype)
    with jax.enable_x64(x64):
        names, every = program(group, x64)
        inputs = {name: CASES[name].inputs(huge) for name in names}
        for name in names:
            if progress is not None and CASES[name].temporal:
                inputs[name][-1] = np.float64(progress)
        along = {name: weights(name) if x64 else 1.0 for name in names}
        found = every(
            cast({name: moved(name, by, sign) for name in names}),
            cast({name: saved(name)[1] for name in names}),
            cast(inputs),
            cast(along),
        )
        return jax.tree.map(np.asarray, found)


@functools.cache
def weights(name):
    """Random weights of the values of a case, of their shape."""
    shape = np.shape(saved(name)[2](*CASES[name].inputs()))
    return np.random.default_rng(0).normal(size=shape)


def searched(name, **options):
    """Value and gradient of the searched function."""
    return evaluated(GROUPS[name], **options)[name][0]


# --- an optimizer ---------------------------------------------------------------------


@functools.cache
def stepper(name, x64):
    """One update of the searched optimizer, and of Adam."""
    del x64
    made = CASES[name].make()

    @jax.jit
    def step(params, gradient, states, agents, progress, noise):
        extra = {"noise": noise} if "noise" in made.extra_inputs else {}
        context = Context(progress)
        each = (made.bind(params), extra), (optimizers.adam, {})
        return [
            one.update(gradient, state, agent, context, **more)
            for (one, more), state, agent in zip(each, states, agents, strict=True)
        ]

    return step


def noise_of(agent, i):
    return jax.tree.map(lambda x: np.cos(i + 3 * x), agent)


def directions(name, params, scales, progress=None, dtype=np.float32):
    """Directions of the searched optimizer and of Adam, each [all numbers]."""
    made, x64 = CASES[name].make(), dtype is np.float64
    cast = functools.partial(jax.tree.map, dtype)
    with jax.enable_x64(x64):
        agents = [cast(helper.agent())] * 2
        states = [one.init(agents[0]) for one in (made.bind(params), optimizers.adam)]
        found: list[list] = [[], []]
        for i, gradient in enumerate(helper.gradients(*scales)):
            done = i / len(scales) if progress is None else progress
            noise = cast(noise_of(helper.agent(), i))
            moves = stepper(name, x64)(
                cast(params), cast(gradient), states, agents, dtype(done), noise
            )
            states = [state for _, state in moves]
            agents = [
                jax.tree.map(lambda p, d: p - dtype(0.01) * np.asarray(d), agent, d)
                for agent, (d, _) in zip(agents, moves, strict=True)
            ]
            for one, (d, _) in zip(found, moves, strict=True):
                one += [np.ravel(x) for x in jax.tree.leaves(d)]
    return [np.concatenate(one) for one in found]


@functools.cache
def results(name, by, sign=1, huge=False):
    """Values, and the first input's gradient, with params `by` off the start."""
    if name in OPTIMIZERS:
        scales = helper.SCALES["huge" if huge else "usual"]
        return (directions(name, moved(name, by, sign), scales)[0],)
    value, gradient = searched(name, by=by, sign=sign, huge=huge)
    return value, *gradient[:1]


# --- the registry ---------------------------------------------------------------------


REFUSED: dict[str, tuple] = {
    "features": ((), (0,), (2.5,)),
    "temporal": (1,),
    "scale": (0.0, float("nan"), "x"),
    "limit": (-1.0, 0.0),
    "base": ("os.system", losses.minus_q),
    "clip_eps": (0.0,),
    "alpha": (0.0, "x"),
    "beta": (-1.0, "x"),
    "eps": (0.0, float("inf"), "x"),
    "hidden": (0,),
    "step": (-1.0,),
    "noise": (1,),
    "num_knots": (1, 2.5),
    "num_steps": (0,),
    "units": ([], [0.0]),
    "convex": (1,),
    "max_weight": (1.0, 0.0, "x"),
    "max_bias": (-1.0, float("nan"), "x"),
    "size": (0, 2.5),
}
"""Values that no operation with a setting of that name takes."""


@every_operation
def test_an_operation_describes_its_function_and_refuses_bad_settings(name):
    operation = operations.get(name)
    assert operation.slot in slots.SIGNATURES
    assert operation.examples
    for example in operation.examples:
        made = operation.build(**example)
        assert made.spec["op"] == name
        again = operation.rebuild(made.spec)
        assert again.spec == made.spec
        assert "temporal" not in made.spec
    with pytest.raises(ArtifactError, match=r"settings.*surprise"):
        operation.rebuild({**made.spec, "surprise": 1})
    for setting in REFUSED.keys() & (operation.settings | operation.optional):
        for value in REFUSED[setting]:
            with pytest.raises((ValueError, TypeError)) as error:
                operation.build(**{**operation.examples[0], setting: value})
            assert setting in str(error.value) or isinstance(error.value, TypeError)


def test_every_builder_of_a_learned_function_is_registered():
    """Public functions that return one are operations, apart from conversions."""
    helpers = {"policies.of", "schedules.around", "formulas.expression"}
    for name in operations.MODULES:
        module = sys.modules[name]
        builders = {
            f"{name.removeprefix('metaevo.')}.{key}"
            for key, value in vars(module).items()
            if callable(value)
            and not key.startswith("_")
            and getattr(value, "__module__", "") == name
            and str(getattr(value, "__annotations__", {}).get("return")).startswith(
                "Learned"
            )
        }
        titles = {one.title for one in operations.everything().values()}
        assert builders - helpers <= titles


def test_an_unknown_operation_is_refused_by_name():
    with pytest.raises(ArtifactError, match=r"unknown operation 'os\.system'"):
        operations.get("os.system")


def test_temporal_is_a_setting_of_what_evolves_as_a_network_or_as_constants():
    """The others have knots or act without a lifetime, and refuse the setting."""
    without = {
        n
        for n, one in operations.everything().items()
        if "temporal" not in one.optional
    }
    closed = {"error_loss", "td_error_loss", "clip_constant", "rational"}
    closed |= {"scaled_error_loss", "scaled_td_error_loss"}
    numbers = {"steps", "knots", "feedback"}
    others = {"piecewise", "potential", "impact", "graded", "policy", "shaper"}
    others |= {"monotone_correction", "monotone_rescaling"}
    others |= {"message_network", "monotone_q"}
    others |= {f"{x}_formula" for x in ("td", "value", "drift", "policy", "priority")}
    others |= {f"{x}_formula" for x in ("actor", "rescale", "q", "number")}
    assert {n for n in without if _is_ours(n)} == closed | numbers | others
    for name in without:
        example = operations.get(name).examples[0]
        made = operations.get(name).build(**example)
        shapes = {"x": jax.eval_shape(made.init, jax.random.key(0))}
        with pytest.raises(ConfigError, match="temporal"):
            artifacts.check(shapes, {"x": dict(made.spec) | {"temporal": True}})


def _is_ours(name):
    return operations.get(name).build.__module__.startswith("metaevo.")


# --- values ---------------------------------------------------------------------------


@each(CASES)
def test_values_differ_between_mirrored_members_and_stay_finite(name):
    """Members differ from each other and from the start: otherwise ES have nothing to
    go by. Inputs and params may be huge."""
    elementwise = KINDS[name] in helper.USUAL
    minus, plus = (results(name, 0.3, sign)[0] for sign in (-1, 1))
    base = results(name, 0.0)[0]
    least = 1e-3
    if KINDS[name] == "number":
        least = 1e-5 * np.abs(base).max()  # a number of any size, such as a discount
    for a, b in ((minus, plus), (minus, base), (plus, base)):
        assert np.abs(a - b).max() > least
    for by, huge in ((0.0, False), (0.3, False), (3.0, False), (1e3, False),
                     (0.0, True), (0.3, True), (3.0, True)):  # fmt: skip
        if by == 1e3 and (elementwise or name in OPTIMIZERS):
            continue
        value, *gradient = results(name, by, huge=huge)
        assert np.isfinite(value).all()
        if elementwise:
            assert value.shape == np.shape(CASES[name].inputs()[0])
            assert np.isfinite(gradient).all()


def near(found, expected, tolerance=1e-5):
    """Check floats of 32 bits, relative to numbers above 1."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert (np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b))).all()


@each(FUNCTIONS)
def test_a_function_is_the_same_wherever_it_runs(name):
    """Values and gradients: saved and loaded, to the bit; by its stored program, which
    `test_own_operations` loads without the source; by numpy, in both precisions."""
    _, _, mine = saved(name)
    searched, loaded, stored = evaluated(GROUPS[name])[name]
    same(searched, loaded)
    near(stored, searched)

    inputs = [np.float32(x) for x in CASES[name].inputs()]
    value, gradient = searched
    near(mine(*inputs, dtype=np.float32), value)
    near(mine.gradient(*inputs, dtype=np.float32), gradient)

    inputs = CASES[name].inputs()
    value, gradient = evaluated(GROUPS[name], x64=True)[name][0]
    assert value.dtype == np.float64
    np.testing.assert_allclose(mine(*inputs), value, rtol=0, atol=1e-9)
    found = mine.gradient(*inputs, along=weights(name))
    # Zeros would agree with anything; steps are flat.
    assert name == "steps" or max(np.abs(x).max() for x in found) > 1e-4
    for a, b in zip(found, gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@each(OPTIMIZERS)
def test_an_optimizer_is_the_same_wherever_it_runs(name):
    """Saved and loaded: the same operations on the same numbers, so the same bits. By
    its stored program, over several updates, with the noise that it draws itself. By
    numpy, in both precisions."""
    params, loaded, _ = saved(name)
    agent, made = helper.agent(), CASES[name].make()
    searched, (stored, _) = made.bind(params), by_program(name)
    same(loaded.update.args, (params,))
    written = []
    for one in (searched, loaded):
        same(one.init(agent), made.start(agent))
        args = agent, one.init(agent), agent, Context(0.5)
        written.append(str(jax.make_jaxpr(one.update.func)(params, *args)))
    assert written[0] == written[1]

    agent, scales = jax.tree.map(jnp.asarray, agent), helper.SCALES["usual"]
    found = []
    for one in (searched, stored.bind(params)):
        state, update = one.init(agent), jax.jit(one.update)
        found.append([])
        for i, gradient in enumerate(helper.gradients(*scales)):
            direction, state = update(gradient, state, agent, Context(i / 8))
            found[-1].append(direction)
    near(found[1], found[0], 2e-5)

    theirs = directions(name, params, scales, dtype=np.float64)[0]
    assert theirs.dtype == np.float64
    np.testing.assert_allclose(by_numpy(name, np.float64), theirs, rtol=0, atol=1e-9)
    near(by_numpy(name, np.float32), directions(name, params, scales)[0])


def by_numpy(name, dtype):
    """All directions of the reference, of the same gradients, progress and noise."""
    _, _, mine = saved(name)
    agent = jax.tree.map(dtype, helper.agent())
    state, found = mine.init(agent, dtype), []
    scales = helper.SCALES["usual"]
    for i, gradient in enumerate(helper.gradients(*scales)):
        noise = None
        if "noise" in CASES[name].make().extra_inputs:
            noise = jax.tree.map(dtype, noise_of(helper.agent(), i))
        gradient = jax.tree.map(dtype, gradient)
        got, state = mine.update(gradient, state, agent, i / len(scales), noise, dtype)
        assert all(x.dtype == dtype for x in jax.tree.leaves(got))
        agent = jax.tree.map(lambda p, d: p - dtype(0.01) * d, agent, got)
        found += [np.ravel(x) for x in jax.tree.leaves(got)]
    return np.concatenate(found)


@each({group: name for name, group in GROUPS.items()}.values())
def test_a_stored_program_is_saved_as_a_function_is(name):
    """One of each kind: it is by their inputs."""
    params, _, _ = saved(name)
    learned, entry = by_program(name)
    slot = CASES[name].slot
    shapes = jax.eval_shape(learned.init, jax.random.key(0))
    artifacts.check({slot: shapes}, {slot: entry})
    again = tracing.describe(slot, entry, learned, params)
    assert again["inputs"] == entry["program"]["inputs"]
    assert jax.tree.structure(shapes) == jax.tree.structure(params)


@each([name for name in OPTIMIZERS if not CASES[name].temporal])
def test_a_learned_optimizer_starts_as_adam(name):
    found, adam = directions(name, moved(name, 0.0), helper.SCALES["usual"])
    np.testing.assert_allclose(found, adam, rtol=2e-5, atol=1e-6)


# --- over a lifetime ------------------------------------------------------------------


@each([name for name, case in CASES.items() if case.temporal])
def test_a_temporal_function_changes_over_a_lifetime(name):
    case = CASES[name]
    _, loaded, _ = saved(name)
    plain = name.removesuffix(" temporal")

    def at(name, by, progress):
        if name in OPTIMIZERS:
            usual = helper.SCALES["usual"]
            return directions(name, moved(name, by), usual, progress)[0]
        return searched(name, by=by, progress=progress)[0]

    assert np.abs(at(name, 0.3, 0.0) - at(name, 0.3, 0.9)).max() > 1e-3
    expected = at(plain, 0.0, 0.9)
    np.testing.assert_allclose(at(name, 0.0, 0.9), expected, rtol=1e-5, atol=1e-6)
    # Its artifact says so, and its function does not guess where it is.
    assert case.make().spec["temporal"] is True
    one = jnp.ones(3)
    given, _, call = tracing.signature(case.make().spec)
    inputs = [jnp.asarray(x) for x in case.inputs()[: len(given)]]

    def without_context():
        if case.operation.slot == "optimizer":
            return loaded.update(one, loaded.init(one), one)
        return call(lambda _, *args: loaded(*args), (), inputs, None)

    with pytest.raises(ValueError, match=r"temporal=True.*context=metaevo\.Context"):
        without_context()


# --- elsewhere ------------------------------------------------------------------------


def test_artifacts_load_and_run_with_jax_numpy_and_safetensors_alone(tmp_path):
    """Every other dependency is made impossible to import. To trace a function is to
    run all its Python."""
    names = [n for n in CASES if CASES[n].make().spec["op"] == n and _is_ours(n)]
    for name in names:
        saved(name)
        (tmp_path / name).symlink_to(FOLDER / name)
        given, _, _ = tracing.signature(CASES[name].make().spec)
        inputs = CASES[name].inputs()[: len(given)] if name in FUNCTIONS else []
        np.savez(FOLDER / f"{name}.npz", *inputs)
    code = textwrap.dedent(
        f"""
        import pathlib, sys
        for name in ("optax flax evosax gymnax gymnasium omegaconf matplotlib filelock "
                     "brax wandb pandas").split():
            sys.modules[name] = None
        import jax, numpy
        import metaevo
        stats = {helper.READ!r}
        context = metaevo.Context(0.5, 1.0, stats)
        for path in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):
            (slot, found), = metaevo.load(path).slots.items()
            if slot == "optimizer":
                one = numpy.ones(3, "float32")
                jax.eval_shape(found.update, one, found.init(one), one)
            else:
                inputs = numpy.load({str(FOLDER)!r} + "/" + path.name + ".npz")
                inputs = [numpy.float32(x) for x in inputs.values()]
                if slot == "reward":
                    inputs = [x[0] for x in inputs]
                    if not inputs[1].ndim:
                        inputs[1] = inputs[1].astype(int)
                more = [] if slot == "activation" else [context]
                jax.eval_shape(found, *inputs, *more)
            print(path.name)
        """
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == sorted(names)


# --- drawn, and in the docs -----------------------------------------------------------


def test_every_function_of_metaevo_declares_its_portrait():
    """Its own or its kind's: none is drawn as a function of which nothing is known."""
    known = [op for name, op in operations.everything().items() if _is_ours(name)]
    assert all(op.portrait or op.slot in portraits.KINDS for op in known)


@every_operation
def test_it_has_a_portrait(name):
    """With names on its axes, something in every panel, and numbers in its table."""
    case = CASES[name]
    made = case.make()
    each = ({case.slot: x} for x in (made.spec, helper.away(made), (-2, 3)))
    (portrait,) = gallery.gallery(*each)
    # `test_gallery` renders some.
    panels = np.ravel(Figure().subplots(1, portrait.num_panels))
    portrait.draw(*panels)
    shown = [(p.get_xlabel(), p.get_ylabel(), p.has_data()) for p in panels]
    assert all(x and y and data for x, y, data in shown), shown
    header, rows = portrait.table
    assert len(rows) > 0
    assert all(len(row) == len(header) for row in rows)
    numbers = [x for row in rows for x in row if not isinstance(x, str)]
    assert np.isfinite(numbers).all()
    assert portrait.caption.endswith(".")


def test_the_docs_have_a_row_or_a_section_of_each():
    table = helper.table()
    for operation in operations.everything().values():
        if not _is_ours(operation.name):
            continue
        assert f"`{operation.title}`" in DOCS
        if operation.title in helper.functions():
            assert f"| `{operation.title}` |" in table


# --- in the inner loops ---------------------------------------------------------------

TEN_STEPS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 320, "num_epochs": 10},
    "dqn": {"total_timesteps": 144},
    "r2d2": {"total_timesteps": 144},
    "alphazero": {"num_epochs": 3, "num_simulations": 12},
    "pqn": {"total_timesteps": 640, "num_epochs": 4},
    "td3": {"total_timesteps": 64 + 8, "num_gradient_steps": 10},
    "sac": {"total_timesteps": 64 + 8, "num_gradient_steps": 10},
}
"""Ten gradient steps; other loops take the whole of their small life."""

# Loops whose losses are told by the code of one of the others.
OF_OTHERS = ("a2c", "apex", "apex_ddpg", "gorila", "gumbel_alphazero", "ppo_rnn")
OF_OTHERS += ("qtopt", "r2d3")
IN_LOOPS = {
    loop: sorted(
        {
            one.slot
            for one in helper.functions().values()
            if one.slot in small.meta._fields
        }
    )
    for loop, small in helper.LOOPS.items()
    if loop not in OF_OTHERS
}


def only_with_its_std(error, target, context):
    """The squared error; not a number where `return_std` is not the targets' own."""
    right = jnp.abs(context.return_std - target.std()) <= 1e-4 * (1 + target.std())
    return 0.5 * error**2 * jnp.where(right, 1.0, jnp.nan)


TOLD = {
    "value_loss": [lambda v, g, old, context: only_with_its_std(v - g, g, context)],
    "td_loss": [lambda e, q, target, context: only_with_its_std(e, target, context)],
}


class Candidate:
    """A case in a loop: the function and the hand-made value that it starts as."""

    def __init__(self, name, loop):
        case = CASES[name]
        small = helper.LOOPS[loop]
        env = small.world(small.env)
        settings = {**case.settings, **case.operation.for_env(env)}
        self.name = name
        self.made = case.operation.build(**settings)
        self.hand_made = case.operation.start(settings)
        self.compared = self.made.starts_hand_made or self.hand_made is not None


def dealt(kind, loop):
    """Names of the functions of a kind of slot that are tried in a loop.

    Each function is tried in one loop, and each loop's critic with one at least, since
    it is told its targets' deviation. That every slot of a loop reaches its result is
    tested in `test_inner_loops`.
    """
    # A temporal function starts as the plain one, which is tested above.
    names = [k for k, x in CASES.items() if x.operation.slot == kind and not x.temporal]
    places = [other for other, kinds in IN_LOOPS.items() if kind in kinds]
    i = places.index(loop)
    return names[i :: len(places)] or [names[i % len(names)]] * (kind in TOLD)


@functools.cache
def loop_program(loop):
    """`(which, params) -> (the agent's params, metrics)`, and choices of each slot.

    One program holds all functions that are tried in the loop; which of them acts is
    traced. A minibatch is a rollout: their targets are the same numbers.
    """
    small = helper.LOOPS[loop]
    whole = {"num_minibatches": 1} if hasattr(small.make().config, "num_epochs") else {}
    inner = small.make(**whole, **TEN_STEPS.get(loop, {}))
    candidates = {
        kind: [Candidate(name, loop) for name in names]
        for kind in IN_LOOPS[loop]
        if (names := dealt(kind, loop))
    }
    hand_made = {
        kind: _distinct(
            [
                getattr(small.meta, kind),
                *(one.hand_made for one in several if one.compared),
                *TOLD.get(kind, ()),
            ]
        )
        for kind, several in candidates.items()
    }

    def agent_of(state):
        agent = state.agent
        whole = [getattr(agent, x) for x in ("actor", "critic") if hasattr(agent, x)]
        return [one.params for one in whole] or [agent.params]

    @jax.jit
    def run(which, params):
        meta = small.meta
        for kind, several in candidates.items():
            choices = [(None, value) for value in hand_made[kind]]
            choices += zip([one.made for one in several], params[kind], strict=True)
            value = helper.switched(kind, choices, which[kind])
            meta = meta._replace(**{kind: value})
        state = inner.init(jax.random.key(0), meta)
        state, metrics = inner.train(jax.random.key(1), meta, state)
        return agent_of(state), metrics

    return run, candidates, hand_made


def _distinct(values):
    found: list = []
    for value in values:
        if not any(value is other for other in found):
            found.append(value)
    return found


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def differ(a, b, name):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    assert any(not np.allclose(x, y, rtol=1e-6) for x, y in pairs), name


@pytest.mark.parametrize("loop", [loop for loop, kinds in IN_LOOPS.items() if kinds])
def test_ten_steps_from_the_start_are_the_hand_made_algorithm(loop):
    """In each slot of a loop. Off the start they differ, and mirrored members do too:
    an evolution strategy climbs by that. And critics are told the deviation of their
    targets."""
    run, candidates, hand_made = loop_program(loop)
    starts = {
        kind: [one.made.init(jax.random.key(5)) for one in several]
        for kind, several in candidates.items()
    }
    nothing_evolved = dict.fromkeys(candidates, 0)

    def trained(kind, which, i=None, params=None):
        changed = starts
        if i is not None:
            several = [*starts[kind]]
            several[i] = params
            changed = starts | {kind: several}
        agent, metrics = run(nothing_evolved | {kind: which}, changed)
        assert kind not in TOLD or metrics["return_std"] > 0
        agent = jax.tree.map(np.asarray, agent)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(agent)), kind
        return agent

    for kind, several in candidates.items():
        expected = [trained(kind, i) for i in range(len(hand_made[kind]))]
        for i, one in enumerate(several):
            which = len(hand_made[kind]) + i
            start, noise = helper.moved(one.made, 0.3, seed=3)
            up, down = (
                trained(kind, which, i, jax.tree.map(sign, start, noise))
                for sign in (np.add, np.subtract)
            )
            differ(up, down, one.name)
            if not one.compared:
                continue
            assert one.made.starts_hand_made == (one.hand_made not in NOTHING)
            space = spaces.replace(**{kind: one.made})
            assert space.starts_hand_made == one.made.starts_hand_made
            at = [x is one.hand_made for x in hand_made[kind]].index(True)
            close(trained(kind, which), expected[at])
            differ(up, expected[at], one.name)


def test_every_function_fits_a_loop():
    kinds = {kind for several in IN_LOOPS.values() for kind in several}
    assert {one.slot for one in helper.functions().values()} <= kinds
