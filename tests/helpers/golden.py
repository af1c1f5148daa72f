"""The golden files: `python tests/helpers/golden.py` writes them again.

The artifact and the checkpoint are those of the present schemas. From the first tag on,
those of a schema that was released are never written again.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from metaevo import losses, spaces
from metaevo.storage import artifacts, checkpoint

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STATE = {
    "strategy": {"mean": np.arange(4, dtype=np.float32), "generation": np.int32(7)},
    "key": jax.random.key(3),
}
INPUTS = [[0.5, 1.0, 0.0], [-3.0, 2.0, 1.0], [40.0, -40.0, 0.0]]


def write_artifact(folder: Path) -> None:
    """Write a loss with its numbers off the start, and beside it some of its values."""
    space = spaces.replace(value_loss=losses.residual_network("zero", (8, 4)))
    keys = iter(jax.random.split(jax.random.key(0), 16))
    params = jax.tree.map(
        lambda x: x + 0.5 * jax.random.normal(next(keys), jnp.shape(x)),
        space.init(jax.random.key(1)),
    )
    spec = {**space.spec, "lr": {"op": "number"}}
    params |= {"lr": np.float32(0.0)}
    artifacts.save(folder, params, spec, {"lr": 0.00123}, {"search": "golden"})
    loaded = metaevo.load(folder)
    values = [float(loaded.value_loss(*x)) for x in INPUTS]
    facts = {"inputs": INPUTS, "values": values, "lr": 0.00123}
    folder.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def write_checkpoint(folder: Path) -> None:
    """Write `STATE` with what a run says of it."""
    facts = {"generation": 7, "failures": 0, "log_bytes": 1234}
    facts |= {"log_sha256": "0" * 64, "run_manifest": "0" * 64}
    checkpoint.write(folder, checkpoint.to_arrays(STATE), facts)


if __name__ == "__main__":
    write_artifact(GOLDEN / f"artifact-{artifacts.SCHEMA}")
    write_checkpoint(GOLDEN / f"checkpoint-{checkpoint.SCHEMA}")
