"""Replay buffers and their priorities with a program for each of their functions."""

import jax


def compiled(ring):
    """A `Replay` or `Prioritized` whose functions are traced once for each shape."""
    sizes = {"draw": "shape", "sample": "shape"}
    return ring._replace(
        **{
            name: jax.jit(function, static_argnames=sizes.get(name))
            for name, function in ring._asdict().items()
        }
    )
