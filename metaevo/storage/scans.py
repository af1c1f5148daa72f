"""Parameters of a traced `scan`, in JAX 0.10 and from 0.11 on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of constants and of carried arrays, the first operands of a `scan`.

    Args:
        params: of the equation, in JAX 0.10 or from 0.11 on.
    """
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    return params["num_consts"], params["num_carry"]
