"""Every learned function of the registry, exported in every format, equals JAX.

Exported files run in an environment that has their framework alone: `.venv-torch` of
the Makefile has neither JAX nor metaevo, and here metaevo cannot be imported.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import slots
from metaevo.export import files
from metaevo.export import inputs as of_users
from metaevo.learned import optimizers
from metaevo.portable import tracing
from metaevo.slots import Context
from metaevo.storage import artifacts

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
HERE = Path(sys.executable)
ELSEWHERE = ROOT / ".venv-torch" / "bin" / "python"
# Format -> the environment that it runs in, and packages that its writer needs.
NEEDS = {
    "torch": (ELSEWHERE, ()),
    "numpy": (ELSEWHERE, ()),
    "onnx": (ELSEWHERE, ("onnx",)),
    "jax": (HERE, ()),
    "stablehlo": (HERE, ("flatbuffers",)),
}
SOURCE = ("torch", "numpy", "jax")
CASES = helper.cases()
NETWORKS = (
    [f"actor/params/Dense_{i}/{x}" for i in (0, 1) for x in ("kernel", "bias")],
    ["log_std"],
)


def by_path(tree):
    found = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(key.key for key in path): np.asarray(x) for path, x in found}


# --- what JAX gives -------------------------------------------------------------------


@functools.cache
def expected(name):
    """Inputs of a case, and what the searched function gives; float32."""
    case = CASES[name]
    made = case.make()
    params = helper.away(made)
    if case.operation.slot == "optimizer":
        return _steps(case, made, params)
    given, seen, call = of_users.signature(made.spec)

    @jax.jit
    def both(*inputs):
        def value(*inputs):
            scalars = dict(zip(seen, inputs[len(given) :], strict=True))
            context = tracing.context_of(scalars) if seen else None
            return call(made.apply, params, inputs[: len(given)], context)

        found, pull = jax.vjp(value, *inputs)
        return found, pull(jnp.ones_like(found))

    inputs = {name: np.float32(x) for name, x in case.tensors().items()}
    value, slopes = both(*inputs.values())
    found = {f"gradient_{x}": g for x, g in zip(inputs, slopes, strict=True)}
    shapes = {**given, **dict.fromkeys(seen, ())}
    axes = {name: len(x) - 1 if x else None for name, x in shapes.items()}
    if case.operation.slot in slots.OVER_TIME:
        axes = {name: None if x is None else 0 for name, x in axes.items()}
    described = {"slot": case.slot, "axes": axes}
    return described, inputs, found | {"value": value}


def _steps(case, made, params):
    agent = jax.tree.map(np.float32, helper.agent())
    one, noisy = made.bind(params), "noise" in made.extra_inputs
    step = jax.jit(
        lambda gradient, state, agent, progress, noise: one.update(
            gradient, state, agent, Context(progress), **noise
        )
    )
    state, scales = one.init(agent), helper.SCALES["usual"]
    progress = np.float32(np.arange(len(scales)) / len(scales))
    inputs = {f"first params {k}": x for k, x in by_path(agent).items()}
    inputs |= {"progress": progress}
    directions = []
    for i, gradient in enumerate(helper.gradients(*scales)):
        noise = jax.tree.map(lambda x, i=i: np.cos(i + 3 * x), helper.agent())
        noise = jax.tree.map(np.float32, noise)
        inputs |= {f"{i} gradient {k}": x for k, x in by_path(gradient).items()}
        inputs |= {f"{i} noise {k}": x for k, x in by_path(noise).items()}
        more = {"noise": noise} if noisy else {}
        move, state = step(gradient, state, agent, progress[i], more)
        agent = jax.tree.map(lambda p, d: p - np.float32(0.01) * d, agent, move)
        directions += [np.ravel(x) for x in jax.tree.leaves(move)]
    described = tracing.describe("optimizer", made.spec, made, params)
    case = {
        "slot": "optimizer",
        "steps": len(scales),
        "params": list(by_path(agent)),
        "networks": NETWORKS,
        "layers": {k: float(x) for k, x in by_path(optimizers.depths(agent)).items()},
        "noise": noisy,
        "temporal": case.temporal,
        "inputs": described["inputs"],
        "state": described["state"],
    }
    return case, inputs, {"value": np.concatenate(directions)}


# --- what the files give --------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """`format -> folder` of what its files gave, made once."""
    saved = tmp_path_factory.mktemp("artifacts")
    made = {}

    def of(to):
        python, packages = NEEDS[to]
        if not python.exists():
            pytest.skip("no .venv-torch; make test-system makes it")
        for package in packages:
            pytest.importorskip(package)
        if to not in made:
            made[to] = _evaluated(to, python, saved, tmp_path_factory.mktemp(to))
        return made[to]

    return of


def _evaluated(to, python, saved, folder):
    for name, case in CASES.items():
        described, inputs, _ = expected(name)
        artifact, there = saved / name.replace(" ", "_"), folder / name
        if not artifact.exists():
            learned = case.make()
            params = {case.slot: helper.away(learned)}
            artifacts.save(artifact, params, {case.slot: learned.spec}, {}, {})
        there.mkdir()
        (there / "case.json").write_text(json.dumps({**described, "format": to}))
        np.savez(there / "inputs.npz", **inputs)
        suffix = "py" if to in SOURCE else to
        files.write(artifact, to, there / f"{to}.{suffix}")
    (folder / "metaevo").mkdir()
    (folder / "metaevo" / "__init__.py").write_text("raise ImportError('not here')\n")
    # Ours is hidden; where the tests run, other folders of packages are not.
    paths = os.environ.get("PYTHONPATH", "") if python == HERE else ""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), paths])}
    used = ["exported_use"] if to in SOURCE else []
    for script in ("exported", *used):
        done = subprocess.run(
            [python, "-W", "error", HELPERS / f"{script}.py", folder],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("to", NEEDS)
def test_exported_functions_equal_jax(to, found):
    for name in CASES:
        there = np.load(found(to) / name / "found.npz")
        _, _, wanted = expected(name)
        gradients = {x for x in wanted if x != "value"}
        chooses = np.issubdtype(wanted["value"].dtype, np.integer)
        if to == "onnx" or chooses:
            gradients = set()
        assert set(there) == {"value", *gradients}, name
        for key in there:
            a, b = there[key], np.asarray(wanted[key])
            assert a.shape == b.shape, (name, key)
            near = np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(b))
            assert near.all(), (name, key)


@pytest.mark.parametrize("to", SOURCE)
def test_exported_source_fits_a_page_and_is_safe_to_use(to, found):
    """Shapes, half precision, one element, types and the example: `exported_use.py`."""
    for name in CASES:
        text = (found(to) / name / f"{to}.py").read_text()
        assert max(map(len, text.splitlines())) <= 88
        assert text.startswith('"""')
        wrong = json.loads((found(to) / name / "wrong.json").read_text())
        assert len(wrong) >= 3, name
        assert {check: x for check, x in wrong.items() if x} == {}, name
