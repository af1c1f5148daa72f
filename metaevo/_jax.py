"""Interfaces of JAX that are private, or that differ between its versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.extend import core

__all__ = ["distributed_client", "one_equation", "scan_sizes"]


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of constants and of carried arrays, the first operands of a `scan`.

    Args:
        params: of the equation, in JAX 0.10 or from 0.11 on.
    """
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    return params["num_consts"], params["num_carry"]


def one_equation(jaxpr: Any, equation: Any) -> tuple[core.ClosedJaxpr, list[Any]]:
    """A program of one equation of a jaxpr, and the variables that are its inputs."""
    inputs = [v for v in equation.invars if not isinstance(v, core.Literal)]
    inputs = list(dict.fromkeys(inputs))
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    alone = core.Jaxpr((), inputs, equation.outvars, [equation], debug_info=names)
    return core.ClosedJaxpr(alone, ()), inputs


def distributed_client() -> Any:
    """The client of the coordination service of a distributed job.

    Public functions of JAX wait in collectives, which have a time limit.
    """
    from jax._src import distributed

    return distributed.global_state.client
