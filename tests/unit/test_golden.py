"""Files of each schema that was ever written: what is old still loads.

`tests/golden/checkpoint-N` and `artifact-N` were written by the metaevo of that schema;
they are never written again. With a new schema comes a new folder here.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import metaevo
from benchmarks.reliability_artifacts import signed
from metaevo.errors import CheckpointError
from metaevo.storage import artifacts, checkpoint
from metaevo.types import InnerState

GOLDEN = Path(__file__).parents[1] / "golden"
STATE = {
    "strategy": {"mean": np.arange(4, dtype=np.float32), "generation": np.int32(7)},
    "key": jax.random.key(3),
}


def test_there_is_one_of_each_schema():
    for kind, newest in (("checkpoint", checkpoint.SCHEMA), ("artifact", 1)):
        folders = [p for p in GOLDEN.glob(f"{kind}-*") if p.is_dir()]
        numbers = sorted(int(p.name.split("-")[1]) for p in folders)
        assert numbers == list(range(1, newest + 1))
    assert artifacts.SCHEMA == 1


@pytest.mark.parametrize("schema", range(1, checkpoint.SCHEMA + 1))
def test_a_checkpoint_of_every_schema_loads(schema):
    arrays, manifest = checkpoint.read(GOLDEN / f"checkpoint-{schema}")
    assert manifest["generation"] == 7
    assert manifest["log_bytes"] == 1234
    found = checkpoint.from_arrays(jax.eval_shape(lambda: STATE), arrays)
    jax.tree.map(
        np.testing.assert_array_equal,
        checkpoint.to_arrays(found),
        checkpoint.to_arrays(STATE),
    )


@pytest.mark.parametrize("schema", range(1, artifacts.SCHEMA + 1))
def test_an_artifact_of_every_schema_loads_and_gives_its_values(schema):
    loaded = metaevo.load(GOLDEN / f"artifact-{schema}")
    expected = json.loads((GOLDEN / f"artifact-{schema}.json").read_text())
    values = [float(loaded.value_loss(*x)) for x in expected["inputs"]]
    np.testing.assert_allclose(values, expected["values"], rtol=1e-5)
    assert loaded.lr == pytest.approx(expected["lr"])


def test_what_is_newer_is_refused_and_says_what_to_do(tmp_path):
    shutil.copytree(GOLDEN / "checkpoint-1", tmp_path / "checkpoint")
    signed(tmp_path / "checkpoint", lambda manifest: manifest.update(schema=99))
    with pytest.raises(CheckpointError, match=r"newer.*update metaevo"):
        checkpoint.read(tmp_path / "checkpoint")
    for key in ("schema", "artifact_schema"):
        shutil.copytree(GOLDEN / "artifact-1", tmp_path / key)
        signed(tmp_path / key, lambda manifest, key=key: manifest.update({key: 99}))
        with pytest.raises(metaevo.ArtifactError, match=r"newer.*update metaevo"):
            metaevo.load(tmp_path / key)


def test_a_state_of_0_1_loads_with_renamed_and_added_fields():
    """Version 0.1 called `steps_since_birth` `own`; recurrent PPO kept no `stats`."""

    class Experience(NamedTuple):
        steps_since_birth: Any

    class Agent(NamedTuple):
        params: Any
        stats: Any

    stats = dict.fromkeys(("entropy", "kl", "clip_fraction"), np.zeros(2, np.float32))
    agent = Agent({"own": np.ones(3, np.float32)}, stats)
    state = InnerState(agent, Experience(np.int32(5)))
    new = checkpoint.to_arrays([state])
    old = {
        path.replace(".steps_since_birth", ".own"): x
        for path, x in new.items()
        if ".stats" not in path
    }
    assert len(old) == 2
    for arrays in (old, new):
        found = checkpoint.from_arrays([state], arrays)
        jax.tree.map(np.testing.assert_array_equal, found, [state])
    del old["[0].experience.own"]
    with pytest.raises(CheckpointError, match=r"lacks.*steps_since_birth"):
        checkpoint.from_arrays([state], old)
