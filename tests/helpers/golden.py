"""The golden files: `python tests/helpers/golden.py` writes them again.

`defaults.txt` holds what a search, an inner loop, a strategy or a learned function does
where nothing else is given. A run is known by what differs from that, so a line that
changes changes what runs are.

`messages.txt` holds wrong command lines and what they print; see `messages.py`.

The artifact and the checkpoint are those of the present schemas. From the first tag on,
those of a schema that was released are never written again.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import messages
import numpy as np

import metaevo
from metaevo import losses, spaces
from metaevo.cli import listing
from metaevo.engine import identity
from metaevo.evaluators import devices
from metaevo.learned import operations
from metaevo.storage import artifacts, checkpoint
from metaevo.types import arguments

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
INPUTS = [[0.5, 1.0, 0.0], [-3.0, 2.0, 1.0], [40.0, -40.0, 0.0]]


def state() -> dict[str, Any]:
    """Return what the checkpoint holds."""
    mean = np.arange(4, dtype=np.float32)
    strategy = {"mean": mean, "generation": np.int32(7)}
    return {"strategy": strategy, "key": jax.random.key(3)}


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
    """Write `state()` with what a run says of it."""
    facts = {"generation": 7, "failures": 0, "log_bytes": 1234}
    facts |= {"log_sha256": "0" * 64, "run_manifest": "0" * 64}
    checkpoint.write(folder, checkpoint.to_arrays(state()), facts)


def defaults() -> str:
    """Return the default of each setting as plain data, one a line."""
    functions = {
        f"{package}.{name}": getattr(importlib.import_module(f"{package}.{name}"), made)
        for package, made in (("searches", "search"), ("inner_loops", "make"))
        for name in listing.modules(package)
    }
    for name in listing.modules("strategies"):
        path = f"strategies.{name}"
        functions[path] = getattr(importlib.import_module(path), name)
    operators = operations.everything().items()
    functions |= {f"operations.{name}": one.build for name, one in operators}
    lines = [
        f"{key} = {value}"
        for name, function in functions.items()
        for key, value in _flat(name, identity.plain(arguments(function)))
    ]
    return "\n".join([*sorted(lines), ""])


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value.keys() == {"function", "values"}:
        # Names of what an optimizer consists of depend on optax.
        numbers = [x for x in value["values"] if not isinstance(x, str)]
        yield name, json.dumps([value["function"], *numbers])
    elif isinstance(value, dict) and value:
        for key, x in value.items():
            yield from _flat(f"{name}.{key}", x)
    else:
        yield name, json.dumps(value)


if __name__ == "__main__":
    devices.configure()  # before JAX runs, which messages would say
    write_artifact(GOLDEN / f"artifact-{artifacts.SCHEMA}")
    write_checkpoint(GOLDEN / f"checkpoint-{checkpoint.SCHEMA}")
    (GOLDEN / "defaults.txt").write_text(defaults())
    messages.write()
