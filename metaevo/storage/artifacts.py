"""Artifacts: what a search discovered, as weights and plain data.

    import metaevo
    loss = metaevo.load("runs/.../solution").value_loss
    loss(value, target, old_value).mean()

An artifact is a folder with `arrays.safetensors` (the evolved numbers),
`manifest.json` (for each slot the name and the settings of an operation of
`metaevo.learned.operations`, and the evidence of its run) and `README.md`, a card that
says the same to readers. Nothing is pickled. Operations are looked up in the modules of
metaevo and in those that installed packages declare. For others the manifest says where
they are from, see `sources` and `stored_functions`.
Loading needs jax, numpy and safetensors alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaevo import schedules, slots
from metaevo.errors import ArtifactError, CheckpointError, ConfigError
from metaevo.learned import operations
from metaevo.portable import properties
from metaevo.portable.properties import Properties
from metaevo.storage import (
    card,
    loaded,
    manifests,
    nearby,
    sources,
    stored_functions,
    verified,
)
from metaevo.types import Params, Space

SCHEMA = 1
MAX_SLOTS = 64


class Artifact:
    """Evolved slots by name: functions as `jax.tree_util.Partial`s, numbers as floats.

    A number that changes over a lifetime is a function of a `metaevo.slots.Context`,
    of which it reads `progress`.

    Printed, it describes each slot: what its family guarantees, where a loss is least,
    and the range of inputs that was visited in training; and the evidence of its run:
    verdicts, scores on held-out seeds, cost and origin. A notebook shows it as a card.

    Attributes:
        slots: slot name -> function or number.
        manifest: settings and provenance.
        properties: slot name -> `storage.properties.Properties`, of functions.
    """

    def __init__(
        self,
        slots: Mapping[str, Any],
        manifest: Mapping[str, Any],
        properties: Mapping[str, Properties],
    ):
        self.slots, self.manifest = dict(slots), dict(manifest)
        self.properties = dict(properties)

    def __getattr__(self, name: str) -> Any:
        slots = self.__dict__.get("slots", {})
        if name not in slots:
            raise AttributeError(
                f"this artifact has no slot {name!r}, but {', '.join(sorted(slots))}"
            )
        return slots[name]

    def __repr__(self) -> str:
        return f"Artifact({', '.join(sorted(self.slots))})"

    def __str__(self) -> str:
        return self.describe()

    def _repr_markdown_(self) -> str:
        return card.markdown(self.manifest, self.properties)

    def describe(self) -> str:
        """A description of each slot and of the evidence, several lines of text."""
        lines = []
        for name, value in sorted(self.slots.items()):
            known = self.properties.get(name)
            if known is None:
                lines.append(f"{name}: {value:.6g}")
            else:
                lines.append(f"{name}: {known.title}")
                lines += [f"  {line}" for line in known.lines()]
        return "\n".join([*lines, *card.lines(self.manifest)])

    def inside(
        self, error: Any, return_std: Any = None, *, slot: str | None = None
    ) -> np.ndarray:
        """True where errors lie in the range that a critic's loss saw in training.

        The range is the mean ± 2 standard deviations of value - target, over agents
        that trained with the solution on held-out seeds.

        Args:
            error: value - target, any shape.
            return_std: standard deviation of the value targets, a scalar; needed by a
                loss that measures errors in it.
            slot: the slot; None: the only one with such a range.

        Returns:
            bools of the shape of `error`.

        Raises:
            ValueError: no range is known, several are, or `return_std` is missing.
        """
        name = properties.where(self.properties, slot)
        return properties.inside(self.properties[name], error, return_std)


def save(
    path: str | Path,
    params: Params,
    spec: Mapping[str, Mapping],
    values: Mapping[str, float],
    provenance: Mapping[str, Any],
    visited: Mapping[str, tuple[float, float]] | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Save a solution.

    Args:
        params: {slot: pytree of nested dicts of arrays}.
        spec: `Space.spec`.
        values: what number slots come to once bound, by slot.
        provenance: plain data: which search, seed, versions, configuration. Absolute
            paths in it are cut to their last names.
        visited: slot -> range of value - target in training, in the unit of
            `properties.unit`.
        evidence: plain data as `card` describes it; None: none.
    """
    arrays = {name: np.asarray(x) for name, x in _named(params).items()}
    slots = {
        name: {**op, "value": float(values[name])} if op["op"] == "number" else dict(op)
        for name, op in spec.items()
    }
    manifest = {
        "artifact_schema": SCHEMA,
        "slots": slots,
        "properties": {
            name: properties.record(op, params[name], (visited or {}).get(name))
            for name, op in spec.items()
            if op["op"] != "number"
        },
        "reference": _references(params, spec),
        **({"sources": origins} if (origins := sources.record(spec)) else {}),
        "provenance": manifests.published(provenance),
        **({} if evidence is None else {"evidence": dict(evidence)}),
    }
    known = _properties(params, manifest)
    verified.write(Path(path), arrays, manifest, card.markdown(manifest, known))


def _properties(params: Params, manifest: Mapping[str, Any]) -> dict[str, Properties]:
    """The properties of an artifact's functions, by slot."""
    recorded = manifest.get("properties", {})
    return {
        name: properties.of(op, params[name], recorded.get(name))
        for name, op in manifest["slots"].items()
        if op["op"] != "number"
    }


def _references(params: Params, spec: Mapping[str, Mapping]) -> dict[str, Any]:
    """The programs of `numpy_reference`, by slot, for slots that have one."""
    from metaevo.portable import slopes

    unknown = (ArtifactError, NotImplementedError, ValueError, TypeError)
    found = {}
    for name, op in spec.items():
        # A solution without a reference is still a solution.
        if op["op"] != "number":
            with contextlib.suppress(*unknown):
                found[name] = slopes.describe(name, op, _operation(op), params[name])
    return found


def complete(spec: Mapping[str, Mapping], meta: Any, default: Any) -> dict[str, dict]:
    """`spec` with settings of the algorithm in which each slot evolved.

    PPO's hand-made value loss clips by the policy's own ε. A schedule moves a number
    away from its default.

    Args:
        meta: the slots, with the space's own bound.
        default: the slots of the hand-made algorithm.

    Raises:
        ConfigError: an artifact cannot hold it.
    """
    completed = {name: dict(op) for name, op in spec.items()}
    for name, op in completed.items():
        for setting in ("clip_eps", "gamma"):
            number = getattr(meta, setting, None)
            if setting in op and isinstance(number, int | float | jax.Array):
                op[setting] = float(number)
        if "default" in op:
            op["default"] = schedules.plain(getattr(default, name))
    return completed


def check(params: Params, spec: Mapping[str, Mapping]) -> None:
    """Check that a space's solutions can be saved and loaded again.

    Args:
        params: shapes, from `jax.eval_shape(space.init, key)`.
        spec: `Space.spec`.

    Raises:
        ConfigError: they cannot; the message gives the reason.
    """
    try:
        arrays = {
            name: np.zeros(x.shape, x.dtype) for name, x in _named(params).items()
        }
        for name, op in spec.items():
            verified.check_slot(name)
            if op["op"] != "number":
                _build(op, _subtree(arrays, name))
    except (ArtifactError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"this space's solutions could not be saved: {error}; its params must be "
            "nested dicts by slot, and its operations of metaevo.learned.operations: "
            f"{', '.join(sorted(operations.everything()))}"
        ) from None


def _named(params: Params) -> dict[str, Any]:
    """Leaves of nested dicts by path, `slot/part/...`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not all(hasattr(key, "key") for path, _ in leaves for key in path):
        raise TypeError("params are not nested dicts")
    return {"/".join(str(key.key) for key in path): x for path, x in leaves}


def load(path: str | Path, *, trust: bool = False) -> Artifact:
    """Load an artifact.

    A function that is neither metaevo's nor an installed package's is imported from
    where its run had it, if this user started the run here, or with `trust`, and its
    source file is unchanged. Else it runs by the program in the artifact.

    Args:
        path: the `solution` folder of a run, the run's folder, or `zoo:NAME` for one
            that is installed with metaevo.
        trust: True imports modules that the artifact names, as Python finds them here.

    Returns:
        the evolved slots as attributes. A function takes the slot's inputs, and
        `context` as a last argument. The context is optional unless the manifest says
        `temporal`: such a function raises without one. A function can be jitted,
        differentiated and vmapped. Its inputs have one shape, or are scalars: it raises
        ValueError otherwise, when it is traced (`storage.loaded`).

    Raises:
        ArtifactError: there is none at `path`, or it fails verification.
        NotImportedError: a function's source is not here, and it has no program.
    """
    return _loaded(path, trust)[0]


def _loaded(path: str | Path, trust: bool = False) -> tuple[Artifact, Params]:
    """An artifact, and its evolved numbers."""
    params, manifest = _read(path)
    with _refused_if_malformed(path):
        folder = verified.artifact_folder(path)
        manifest = stored_functions.resolved(folder, manifest, trust)
        slots = {
            name: loaded.checked(name, op, _build(op, params[name]))
            for name, op in manifest["slots"].items()
        }
        return Artifact(slots, manifest, _properties(params, manifest)), params


def as_space(path: str | Path) -> tuple[Space, Params]:
    """An artifact as a space and its one member, to train with or to start from.

    Numbers are params too: artifacts of one kind share the space.

    Raises:
        ArtifactError: as `load`.
    """
    artifact, params = _loaded(path)
    spec = {
        name: {key: x for key, x in op.items() if key != "value"}
        for name, op in artifact.manifest["slots"].items()
    }
    numbers = {name for name, op in spec.items() if op["op"] == "number"}
    params = params | {name: np.float32(artifact.slots[name]) for name in numbers}
    functions = {
        name: _operation(op) for name, op in spec.items() if name not in numbers
    }

    def bind(params, meta):
        bound = {name: f.bind(params[name]) for name, f in functions.items()}
        return slots.replace(meta, **bound, **{n: params[n] for n in numbers})

    return Space(lambda key: params, bind, spec=spec), params


def params(path: str | Path) -> Params:
    """The evolved numbers of an artifact, as the space had them that it came from.

    Raises:
        ArtifactError: as `load`.
    """
    return _read(path)[0]


_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError)


@contextlib.contextmanager
def _refused_if_malformed(path: str | Path) -> Iterator[None]:
    """Name the artifact that cannot be read.

    Raises:
        ArtifactError: it cannot.
    """
    try:
        yield
    except CheckpointError as error:
        raise ArtifactError(str(error)) from None
    except _MALFORMED as error:
        raise ArtifactError(f"{path}: {type(error).__name__}: {error}") from None


def _read(path: str | Path) -> tuple[dict[str, Any], dict]:
    """The evolved numbers of an artifact by slot, and its manifest; verified."""
    given, path = path, verified.artifact_folder(path)
    if not (path / "manifest.json").exists():
        raise ArtifactError(_no_artifact(given))
    if not (path / verified.FILES[0]).exists() and nearby.is_run(path):
        raise ArtifactError(
            f"{given}: a run that has no artifact yet (no solution/); finish it with: "
            f"metaevo resume {given}"
        )
    with _refused_if_malformed(path):
        arrays, manifest = verified.read(path, verified.MAX_ARTIFACT)
        schema = manifest.get("artifact_schema")
        if schema != SCHEMA:
            newer = isinstance(schema, int) and schema > SCHEMA
            raise ArtifactError(
                f"{path}: schema {schema} is newer than this metaevo's {SCHEMA}: "
                "update metaevo"
                if newer
                else f"{path}: not an artifact of a schema up to {SCHEMA}"
            )
        if len(manifest["slots"]) > MAX_SLOTS:
            raise ArtifactError(f"{path}: more than {MAX_SLOTS} slots")
        for name in manifest["slots"]:
            verified.check_slot(name)
        return {name: _subtree(arrays, name) for name in manifest["slots"]}, manifest


def _no_artifact(path: str | Path) -> str:
    """Return the message that there is no artifact, with what may be meant."""
    path = Path(path)
    if path.is_file():
        ours = path.name in (*verified.FILES, verified.CARD)
        folder = f", here {path.parent}" if ours else ""
        return f"{path}: a file, and no artifact; give the folder of one{folder}"
    text = f"{path}: no artifact here (no manifest.json)"
    if inside := nearby.hint(path):
        return f"{text}; {inside}; give one of them"
    known = path.name in verified.zoo()
    return f"{text}. Did you mean {verified.ZOO_PREFIX}{path.name}?" if known else text


def _operation(op: Mapping[str, Any]) -> Any:
    """The function, without its parameters, that an entry of a manifest describes."""
    return operations.get(op["op"]).rebuild(op)


_UNFIT = "{kind}: its arrays do not fit its settings"


def _build(op: Mapping[str, Any], params: Params) -> Any:
    kind = op["op"]
    if kind == "number":
        return float(op["value"])
    if kind.startswith(operations.STORED):
        # It would make arrays of the shapes that its settings say.
        held = {x: [list(y.shape), str(y.dtype)] for x, y in _named(params).items()}
        if held != op["arrays"]:
            raise ArtifactError(_UNFIT.format(kind=kind[:80]))
    learned = _operation(op)
    expected = jax.eval_shape(learned.init, jax.random.key(0))
    same = jax.tree.structure(expected) == jax.tree.structure(params) and all(
        a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(params), strict=True)
    )
    if not same:
        raise ArtifactError(_UNFIT.format(kind=kind))
    return learned.bind(jax.tree.map(jax.numpy.asarray, params))


def _subtree(arrays: Mapping[str, np.ndarray], slot: str) -> Params:
    """The nested dict of the arrays `slot/...`, or the array `slot` itself."""
    if slot in arrays:
        return arrays[slot]
    tree: dict[str, Any] = {}
    for name, x in arrays.items():
        first, *path = name.split("/")
        if first == slot:
            node = tree
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = x
    return tree
