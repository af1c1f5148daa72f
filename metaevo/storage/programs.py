"""Functions that run by the program in their artifact, without their source.

The manifest of an artifact holds each function as a list of elementary operations,
`tracing`. Here JAX carries them out as a function that fits the slot, and can be
jitted, vmapped and differentiated. It is an operation of its own, `stored:SLOT:TITLE`,
whose settings hold the program. An artifact that is saved with it needs no source.

Autodiff sees the operations alone. A gradient that the source defined by
`jax.custom_jvp` or `jax.custom_vjp` is lost, but for that of `jax.nn.relu` (`slopes`).
"""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.errors import ArtifactError
from metaevo.learned import functions, optimizers
from metaevo.learned.functions import Learned
from metaevo.learned.operations import STORED, Operation
from metaevo.learned.optimizers import LearnedOptimizer
from metaevo.portable import jax_operations
from metaevo.slots import Context
from metaevo.storage import sources
from metaevo.storage.numpy_reference import check_program

__all__ = ["operation"]


# --- the operation --------------------------------------------------------------------


@functools.cache
def operation(name: str) -> Operation:
    """The operation `stored:SLOT:TITLE`.

    Raises:
        ArtifactError: there is no such kind of slot.
    """
    kind, _, title = name.removeprefix(STORED).partition(":")
    if kind not in slots.SIGNATURES or not sources.is_title(title):
        raise ArtifactError(f"unknown operation {name[:80]!r}")

    def build(program, arrays, reads, temporal=False):
        spec = {"op": name, "program": program, "arrays": arrays, "reads": reads}
        spec |= {"temporal": True} if temporal else {}
        return _learned(kind, program, arrays, tuple(reads), bool(temporal), spec)

    def shapes(op):
        program, names = op["program"].get("value"), slots.SIGNATURES[kind]
        given = program["shapes"][len(op["arrays"]) :] if program else ()
        # Scalars of the context come after the slot's inputs.
        return dict(zip(names, map(tuple, given), strict=False))

    module, _, function = title.rpartition(".")
    build.__module__, build.__name__ = module or "stored", function
    settings = frozenset({"program", "arrays", "reads"})
    return Operation(
        name,
        kind,
        build,
        settings,
        frozenset({"temporal"}),
        shapes=shapes,
        reads=lambda op: tuple(op["reads"]),
    )


def _learned(
    kind: str,
    program: Mapping[str, Any],
    arrays: Mapping[str, Sequence],
    reads: tuple[str, ...],
    temporal: bool,
    spec: Mapping[str, Any],
) -> Learned | LearnedOptimizer:
    """The function of a program.

    Raises:
        ArtifactError: the program is malformed.
        NotImplementedError: its inputs are of shapes that no function of its kind has.
    """
    part = "step" if kind == "optimizer" else "value"
    seen = (*reads, *(["progress"] if temporal else []))
    try:
        leaves = [
            jax.ShapeDtypeStruct(tuple(map(int, shape)), np.dtype(dtype))
            for shape, dtype in arrays.values()
        ]
        names, kept = [*program["inputs"]], program.get("state", {})
        if kind == "optimizer":
            sound = {*kept, "progress", *_OPTIMIZERS_INPUTS} >= {*names}
            sound &= program["outputs"] == ["direction", *kept]
            sound &= all(x.isidentifier() and x != "seed" for x in kept)
        else:
            sound = names == [*slots.SIGNATURES[kind], *seen]
            sound &= all(map(sources.is_name, seen))
        if not sound or len({*names}) < len(names):
            raise ValueError("its inputs are not those of its slot")
        check_program(program[part])
        _check_settings(program[part])
        _check_runs(program[part], leaves, [kept.get(name) for name in names])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        # The error may hold a stranger's text.
        raise ArtifactError(
            f"a stored program is malformed ({type(error).__name__})"
        ) from None

    def init(key):
        del key
        return _nested(
            arrays, [jnp.asarray(np.zeros(x.shape, x.dtype)) for x in leaves]
        )

    def given(params):
        return _flat(arrays, params)

    if kind == "optimizer":
        return _optimizer(program, given, init, spec)
    shapes = [tuple(x) for x in program["value"]["shapes"][len(leaves) :]]
    shapes = shapes[: len(slots.SIGNATURES[kind])]
    if any(x in shape[1:] for shape in shapes for x in ("n",)):
        raise NotImplementedError("elements are not the first axis of an input")
    apply = _function(kind, program["value"], given, shapes, seen)
    return Learned(init, apply, spec)


def _check_runs(
    program: Mapping[str, Any], leaves: Sequence[Any], kept: Sequence[Any]
) -> None:
    """Trace a program, of three elements, and compute nothing.

    Args:
        program: values, or a step.
        leaves: shapes of the parameters.
        kept: for each input what an optimizer keeps of it, or None.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it cannot be carried out.
    """
    sizes = {"n": 3, "a": 2}
    shapes = program["shapes"][len(leaves) :]
    inputs = [
        jax.ShapeDtypeStruct(
            tuple(sizes.get(x, x) for x in shape),
            jnp.float32 if state is None else _kind(state["type"]),
        )
        for shape, state in zip(shapes, kept, strict=True)
    ]
    jax.eval_shape(
        lambda *x: jax_operations.run(program, x, jnp.float32), *leaves, *inputs
    )


def _check_settings(program: Mapping[str, Any]) -> None:
    """Check that settings are integers, sizes that stay open, or names of types.

    An exported file has them in its source.

    Raises:
        ValueError: another one is there.
    """

    def is_plain(x):
        if isinstance(x, list):
            return all(map(is_plain, x))
        return isinstance(x, int) or x in ("n", "a")

    for name, _, _, settings in program["equations"]:
        for key, x in settings.items():
            if key == "program":
                _check_settings(x)
            # `check_program` knows the types.
            elif key not in ("type", "to") and not is_plain(x):
                raise ValueError(f"{name}: a setting {key} that is no size")


def _nested(arrays: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
    """Leaves as nested dicts, by their names; a nameless one is the whole."""
    if list(arrays) == [""]:
        return leaves[0]
    tree: dict[str, Any] = {}
    for name, x in zip(arrays, leaves, strict=True):
        *path, last = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = x
    return tree


def _flat(arrays: Mapping[str, Any], params: Any) -> list:
    """The inverse of `_nested`, in the order of the program's inputs."""
    if list(arrays) == [""]:
        return [params]
    return [
        functools.reduce(lambda node, part: node[part], name.split("/"), params)
        for name in arrays
    ]


def _floats(*values: Any) -> Any:
    """The type in which to compute with some numbers: that of the widest float."""
    floats = [x for x in values if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    return jnp.result_type(float) if not floats else jnp.result_type(*floats)


# --- a function -----------------------------------------------------------------------


def _function(
    kind: str,
    program: Mapping[str, Any],
    flat: Callable[[Any], list],
    shapes: Sequence[tuple],
    seen: Sequence[str],
) -> Callable:
    """`(params, *inputs of the slot, context) -> values`, any leading axes.

    Args:
        kind: kind of slot.
        program: its values.
        flat: `params -> leaves`.
        shapes: of its inputs; "n" and "a" are open.
        seen: scalars that it reads of the context.
    """
    names = slots.SIGNATURES[kind]
    parameters = [inspect.Parameter("params", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in names
    ]
    if kind not in slots.WITHOUT_CONTEXT:
        parameters.append(
            inspect.Parameter(
                "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None
            )
        )
    signature = inspect.Signature(parameters)

    def apply(*args, **named):
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        params, *inputs = bound.args
        context = None if kind in slots.WITHOUT_CONTEXT else inputs.pop()
        scalars = [_scalar(name, context) for name in seen]
        leaves = flat(params)
        dtype = _floats(*leaves, *inputs)
        inputs = [jnp.asarray(x) for x in inputs]
        inputs = [
            x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(dtype)
            for x in inputs
        ]
        arrays, leading = _batched(shapes, inputs, kind in slots.OVER_TIME)
        (found,) = jax_operations.run(program, [*leaves, *arrays, *scalars], dtype)
        if leading is None:
            return found
        own = 2 if kind in slots.OVER_TIME else 1
        return found.reshape((*leading, *found.shape[own:]))

    apply.__dict__["__signature__"] = signature
    return apply


def _batched(
    shapes: Sequence[tuple], inputs: Sequence[jax.Array], over_time: bool
) -> tuple[list[jax.Array], tuple | None]:
    """Inputs as the program takes them, and the axes that they had in place of its own.

    A program is over elements, its first axis; over time also over trajectories, its
    second. A slot's function takes any leading axes there, or none.
    """
    axes = 2 if over_time else 1
    open_ = [len(shape) >= axes and shape[0] == "n" for shape in shapes]
    if not any(open_):
        return list(inputs), None
    rests = [len(shape) - axes for shape in shapes]
    leading = jnp.broadcast_shapes(
        *(
            x.shape[: x.ndim - rest]
            for x, rest, is_open in zip(inputs, rests, open_, strict=True)
            if is_open
        )
    )
    arrays = []
    for x, rest, is_open in zip(inputs, rests, open_, strict=True):
        if is_open:
            own = x.shape[x.ndim - rest :]
            x = jnp.broadcast_to(x, (*leading, *own))
            first = (leading[0], -1) if over_time else (-1,)
            x = x.reshape((*first, *own))
        arrays.append(x)
    return arrays, leading


def _scalar(name: str, context: Context | None) -> Any:
    """A number that a function reads of its context.

    Raises:
        ValueError: there is no context, or it does not have the number.
    """
    if name == "progress":
        return functions.progress(context)
    if name == "return_std":
        return functions.return_std(context)
    if context is None or name not in context.stats:
        raise ValueError(
            f"this function reads {name}: call it with "
            f"context=metaevo.Context(stats={{{name!r}: ...}})"
        )
    return jnp.asarray(context.stats[name], jnp.result_type(float))


# --- an optimizer ---------------------------------------------------------------------

_OPTIMIZERS_INPUTS = ("gradient", "params", "layer", "noise")


def _optimizer(
    described: Mapping[str, Any],
    flat: Callable[[Any], list],
    init: Callable,
    spec: Mapping[str, Any],
) -> LearnedOptimizer:
    """The optimizer of a program of one array of the agent."""
    names, kept = described["inputs"], described["state"]
    extra = tuple(name for name in ("layer", "noise") if name in names)

    memory_type: Any = collections.namedtuple("Memory", (*kept, "seed"))

    def start(agent):
        def array(x, shape, type, start):
            sizes = [x.size if size == "n" else size for size in shape]
            return jnp.full(sizes, start, _kind(type))

        arrays = {
            name: jax.tree.map(lambda x, it=it: array(x, **it), agent)
            for name, it in kept.items()
        }
        return memory_type(**arrays, seed=optimizers.bits(agent))

    def update(params, gradient, state, agent, context=None, layer=None, noise=None):
        structure = jax.tree.structure(agent)
        seed = state.seed
        if layer is None:
            layer = optimizers.depths(agent)
        if "noise" in extra and noise is None:
            if "count" in kept:
                count = jax.tree.leaves(state.count)[0] + 1
            else:
                count, seed = jnp.int32(0), seed + 1
            noise = optimizers.normal(agent, seed, count)
        progress = functions.progress(context) if "progress" in names else None
        trees = {"gradient": gradient, "params": agent, "layer": layer}
        trees |= {"noise": agent if noise is None else noise}
        trees |= {name: getattr(state, name) for name in kept}
        leaves = flat(params)
        columns = [structure.flatten_up_to(tree) for tree in trees.values()]
        made = []
        for values in zip(*columns, strict=True):
            known: dict[str, Any] = dict(zip(trees, values, strict=True))
            known["progress"] = progress
            known |= {x: jnp.ravel(known[x]) for x in ("gradient", "params", "noise")}
            inputs = [*leaves, *(known[name] for name in names)]
            dtype = _floats(*leaves, known["gradient"])
            direction, *after = jax_operations.run(described["step"], inputs, dtype)
            made.append([direction.reshape(jnp.shape(values[1])), *after])
        directions, *memory = (
            jax.tree.unflatten(structure, x) for x in zip(*made, strict=True)
        )
        after = dict(zip(described["outputs"][1:], memory, strict=True))
        return directions, memory_type(**after, seed=seed)

    return LearnedOptimizer(init, start, update, spec, extra_inputs=extra)


def _kind(name: str) -> Any:
    dtype = np.dtype(name)
    kind = jnp.result_type(float) if dtype.kind == "f" else dtype
    return jax.dtypes.canonicalize_dtype(kind)
