"""Artifacts: what another agent imports, and what is refused."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import metaevo
from inner_loops import ppo
from metaevo import closed_forms, critic_losses, losses, slots, spaces
from metaevo.errors import CheckpointError
from metaevo.storage import artifacts, checkpoint, manifests, verified

ROOT = Path(__file__).parents[2]
LOAD = ROOT / ".github" / "load_artifact.py"


def saved(path, base="zero", move=0.3):
    """A value loss away from its start, saved; returns its space and params."""
    space = spaces.replace(value_loss=losses.residual_network(base, (8, 4)))
    params = space.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + move, params)
    artifacts.save(path, params, space.spec, {}, {"search": "test"})
    return space, params


@pytest.fixture
def solution(tmp_path):
    saved(tmp_path / "solution")
    return tmp_path / "solution"


def test_it_can_be_jitted_differentiated_and_vmapped(solution):
    loss = metaevo.load(solution.parent).value_loss
    v = np.linspace(-50.0, 50.0, 7, dtype=np.float32)

    def one(v):
        return loss(v, 1.0, 0.0)

    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(one)))(v)
    whole, pull = jax.vjp(jax.jit(lambda v: one(v)), v)
    np.testing.assert_allclose(values, whole, rtol=1e-6)
    np.testing.assert_allclose(slopes, *pull(np.ones_like(v)), rtol=1e-5)
    inside = jax.jit(lambda loss, v: loss(v, 1.0, 0.0))
    np.testing.assert_allclose(inside(loss, v), whole, rtol=1e-6)


def test_the_tails_are_straight_lines(solution):
    loss = metaevo.load(solution).value_loss
    line = jax.jit(jax.vmap(jax.value_and_grad(lambda v: loss(v, 0.0, 0.0))))
    values, slopes = line(np.float32([29.999, 30.001, 100.0, 1e4, 1e6]))
    np.testing.assert_allclose(slopes[1:4], slopes[1], rtol=1e-5)
    assert np.isfinite(values).all()
    # No step where the line begins.
    np.testing.assert_allclose(values[0], values[1], 1e-3)


def test_loading_and_saving_need_no_function_of_posix(solution, tmp_path):
    """As on Windows: flags and functions are missing, and folders cannot be opened."""
    program = textwrap.dedent(
        f"""
        import os, pathlib, runpy, sys
        import jax, numpy, safetensors.numpy
        for name in ("O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY mkfifo fork getuid "
                     "sched_getaffinity statvfs fchmod").split():
            if hasattr(os, name):
                delattr(os, name)
        for name in "fcntl resource pwd grp termios".split():
            sys.modules[name] = None
        opened = os.open
        def open_file(path, flags, *rest, **others):
            if os.path.isdir(path):
                raise PermissionError(13, "Permission denied", path)
            return opened(path, flags, *rest, **others)
        os.open = open_file
        import metaevo
        from metaevo.storage import artifacts, verified
        loss = metaevo.load({str(solution)!r}).value_loss
        print(loss(1.0, 2.0, 0.0))
        folder = pathlib.Path({str(tmp_path / "a")!r})
        verified.write(folder, {{"x": numpy.ones(3)}}, {{}})
        print(verified.read(folder)[0]["x"].sum())
        runpy.run_path({str(LOAD)!r})
        """
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr
    assert "posix" in out.stdout


def test_an_unknown_slot_names_those_there_are(solution):
    with pytest.raises(AttributeError, match="no slot 'drift', but value_loss"):
        _ = metaevo.load(solution).drift


# --- properties -----------------------------------------------------------------------


def weighted(path, visited=(-1.5, 2.5), **settings):
    """A loss whose least error is 0.5 standard deviations, with the range it saw."""
    learned = critic_losses.weighted_square(features=(4,), max_bias=1.0, **settings)
    params = learned.init(jax.random.key(0)) | {"bias": jnp.arctanh(0.5)}
    ranges = {"value_loss": visited} if visited else {}
    space = spaces.replace(value_loss=learned)
    artifacts.save(path, {"value_loss": params}, space.spec, {}, {}, ranges)
    return metaevo.load(path)


def test_a_loaded_loss_says_what_holds_and_where_it_was_used(tmp_path):
    loaded = weighted(tmp_path / "x", convex=True)
    assert repr(loaded) == "Artifact(value_loss)"
    assert str(loaded).splitlines() == [
        "value_loss: critic_losses.weighted_square",
        "  guaranteed by construction: "
        "nonnegative, coercive, scale-equivariant, convex",
        "  least weight: 0.125",
        "  largest weight: 8",
        "  least at value - target = 0.5 return_std",
        "  visited in training: value - target from -1.5 to 2.5 return_std",
    ]
    recorded = loaded.manifest["properties"]["value_loss"]
    assert recorded["guarantees"][-1] == "convex"
    assert recorded["minimum"] == pytest.approx(0.5)
    assert recorded["visited"] == [-1.5, 2.5]
    assert recorded["unit"] == "return_std"


def test_errors_inside_the_visited_range_are_told_from_others(tmp_path):
    loaded = weighted(tmp_path / "x")
    error = jnp.array([[-3.1, -2.9], [4.9, 5.1]])
    expected = [[False, True], [True, False]]
    np.testing.assert_array_equal(loaded.inside(error, 2.0), expected)
    np.testing.assert_array_equal(
        loaded.inside(error, return_std=2.0, slot="value_loss"), expected
    )
    with pytest.raises(ValueError, match=r"return_std=targets\.std\(\)"):
        loaded.inside(error)
    with pytest.raises(ValueError, match=r"slot='drift': expected .*: value_loss"):
        loaded.inside(error, 2.0, slot="drift")
    with pytest.raises(ValueError, match="this artifact has none"):
        weighted(tmp_path / "y", visited=None).inside(error, 2.0)


def test_the_minimum_of_a_loss_without_guarantees_is_measured(tmp_path):
    learned = closed_forms.error_loss("square")
    params = learned.init(jax.random.key(0)) | {"tilt": jnp.float32(-0.75)}
    for name, visited in (("x", (-2.0, 2.0)), ("y", (-2.0, 0.5))):
        artifacts.save(
            tmp_path / name,
            {"value_loss": params},
            {"value_loss": learned.spec},
            {},
            {},
            {"value_loss": visited},
        )
    loaded = metaevo.load(tmp_path / "x")
    least = loaded.properties["value_loss"].minimum
    assert least == pytest.approx(0.75, abs=0.004)
    assert "guaranteed by construction: nothing" in str(loaded)
    assert "0.748 return, of the range visited" in str(loaded)
    # It may be lower still outside.
    falling = metaevo.load(tmp_path / "y")
    assert falling.properties["value_loss"].minimum == 0.5
    assert "at an end of the range visited, value - target = 0.5" in str(falling)
    np.testing.assert_array_equal(loaded.inside([-2.1, 1.9]), [False, True])


def test_an_artifact_of_before_has_its_guarantees_but_no_range(solution):
    edit(solution, lambda m: m.pop("properties"))
    loaded = metaevo.load(solution)
    known = loaded.properties["value_loss"]
    assert known.visited is None
    assert known.minimum is None
    assert "losses.residual_network" in loaded.describe()


def test_guarantees_are_not_taken_from_a_manifest(solution):
    edit(
        solution, lambda m: m["properties"]["value_loss"].update(guarantees=["convex"])
    )
    assert metaevo.load(solution).properties["value_loss"].guarantees == ()


def edit(solution, change):
    """Alters a manifest as an attacker would, who also signs it."""
    path = solution / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest["digest"] = verified.digest(manifest)
    path.write_text(json.dumps(manifest))


CHANGES = (
    lambda m: m["slots"]["value_loss"].update(op="os.system"),
    lambda m: m["slots"]["value_loss"].update(features=[10**9]),
    lambda m: m["slots"]["value_loss"].update(features="abc"),
    lambda m: m["slots"]["value_loss"].update(base="__import__"),
    lambda m: m["slots"]["value_loss"].update(extra=1),
    lambda m: m["slots"]["value_loss"].update(scale=0),
    lambda m: m["slots"]["value_loss"].update(scale=float("nan")),
    lambda m: m["slots"]["value_loss"].update(limit="x"),
    lambda m: m["slots"]["value_loss"].update(features=[8, 4.5]),
    lambda m: m["slots"]["value_loss"].update(features=[1] * 1000),
    lambda m: m["slots"]["value_loss"].pop("scale"),
    lambda m: m["properties"].update(value_loss=[1]),
    lambda m: m["properties"]["value_loss"].update(visited=[1, 0]),
    lambda m: m["properties"]["value_loss"].update(visited=["a", "b"]),
    lambda m: m["properties"]["value_loss"].update(visited=[0, float("inf")]),
    lambda m: m["properties"]["value_loss"].update(minimum=float("nan")),
    lambda m: m["slots"].update({"../evil": {"op": "number", "value": 1}}),
    lambda m: m["slots"].update({"lr": {"op": "number", "value": "x"}}),
    lambda m: m.update(slots=[1]),
    lambda m: m.update(artifact_schema=99),
    lambda m: m.update(schema=99),
    lambda m: m.update(sha256="0" * 64),
    lambda m: m.pop("arrays"),
)


def test_an_altered_manifest_is_refused(solution):
    path = solution / "manifest.json"
    whole = path.read_text()
    for number, change in enumerate(CHANGES):
        path.write_text(whole)
        edit(solution, change)
        with pytest.raises(metaevo.ArtifactError):
            pytest.fail(f"change {number} is loaded: {metaevo.load(solution)}")


ODD_NAMES = [
    "../../evil",
    "__class__",
    "_private",
    "class",
    "a.b",
    "a-b",
    "x;import os",
]
ODD_NAMES += ["a\x1b[31m", "a\nb", "x" * 65, "", "Lr", "1lr", "lr\n", "\u0430"]


def test_both_loaders_refuse_slots_that_are_no_plain_names(solution):
    """A caller writes attributes, arguments and files by the names of slots."""

    def refused_by(*loaders):
        for load in loaders:
            errors = (ValueError, metaevo.ArtifactError)
            with pytest.raises(errors, match="is not a plain name") as refused:
                load(solution)
            assert len(str(refused.value)) < 400

    metaevo.reference.load(solution)
    number = {"op": "number", "value": 1.0}
    for name in ODD_NAMES:
        edit(solution, lambda m, name=name: m["slots"].update({name: number}))
        refused_by(metaevo.load, metaevo.reference.load, artifacts.params)
        edit(solution, lambda m, name=name: m["slots"].pop(name))
        program = json.loads((solution / "manifest.json").read_text())["reference"]
        program = {name: program["value_loss"]}
        edit(solution, lambda m, program=program: m["reference"].update(program))
        refused_by(metaevo.reference.load)
        edit(solution, lambda m, name=name: m["reference"].pop(name))


PUBLISHED = {
    "/data/Jane Doe/x/y": ".../y",
    "a=C:\\Users\\Jane Doe\\x.npz": "a=.../x.npz",
    repr(["C:\\Users\\Jane Doe\\x.npz", 1]): "['.../x.npz', 1]",
    "C:/Users/Jane Doe/my x.npz": ".../my x.npz",
    "file:///home/me/x": ".../x",
    "file://C:/Users/me/x": ".../x",
    "\\\\server\\share\\jane": ".../jane",
    "/opt": ".../opt",
    "['/home/me/x', '/home/me/y']": "['.../x', '.../y']",
    "/data/a:/data/b/c.py:search": ".../c.py:search",
    "~/runs/x --y=~jane/z": ".../x --y=.../z",
    "/Doe, Jane": "~",
}
UNCHANGED = ("gymnax/CartPole-v1", "https://a.b/c/d", "a/Doe, Jane/b", ".../x")
UNCHANGED += ("(v - g)/s", "lambda x: x /2", "a // b", "x / y", "/")


def test_absolute_paths_are_cut_wherever_they_stand(monkeypatch):
    monkeypatch.setenv("HOME", "/Doe, Jane")
    for text, cut in (PUBLISHED | dict(zip(UNCHANGED, UNCHANGED, strict=True))).items():
        given = {text: [{text: (text,)}], "number": 1}
        assert manifests.published(given) == {cut: [{cut: [cut]}], "number": 1}


def test_no_folder_of_the_machine_is_in_an_artifact(tmp_path):
    home = str(tmp_path / "home" / "me")
    run = {
        "changes": [f"run.directory={home}/runs/a", f"data={home}/x.npz", "env=a/b-v1"],
        "run": {"start_from": f"{home}/old", "directory": None},
        "xla_flags": f"--xla_dump_to={home}/dump --xla_foo=1",
        "sources": {f"{home}/search.py": "0"},
    }
    slot = {"lr": {"op": "number"}}
    artifacts.save(tmp_path / "a", {"lr": np.float32(1)}, slot, {"lr": 1}, {"run": run})
    for path in (tmp_path / "a").iterdir():
        assert home.encode() not in path.read_bytes(), path
    held = metaevo.load(tmp_path / "a").manifest["provenance"]["run"]
    assert held["changes"] == ["data=.../x.npz", "env=a/b-v1"]
    assert held["xla_flags"] == "--xla_dump_to=.../dump --xla_foo=1"


def test_a_manifest_altered_by_accident_is_refused(solution):
    path = solution / "manifest.json"
    path.write_text(path.read_text().replace('"scale": 10.0', '"scale": 30.0'))
    with pytest.raises(metaevo.ArtifactError, match="digest"):
        metaevo.load(solution)


def test_an_artifact_knows_the_clip_that_it_evolved_with(tmp_path):
    space, params = saved(tmp_path / "x", "clipped_square")
    meta = ppo.Meta(clip_eps=0.5)
    spec = artifacts.complete(space.spec, meta, meta)
    artifacts.save(tmp_path / "y", params, spec, {}, {})
    searched = space.bind(params, meta).value_loss
    context = slots.Context(stats={"clip_eps": 0.5})
    given = np.float32([np.linspace(-2, 2, 9), np.ones(9), np.zeros(9)])
    expected = jax.jit(searched)(*given, context)
    loaded = jax.jit(metaevo.load(tmp_path / "y").value_loss)
    np.testing.assert_array_equal(loaded(*given), expected)
    partial = slots.Context(progress=0.5)
    np.testing.assert_array_equal(loaded(*given, partial), expected)


def test_every_flipped_bit_and_every_truncation_is_refused(solution):
    path = solution / "arrays.safetensors"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(50):
        hurt = bytearray(data)
        hurt[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(hurt)
        with pytest.raises(metaevo.ArtifactError):
            metaevo.load(solution)
        path.write_bytes(data[: rng.integers(len(data))])
        with pytest.raises(metaevo.ArtifactError):
            metaevo.load(solution)
    path.write_bytes(data)
    assert metaevo.load(solution).value_loss


def test_the_example_agent_learns_with_an_evolved_loss(tmp_path):
    """`examples/plain_ppo.py` shares no code with metaevo but the three lines."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import plain_ppo
    finally:
        sys.path.pop(0)
    # The residual start is the squared error to the last bit of what PPO uses.
    saved(tmp_path / "square", "square", move=0.0)
    evolved = plain_ppo.main(tmp_path / "square", num_updates=60, num_seeds=2)
    assert evolved.mean() > 60.0


def test_the_example_critic_learns_with_an_evolved_loss(solution, tmp_path):
    """`examples/flax_critic.py`: the same as the squared error where the loss is it."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import flax_critic
    finally:
        sys.path.pop(0)
    saved(tmp_path / "square", "square", move=0.0)
    plain = flax_critic.main(num_steps=100)
    assert plain < 3.0
    same = flax_critic.main(tmp_path / "square", num_steps=100)
    np.testing.assert_allclose(same, plain, rtol=1e-3)
    assert flax_critic.main(solution, num_steps=100) != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_errors_of_a_broken_manifest_are_one_line(solution, text):
    (solution / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        checkpoint.read(solution)
    assert "\n" not in str(error.value)
    with pytest.raises(metaevo.ArtifactError):
        metaevo.load(solution)
