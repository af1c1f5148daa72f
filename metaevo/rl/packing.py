"""Exact, compact storage of pytrees: two arrays, whatever the leaves.

Floating point numbers are kept as float32, in an array of their own: whether all are
finite stays visible. Everything else goes into words of 32 bits: booleans by the bit,
integers of 8, 16 and 32 bits at their size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.types import PyTree

__all__ = ["Packed", "Packing", "of"]

WORD = 32  # bits


class Packed(NamedTuple):
    """Packed elements; None where there is nothing of that kind."""

    numbers: jax.Array | None  # [..., width] float32
    words: jax.Array | None  # [..., width] uint32


class Packing(NamedTuple):
    """Functions between elements and packed ones, with the same leading axes.

    Attributes:
        pack: leaves [..., *shape], cast to the types of the template, to `Packed`.
        unpack: the inverse.
    """

    pack: Callable[[PyTree], Packed]
    unpack: Callable[[Packed], Any]


def of(template: PyTree) -> Packing:
    """The packing of elements like `template`.

    >>> packing = of({"flags": jnp.zeros(40, bool), "action": jnp.int32(0)})
    >>> one = {"flags": jnp.arange(40) % 3 == 0, "action": jnp.int32(-7)}
    >>> packed = packing.pack(one)
    >>> packed.numbers, packed.words.shape
    (None, (3,))
    >>> packing.unpack(packed)["action"]
    Array(-7, dtype=int32)

    Args:
        template: one element, a pytree of arrays or `jax.ShapeDtypeStruct`s of
            booleans, integers and floating point numbers of at most 32 bits.

    Raises:
        TypeError: a leaf is of another type.
    """
    leaves, treedef = jax.tree.flatten(template)
    codecs = [_codec(leaf.dtype) for leaf in leaves]
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    members = [[i for i, c in enumerate(codecs) if c.kind == kind] for kind in _KINDS]
    # The slice of each leaf among those of its kind.
    ends = {
        i: end
        for mine in members
        for i, end in zip(
            mine,
            itertools.accumulate(codecs[i].width(sizes[i]) for i in mine),
            strict=True,
        )
    }
    num_words = sum(codecs[i].width(sizes[i]) for i in members[1])

    def pack(elements):
        flat = [
            codec.encode(jnp.asarray(x, leaf.dtype).reshape(*_batch(x, leaf), -1))
            for x, leaf, codec in zip(
                treedef.flatten_up_to(elements), leaves, codecs, strict=True
            )
        ]
        numbers, integers, bits = (_join([flat[i] for i in mine]) for mine in members)
        bits = None if bits is None else _words_of_bits(bits)
        return Packed(numbers, _join([x for x in (integers, bits) if x is not None]))

    def unpack(packed):
        kept = {"numbers": packed.numbers, "words": packed.words}
        if members[2]:
            kept["bits"] = _bits_of_words(packed.words[..., num_words:])

        def one(i):
            codec, leaf = codecs[i], leaves[i]
            x = kept[codec.kind][..., ends[i] - codec.width(sizes[i]) : ends[i]]
            x = codec.decode(x)[..., : sizes[i]]
            return x.reshape(*x.shape[:-1], *leaf.shape)

        return treedef.unflatten([one(i) for i in range(len(leaves))])

    return Packing(pack, unpack)


# --- leaves ---------------------------------------------------------------------------

_KINDS = ("numbers", "words", "bits")


class _Codec(NamedTuple):
    """Storage of a flat leaf [..., size].

    Attributes:
        kind: which of `_KINDS`.
        width: size to the size encoded.
        encode, decode: to the type of the kind and back; `decode` may give more than
            `size` numbers.
    """

    kind: str
    width: Callable[[int], int]
    encode: Callable[[jax.Array], jax.Array]
    decode: Callable[[jax.Array], jax.Array]


def _codec(dtype: Any) -> _Codec:
    if jnp.issubdtype(dtype, jnp.bool_):
        return _Codec("bits", lambda size: size, lambda x: x, lambda x: x)
    bits = jnp.dtype(dtype).itemsize * 8 if jnp.issubdtype(dtype, jnp.number) else 64
    if bits <= WORD and jnp.issubdtype(dtype, jnp.floating):
        return _Codec(
            "numbers",
            lambda size: size,
            lambda x: x.astype(jnp.float32),
            lambda x: x.astype(dtype),
        )
    if bits > WORD or not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"cannot pack {dtype}: expected booleans, integers or floating point "
            "numbers of at most 32 bits"
        )
    per_word = WORD // bits

    def encode(x):
        if per_word > 1:
            x = _padded(x, per_word).reshape(*x.shape[:-1], -1, per_word)
        return jax.lax.bitcast_convert_type(x, jnp.uint32)

    def decode(words):
        x = jax.lax.bitcast_convert_type(words, dtype)
        return x if per_word == 1 else x.reshape(*words.shape[:-1], -1)

    return _Codec("words", lambda size: -(-size // per_word), encode, decode)


def _batch(x: Any, leaf: Any) -> tuple[int, ...]:
    """The leading axes of a leaf."""
    return x.shape[: x.ndim - len(leaf.shape)]


def _join(parts: list[jax.Array]) -> jax.Array | None:
    return jnp.concatenate(parts, -1) if parts else None


def _padded(x: jax.Array, multiple: int) -> jax.Array:
    """`x` with zeros behind, so that its last axis is a multiple."""
    behind = -x.shape[-1] % multiple
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, behind)])


def _words_of_bits(bits: jax.Array) -> jax.Array:
    """[..., n] bool to [..., ceil(n / 32)] uint32."""
    bits = _padded(bits, WORD).reshape(*bits.shape[:-1], -1, WORD)
    shifted = bits.astype(jnp.uint32) << jnp.arange(WORD, dtype=jnp.uint32)
    return shifted.sum(-1, dtype=jnp.uint32)


def _bits_of_words(words: jax.Array) -> jax.Array:
    """[..., k] uint32 to [..., 32 k] bool."""
    shifted = words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)
    return (shifted & 1 != 0).reshape(*words.shape[:-1], -1)
