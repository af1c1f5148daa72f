"""Source of the functions that exported source calls."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["JAX", "NUMPY", "TORCH"]

_DOC = '''
def _inputs(ranks, *given):
    """Return the leading axes, and all inputs with these as one.

    They get the type of the first {array} of floating numbers among them.

    Args:
        ranks: an input's number of axes behind the leading ones; None for a scalar,
            which stays as it is.
    """
'''
_BODY = """\
    leading = [x.shape[: x.ndim - r] for x, r in zip(given, ranks) if r is not None]
    shape = {m}.broadcast_shapes(*leading)
    found = []
    for x, r in zip(given, ranks):
        if r is not None:
            inner = x.shape[x.ndim - r :]
            x = {m}.broadcast_to(x, (*shape, *inner)).reshape(-1, *inner)
        found.append(x)
    return shape, *found
"""
_OF_ARRAYS = """\
    floats = [x for x in given if getattr(getattr(x, "dtype", None), "kind", "") == "f"]
    dtype = floats[0].dtype if floats else {default}
    given = [{m}.asarray(x, dtype) for x in given]
"""
_OF_JAX_ARRAYS = """\
    floats = [
        x.dtype
        for x in given
        if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    ]
    dtype = floats[0] if floats else {default}
    given = [{m}.asarray(x, dtype) for x in given]
"""
_OF_TENSORS = """\
    tensors = [x for x in given if torch.is_tensor(x)]
    floats = [x for x in tensors if x.is_floating_point()]
    dtype = floats[0].dtype if floats else torch.get_default_dtype()
    device = tensors[0].device if tensors else None
    given = [torch.as_tensor(x, dtype=dtype, device=device) for x in given]
"""


def _conversion(array: str, convert: str, **names: str) -> str:
    text = _DOC.format(array=array) + convert.format(**names) + _BODY.format(**names)
    return text.lstrip("\n")


_ROLLOUTS = '''
def _rollouts(ranks, *given):
    """Return the shape [T, ...] of all inputs, and these as [T, trajectories].

    Args:
        ranks: as of `_inputs`.
    """
    shape, *flat = _inputs(ranks, *given)
    steps = shape[0]
    return shape, *(
        x if r is None else x.reshape(steps, -1) for x, r in zip(flat, ranks)
    )
'''
_SCAN = '''
def _scan(step, carry, over, reverse):
    """Return the carry after a step for each index of arrays, and the steps' results.

    Args:
        step: `(*carry, *one index of each array) -> (next carry, results)`.
        reverse: True to begin with the last index.
    """
    kept = []
    indices = range(len(over[0]))
    for i in reversed(indices) if reverse else indices:
        carry, found = step(*carry, *(x[i] for x in over))
        kept.append(found)
    if reverse:
        kept.reverse()
    return *carry, *({0}.stack(x) for x in zip(*kept))
'''
_JAX_SCAN = '''
def _scan(step, carry, over, reverse):
    """Return the carry after a step for each index of arrays, and the steps' results.

    Args:
        step: `(*carry, *one index of each array) -> (next carry, results)`.
        reverse: True to begin with the last index.
    """
    one = lambda carry, x: step(*carry, *x)  # noqa: E731
    carry, found = jax.lax.scan(one, carry, over, reverse=reverse)
    return *carry, *found
'''

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

NUMPY: Mapping[str, str] = {
    "_inputs": _conversion("array", _OF_ARRAYS, m="np", default="np.dtype(float)"),
    "_rollouts": _ROLLOUTS,
    "_scan": _SCAN.format("np"),
    "_unpacked": _UNPACKED_ARRAY,
}
JAX: Mapping[str, str] = {
    "_clamp": _CLAMP.format("jnp", "jax.lax.stop_gradient(jnp.clip(x, low, high))"),
    "_inputs": _conversion(
        "array", _OF_JAX_ARRAYS, m="jnp", default="jnp.result_type(float)"
    ),
    "_rollouts": _ROLLOUTS,
    "_scan": _JAX_SCAN,
    "_unpacked": _UNPACKED_ARRAY,
}
TORCH: Mapping[str, str] = {
    "_clamp": _CLAMP.format("torch", "torch.clamp(x, low, high).detach()"),
    "_inputs": _conversion("tensor", _OF_TENSORS, m="torch"),
    "_max": _BOUND.format("max"),
    "_min": _BOUND.format("min"),
    "_rollouts": _ROLLOUTS,
    "_scan": _SCAN.format("torch"),
    "_unpacked": _UNPACKED_TENSOR,
}
