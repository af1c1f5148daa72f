"""Golden files: those of each schema load.

`python tests/helpers/golden.py` writes `tests/golden/checkpoint-N` and `artifact-N`,
where N is the present schema. With a new schema comes a new folder here. Those of a
schema that was released are never written again.
"""

import json
import shutil

import jax
import numpy as np
import pytest
from golden import GOLDEN, defaults, state

import metaevo
from benchmarks.reliability_artifacts import signed
from metaevo.errors import CheckpointError
from metaevo.storage import artifacts, checkpoint


def test_defaults_are_those_that_are_written_down():
    """A changed line changes what runs are: say so in `CHANGELOG.md`."""
    assert defaults() == (GOLDEN / "defaults.txt").read_text()


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
    found = checkpoint.from_arrays(jax.eval_shape(state), arrays)
    jax.tree.map(
        np.testing.assert_array_equal,
        checkpoint.to_arrays(found),
        checkpoint.to_arrays(state()),
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
