"""Source of the functions that exported source calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from metaevo.learned import shapes

__all__ = ["JAX", "NUMPY", "TORCH"]

_DOC = '''
def _inputs(function, axes, *given):
    """Return the leading axes, and all inputs with these as one.

    They get the type of the first {array} of floating numbers, float32 at least.

    Args:
        function: its name, for messages.
        axes: name of an input -> sizes of its axes behind the leading ones, a name for
            one that is open; None for a scalar, which stays as it is.

    Raises:
        ValueError: leading axes differ, of inputs that have some.
    """
'''
_BODY = """\
    message = _wrong(axes, dict(zip(axes, [x.shape for x in given])))
    if message is not None:
        raise ValueError(f"{{function}}: {{message}}")
    pairs = [(x, inner) for x, inner in zip(given, axes.values()) if inner is not None]
    leading = [tuple(x.shape[: x.ndim - len(inner)]) for x, inner in pairs]
    shape = max(leading, key=len, default=())
    found = []
    for x, inner in zip(given, axes.values()):
        if inner is not None:
            inner = x.shape[x.ndim - len(inner) :]
            x = {m}.broadcast_to(x, (*shape, *inner)).reshape(-1, *inner)
        found.append(x)
    return shape, *found
"""
_OF_ARRAYS = """\
    floats = [x for x in given if getattr(getattr(x, "dtype", None), "kind", "") == "f"]
    dtype = floats[0].dtype if floats else {default}
    dtype = np.promote_types(dtype, np.float32)
    given = [{m}.asarray(x, dtype) for x in given]
"""
_OF_JAX_ARRAYS = """\
    floats = [
        x
        for x in given
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    ]
    dtype = jnp.result_type(floats[0]) if floats else {default}
    dtype = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
    given = [{m}.asarray(x, dtype) for x in given]
"""
_OF_TENSORS = """\
    tensors = [x for x in given if torch.is_tensor(x)]
    floats = [x for x in tensors if x.is_floating_point()]
    dtype = floats[0].dtype if floats else torch.get_default_dtype()
    dtype = dtype if torch.finfo(dtype).bits >= 32 else torch.float32
    # A number may lie elsewhere.
    placed = [x for x in tensors if x.ndim] or tensors
    device = placed[0].device if placed else None
    given = [torch.as_tensor(x, dtype=dtype, device=device) for x in given]
"""


def _conversion(array: str, convert: str, **names: str) -> str:
    text = _DOC.format(array=array) + convert.format(**names) + _BODY.format(**names)
    return text.lstrip("\n")


def _check() -> str:
    """Return the source of the check of shapes."""
    source = inspect.getsource(shapes.wrong).replace("def wrong(", "def _wrong(")
    source = source.replace("  # noqa: B905", "")
    before, _, after = source.partition("\n\n    >>>")
    return f'{before}\n    """\n{after.partition(_QUOTES)[2]}'


_QUOTES = '"""\n'
_CAST = '''
def _cast(found, given):
    """Return an array in the type of half precision that `given` may have."""
    dtype = getattr(given, "dtype", None)
    half = {0}
    return found.{1}(dtype) if half else found
'''
_WIDE = '''
def _wide(x):
    """Return an array of floating numbers of 32 bits at least."""
    return {0}
'''

_ROLLOUTS = '''
def _rollouts(function, axes, *given):
    """Return the shape [T, ...] of all inputs, and these as [T, trajectories].

    Args:
        function, axes: as of `_inputs`.

    Raises:
        ValueError: shapes differ, of inputs that are no scalars, or all are.
    """
    shape, *flat = _inputs(function, axes, *given)
    if not shape:
        raise ValueError(f"{function}: expected arrays of shape [T, ...]")
    inner = axes.values()
    return shape, *(
        x if r is None else x.reshape(shape[0], -1) for x, r in zip(flat, inner)
    )
'''
_SCAN = '''
def _scan(step, carry, over, reverse):
    """Return the carry after a step for each index of arrays, and the steps' results.

    Args:
        step: `(*carry, *one index of each array) -> (next carry, results)`.
        reverse: True to begin with the last index.
    """
'''
_LOOP = """\
    kept = []
    indices = range(len(over[0]))
    for i in reversed(indices) if reverse else indices:
        carry, found = step(*carry, *(x[i] for x in over))
        kept.append(found)
    if reverse:
        kept.reverse()
    return *carry, *({0}.stack(x) for x in zip(*kept))
"""
_JAX_LOOP = """\
    one = lambda carry, x: step(*carry, *x)  # noqa: E731
    carry, found = jax.lax.scan(one, carry, over, reverse=reverse)
    return *carry, *found
"""

_BOUND = '''
def _{0}(x, bound):
    """Return the {0}imum of a tensor and a number.

    Where they are equal the derivative is 1/2, as in JAX; that of `torch.clamp` is 1.
    """
    return torch.{0}imum(x, x.new_tensor(bound))
'''

_CLAMP = '''
def _clamp(low, x, high):
    """Return an array within two bounds; the derivative is 0 at them, as in JAX."""
    bounded = {1}
    return {0}.where((x > low) & (x < high), x, bounded)
'''

_UNPACKED_ARRAY = '''
def _unpacked(text, shape):
    """Return an array of float32 numbers in base 64."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)
'''
_UNPACKED_TENSOR = '''
def _unpacked(text, shape):
    """Return a tensor of float32 numbers in base 64."""
    numbers = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)
    return numbers.reshape(shape)
'''

_COMMON = {"_rollouts": _ROLLOUTS, "_wrong": _check()}
NUMPY: Mapping[str, str] = {
    **_COMMON,
    "_cast": _CAST.format("dtype == np.float16", "astype"),
    "_inputs": _conversion("array", _OF_ARRAYS, m="np", default="np.dtype(float)"),
    "_scan": _SCAN + _LOOP.format("np"),
    "_unpacked": _UNPACKED_ARRAY,
    "_wide": _WIDE.format("x.astype(np.promote_types(x.dtype, np.float32))"),
}
JAX: Mapping[str, str] = {
    **_COMMON,
    "_cast": _CAST.format("dtype in (jnp.float16, jnp.bfloat16)", "astype"),
    "_clamp": _CLAMP.format("jnp", "jax.lax.stop_gradient(jnp.clip(x, low, high))"),
    "_inputs": _conversion(
        "array", _OF_JAX_ARRAYS, m="jnp", default="jnp.result_type(float)"
    ),
    "_scan": _SCAN + _JAX_LOOP,
    "_unpacked": _UNPACKED_ARRAY,
    "_wide": _WIDE.format("x.astype(jnp.promote_types(x.dtype, jnp.float32))"),
}
TORCH: Mapping[str, str] = {
    **_COMMON,
    "_cast": _CAST.format("dtype in (torch.float16, torch.bfloat16)", "to"),
    "_clamp": _CLAMP.format("torch", "torch.clamp(x, low, high).detach()"),
    "_inputs": _conversion("tensor", _OF_TENSORS, m="torch"),
    "_max": _BOUND.format("max"),
    "_min": _BOUND.format("min"),
    "_scan": _SCAN + _LOOP.format("torch"),
    "_unpacked": _UNPACKED_TENSOR,
    "_wide": _WIDE.format(
        "x.float() if x.dtype in (torch.float16, torch.bfloat16) else x"
    ),
}
